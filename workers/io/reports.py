"""Errors as they cross from an IO process to its worker: only what a processor may say, and only text."""

from __future__ import annotations

import errno
from typing import Any

from penstock import errors
from penstock.errors import FetchFailed, InputError, ModelUnavailable, OutOfSpace, PenstockError, ProcessorFailed
from penstock.reports import Issue

_MAX_TEXT = 2000
_MAX_ISSUES = 100

#: What a processor may raise, by name. Not here: what would end more than the one attempt.
_RAISABLE: dict[str, type[PenstockError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, (InputError, FetchFailed, ModelUnavailable, OutOfSpace, ProcessorFailed))
}


def to_json(error: BaseException, memory_bytes: int) -> dict[str, Any]:
    """Return an error for the worker; `memory_bytes` is what the process may use."""
    ours = _translated(error, memory_bytes)
    issues = [{"pointer": issue.pointer[:_MAX_TEXT], "detail": issue.detail[:_MAX_TEXT]} for issue in ours.errors]
    name = next((kind.__name__ for kind in type(ours).__mro__ if kind.__name__ in _RAISABLE), "ProcessorFailed")
    return {"error": name, "detail": ours.detail[:_MAX_TEXT], "issues": issues[:_MAX_ISSUES]}


def from_json(data: Any) -> PenstockError:
    """Return the error that an IO process reported."""
    match data:
        case {"error": str(name), "detail": str(detail), "issues": list(issues)} if name in _RAISABLE:
            told = [_issue(issue) for issue in issues[:_MAX_ISSUES]]
            return _RAISABLE[name](detail[:_MAX_TEXT], errors=[issue for issue in told if issue])
    return ProcessorFailed("the processor's process reported an error that is none")


def _issue(data: Any) -> Issue | None:
    match data:
        case {"pointer": str(pointer), "detail": str(detail)}:
            return Issue(pointer[:_MAX_TEXT], detail[:_MAX_TEXT])
    return None


def _translated(error: BaseException, memory_bytes: int) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return ProcessorFailed(
            f"the model's processor needs more memory for this input than the {memory_bytes / 2**20:.0f} MiB that it "
            "may use here (io_memory_bytes)"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace()
    return ProcessorFailed(f"the model's processor failed on this input ({type(error).__name__})")
