"""Failures of commands: their exit codes, sentences and problem documents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import typer

from penstock.cli.options import JOB_FAILED, STILL_RUNNING, UNAVAILABLE, USAGE
from penstock.client.answers import ClientError, Corrupt, PenstockAPIError, StillRunning, Unreachable
from penstock.errors import ErrorReport, PenstockError

#: Codes of the client's errors that may pass when the command is repeated.
_RETRYABLE = frozenset({Unreachable.code, Corrupt.code, StillRunning.code})


def wants_json(words: Sequence[str]) -> bool:
    """Return True for the words of a command with the option `--json`."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def exit_code(error: Exception) -> int | None:
    """Return the exit code for an expected error; None for any other, which is a bug."""
    match error:
        case PenstockError():
            return USAGE if error.code == "config_error" else UNAVAILABLE
        case StillRunning():
            return STILL_RUNNING
        case PenstockAPIError() | Unreachable() | Corrupt():
            return UNAVAILABLE
        case ClientError():
            return USAGE
        case typer.Abort():
            return JOB_FAILED
        case _:
            return USAGE if _is_usage(error) else None


def sentence(error: Exception) -> str:
    """Return the error in one sentence, and what to do about a service that does not answer."""
    if isinstance(error, PenstockError):
        return error.detail
    if isinstance(error, typer.Abort):
        return "aborted"
    return str(error.format_message()) if _is_usage(error) else f"{error}{_hint(error)}"  # type: ignore[attr-defined]


def problem(error: Exception) -> dict[str, Any]:
    """Return the error as a problem document (RFC 9457), in the form of the service's answers."""
    if isinstance(error, PenstockAPIError):
        own = _document(ErrorReport(error.code, error.title, error.detail, error.retryable, error.errors))
        return {**own, "status": error.status, **error.problem}
    if isinstance(error, PenstockError):
        return _document(error.report())
    if isinstance(error, ClientError):
        title = f"{(type(error).__doc__ or '').partition('.')[0].partition(':')[0]}."
        found = _document(ErrorReport(error.code, title, sentence(error), error.code in _RETRYABLE))
        return {**found, "job": dict(error.job.raw)} if isinstance(error, StillRunning) else found
    return _document(ErrorReport("invalid_usage", "The command cannot be run as it was given.", sentence(error)))


def _document(report: ErrorReport) -> dict[str, Any]:
    return {"type": f"urn:penstock:problem:{report.code}", **report.to_json()}


def _is_usage(error: Exception) -> bool:
    """Return True for an error in the options or arguments; the base class of these errors has no public name."""
    return hasattr(error, "format_message")


def _hint(error: Exception) -> str:
    """Return what to do about a service that does not answer; empty for another error."""
    if not isinstance(error, Unreachable) or error.address is None:
        return ""
    local = urlsplit(error.address).hostname in ("127.0.0.1", "localhost", "::1")
    address = "give its address with --url or PENSTOCK_URL"
    return f"; is `penstock up` running? Else {address}" if local else f"; is this its address? Else {address}"
