"""Logging: one line per event, a name and ids; JSON unless a person watches. Secrets do not get through."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(r"secret|password|passwd|authorization|signature|credential|api_?key|access_key|token", re.I)
#: What a name above also matches and is no secret.
_HARMLESS = frozenset({"tokens", "max_tokens", "token_count"})
_USER_INFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@?#\"'<>]+@", re.I)
_URL_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#\"'<>]*\?)[^\s\"'<>]+", re.I)
#: In a path without its host, as in an access log.
_SIGNED_QUERY = re.compile(
    r"([?&][\w-]*(?:signature|credential|token|secret|password|sig|api_?key|accesskeyid)=)[^&\s\"'<>]+", re.I
)
_WEBHOOK_SECRET = re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+")
#: See `penstock.api_keys`; the id may stay.
_API_KEY = re.compile(r"\b(penstock_[a-z0-9]{14}_)[0-9A-Za-z]+")
#: Of an Authorization header, wherever it was quoted.
_AUTHORIZATION = re.compile(
    r"\b(Bearer|Basic|AWS4-HMAC-SHA256)\s+(?!penstock_)[^\s,\"'<>]+(?:,\s*\w+=[^\s,\"'<>]+)*", re.I
)
#: What moves a terminal's cursor, colours it, ends a line or turns the reading direction.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OR_LINE = re.compile(rf"[\t\n]|{_CONTROL.pattern}")
#: Libraries whose `info` is an access log of ours or theirs.
_TALKATIVE = (
    "httpx", "httpcore", "botocore", "boto3", "s3transfer", "urllib3", "kombu", "asyncio", "celery.app.trace",
    "celery.worker.strategy",
)  # fmt: skip
#: The first warns of every driver in GDAL_SKIP that this build of GDAL never had, the second of every cast, in each
#: layer of each pass; what matters is raised as an error.
_ERRORS_ONLY = ("rasterio._env", "bitsandbytes")


def configure(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send every log line of this process, ours and the libraries', to `stream` (standard error).

    Pretty in a terminal, else one JSON object per line with `at`, `level` and `event`, and `logger` for a library's.
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
    ]
    structlog.configure(
        processors=[*shared, _renderer(out)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # modules make their loggers before this is called
    )
    _configure_libraries(number, shared, out)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide secrets by their name; and passwords, query strings, webhook secrets and API keys wherever they stand."""
    return {name: _redacted(name, value) for name, value in event.items()}


def redact_text(text: str) -> str:
    """Return the text without the query strings and passwords of its URLs, without webhook secrets and API keys."""
    text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _SIGNED_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _API_KEY.sub(rf"\1{HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", text)
    return _WEBHOOK_SECRET.sub(HIDDEN, text)


def plain(text: str, *, lines: bool = False) -> str:
    """Return a text that cannot control a terminal: what could is written as `\\x1b`; line ends too, unless `lines`."""
    return (_CONTROL if lines else _CONTROL_OR_LINE).sub(lambda found: repr(found[0])[1:-1], text)


def _redacted(name: str, value: Any) -> Any:
    if value is not None and _SECRET_NAME.search(name) and name not in _HARMLESS:
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


def _renderer(out: TextIO) -> Processor:
    if out.isatty():
        pretty = structlog.dev.ConsoleRenderer(
            timestamp_key="at", exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
        )
        return lambda logger, method, event: pretty(logger, method, _shown(event))
    # ASCII: what JSON leaves as it is may still end a line (U+2028) or move a cursor (C1), or be no UTF-8 at all.
    return structlog.processors.JSONRenderer(ensure_ascii=True)


def _shown(event: EventDict) -> EventDict:
    return {
        name: plain(value, lines=name in ("exception", "stack")) if isinstance(value, str) else value
        for name, value in event.items()
    }


def log_uncaught() -> None:
    """Have what nobody caught logged like everything else, not written out as a traceback of many lines.

    For processes that are ours alone: it replaces the interpreter's hooks.
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


def _configure_libraries(level: int, shared: list[Processor], out: TextIO) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(out)],
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
