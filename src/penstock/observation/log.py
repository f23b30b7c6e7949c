"""Logging: one line per event with a name and ids, as JSON for machines or text for people. Secrets are removed."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from penstock.observation.listening import RecentLines, pass_on

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(r"secret|password|passwd|authorization|signature|credential|api_?key|access_key|token", re.I)
#: Names that match the pattern above and are no secrets.
_HARMLESS = frozenset({"tokens", "max_tokens", "token_count"})
_USER_INFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@?#\"'<>]+@", re.I)
_URL_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#\"'<>]*\?)[^\s\"'<>]+", re.I)
#: A signed query in a path without its host, as in an access log.
_SIGNED_QUERY = re.compile(
    r"([?&][\w-]*(?:signature|credential|token|secret|password|sig|api_?key|accesskeyid)=)[^&\s\"'<>]+", re.I
)
_WEBHOOK_SECRET = re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+")
#: An API key, see `penstock.api_keys`; its id may be logged.
_API_KEY = re.compile(r"\b(penstock_[a-z0-9]{14}_)[0-9A-Za-z]+")
#: The value of an Authorization header, wherever it was quoted.
_AUTHORIZATION = re.compile(
    r"\b(Bearer|Basic|AWS4-HMAC-SHA256)\s+(?!penstock_)[^\s,\"'<>]+(?:,\s*\w+=[^\s,\"'<>]+)*", re.I
)
#: Part of every text that one of the patterns above matches. Names, ids and times have none of it.
_SUSPICIOUS = re.compile(r"://|[?&\s]|whsec_|penstock_")
#: Characters that move a terminal's cursor, change its colours, end a line or turn the reading direction.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OR_LINE = re.compile(rf"[\t\n]|{_CONTROL.pattern}")
#: Libraries that log every request at `info`.
_TALKATIVE = (
    "httpx2", "httpcore2", "botocore", "boto3", "s3transfer", "urllib3", "kombu", "asyncio", "celery.app.trace",
    "celery.worker.strategy",
)  # fmt: skip
#: rasterio._env warns of every driver in GDAL_SKIP that this build of GDAL lacks; bitsandbytes warns of every cast, in
#: each layer of each pass. Serious faults are raised as errors.
_ERRORS_ONLY = ("rasterio._env", "bitsandbytes")


def configure(
    level: str = "info", *, stream: TextIO | None = None, as_text: bool = False, recent: RecentLines | None = None
) -> None:
    """Send every log line of this process, from Penstock and libraries, to `stream` (default: standard error).

    Text in a terminal, or with `as_text`; else one JSON object per line with `at`, `level` and `event`; libraries'
    lines have `logger`. `recent` keeps the latest lines.
    """
    out = stream if stream is not None else sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact,
        pass_on,
        *([] if recent is None else [recent.keep]),
    ]
    structlog.configure(
        processors=[*shared, _renderer(out, as_text)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # modules create their loggers before this call
    )
    _configure_libraries(number, shared, out, _renderer(out, as_text))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide secrets by field name; hide passwords, query strings, webhook secrets and API keys in all texts."""
    for name, value in event.items():  # only values change
        if type(value) is str and not _is_secret(name):  # most are, without secrets: a call for each would cost more
            if _SUSPICIOUS.search(value):
                event[name] = redact_text(value)
        else:
            event[name] = _redacted(name, value)
    return event


def redact_text(text: str) -> str:
    """Return the text without query strings and passwords of URLs, webhook secrets and API keys."""
    if not _SUSPICIOUS.search(text):
        return text
    text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _SIGNED_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _API_KEY.sub(rf"\1{HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text)
    return _WEBHOOK_SECRET.sub(HIDDEN, text)


def plain(text: str, *, lines: bool = False) -> str:
    """Return a text that cannot control a terminal: control characters escaped, and line ends unless `lines`."""
    return (_CONTROL if lines else _CONTROL_OR_LINE).sub(lambda found: repr(found[0])[1:-1], text)


def _redacted(name: str, value: Any) -> Any:
    if value is not None and _is_secret(name):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted("", part) for part in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_text(str(value))


@lru_cache(1000)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and name not in _HARMLESS


def _renderer(out: TextIO, as_text: bool) -> Processor:
    if as_text or out.isatty():
        pretty = structlog.dev.ConsoleRenderer(
            timestamp_key="at", exception_formatter=structlog.dev.plain_traceback, pad_event_to=24, colors=out.isatty()
        )
        return lambda logger, method, event: pretty(logger, method, _shown(event))
    # ASCII: characters that JSON allows may end a line (U+2028), move a cursor (C1), or be invalid in UTF-8.
    return structlog.processors.JSONRenderer(_json)


def _json(event: EventDict, *, default: Callable[[Any], Any]) -> str:
    return _encoder(default).encode(event)


@lru_cache(10)
def _encoder(default: Callable[[Any], Any]) -> json.JSONEncoder:
    """Return an encoder: `json.dumps` would make a new one for each line."""
    return json.JSONEncoder(ensure_ascii=True, default=default)


def _shown(event: EventDict) -> EventDict:
    """Return what a terminal shows of a line; a function's `trace` has lines, as the traceback of an exception has."""
    if "trace" in event:
        event = {**event, "exception": event["trace"].strip("\n")}
        del event["trace"]
    return {
        name: plain(value, lines=name in ("exception", "stack")) if isinstance(value, str) else value
        for name, value in event.items()
    }


def log_uncaught() -> None:
    """Log uncaught exceptions as events, not as tracebacks of many lines.

    Only for Penstock's own processes: it replaces the interpreter's hooks.
    """

    def tell(event: str, error: BaseException | None, **more: str) -> None:
        if error is not None:
            structlog.get_logger(__name__).critical(event, error=type(error).__name__, exc_info=error, **more)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            tell("process.broke", error)

    sys.excepthook = hook
    threading.excepthook = lambda args: tell(
        "thread.broke", args.exc_value, thread=args.thread.name if args.thread else ""
    )
    sys.unraisablehook = lambda args: tell("object.broke", args.exc_value)


def _configure_libraries(level: int, shared: list[Processor], out: TextIO, renderer: Processor) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name in _ERRORS_ONLY:
        logging.getLogger(name).setLevel(logging.ERROR)
