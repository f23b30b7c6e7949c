"""Logging: one line per event, a name and ids; JSON unless a person watches. Secrets do not get through."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
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
_SIGNED_QUERY = re.compile(r"([?&][\w-]*(?:signature|credential|token|secret)=)[^&\s\"'<>]+", re.I)
_WEBHOOK_SECRET = re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+")
#: Libraries whose `info` is an access log of ours or theirs.
_TALKATIVE = (
    "httpx", "httpcore", "botocore", "boto3", "s3transfer", "urllib3", "kombu", "asyncio", "celery.app.trace",
    "celery.worker.strategy",
)  # fmt: skip
#: Warns of every driver in GDAL_SKIP that this build of GDAL never had; what matters is raised as an error.
_ERRORS_ONLY = ("rasterio._env",)


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
    """Hide secrets by their name, and passwords, query strings and webhook secrets wherever they stand in a text."""
    return {name: _redacted(name, value) for name, value in event.items()}


def redact_text(text: str) -> str:
    """Return the text without the query strings and passwords of its URLs and without webhook secrets."""
    text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _SIGNED_QUERY.sub(rf"\1{HIDDEN}", text)
    return _WEBHOOK_SECRET.sub(HIDDEN, text)


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
        return structlog.dev.ConsoleRenderer(
            timestamp_key="at", exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
        )
    return structlog.processors.JSONRenderer(ensure_ascii=False)


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
