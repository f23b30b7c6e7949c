"""Errors on their way from an IO process to its worker: only the kinds that a processor may raise, and only text."""

from __future__ import annotations

import errno
from typing import Any

from penstock import errors
from penstock.errors import FetchFailed, InputError, Issue, ModelUnavailable, OutOfSpace, PenstockError, ProcessorFailed
from penstock.functions.wire import Unsendable
from penstock.workers.io.ends import failure

_MAX_TEXT = 2000
_MAX_ISSUES = 100

#: Error classes that a processor may raise, by name. Not included: errors that would end more than the one attempt.
_RAISABLE: dict[str, type[PenstockError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, (InputError, FetchFailed, ModelUnavailable, OutOfSpace, ProcessorFailed))
}


def to_json(error: BaseException, memory_bytes: int) -> dict[str, Any]:
    """Return an error as JSON for the worker; `memory_bytes` is the process's memory limit."""
    ours = _translated(error, memory_bytes)
    issues = [{"pointer": issue.pointer[:_MAX_TEXT], "detail": issue.detail[:_MAX_TEXT]} for issue in ours.errors]
    name = next((kind.__name__ for kind in type(ours).__mro__ if kind.__name__ in _RAISABLE), "ProcessorFailed")
    return {"error": name, "detail": ours.detail[:_MAX_TEXT], "issues": issues[:_MAX_ISSUES]}


def from_json(data: Any) -> PenstockError:
    """Return the error that an IO process reported."""
    match data:
        case {"error": str(name), "detail": str(detail), "issues": list(issues)} if name in _RAISABLE:
            found = [_issue(issue) for issue in issues[:_MAX_ISSUES]]
            return _RAISABLE[name](detail[:_MAX_TEXT], errors=[issue for issue in found if issue])
    return ProcessorFailed("the processor's process reported an unknown error")


def _issue(data: Any) -> Issue | None:
    match data:
        case {"pointer": str(pointer), "detail": str(detail)}:
            return Issue(pointer[:_MAX_TEXT], detail[:_MAX_TEXT])
    return None


def _translated(error: BaseException, memory_bytes: int) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, Unsendable):
        return failure(error)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return ProcessorFailed(
            f"the model's processor needs more memory for this input than the limit of {memory_bytes / 2**20:.0f} MiB "
            "(io_memory_bytes)"
        )
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return ProcessorFailed("the model's processor wrote a file that is larger than the limit (io_file_bytes)")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace()
    if _refused(error):
        return ProcessorFailed(
            "the model's processor did what an IO process may not (PermissionError): it may read libraries, the "
            "model's files and the job's media, and write to its scratch folder; it has no network, makes no links, "
            "and starts no programs (io_programs allows them); the worker's log names the place"
        )
    return ProcessorFailed(f"the model failed: its processor raised {type(error).__name__}")


def _refused(error: BaseException | None) -> bool:
    """Return True for an error that the sandbox caused, or a library's error about one."""
    while error is not None:
        if isinstance(error, PermissionError) or "Permission denied" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
