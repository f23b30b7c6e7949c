"""The outcome of an attempt that raised an error. Pure: the same error, attempt and draw give the same outcome."""

from __future__ import annotations

from penstock.errors import Canceled, InputError, OutOfMemory, PenstockError, ProcessorFailed
from penstock.jobs import State
from penstock.storage.redis.records import Outcome
from penstock.storage.spool import FULL, out_of_space

MAX_RETRY_DELAY_S = 300.0
#: Most seconds that a retry waits because a server asked for it.
MAX_ASKED_DELAY_S = 3_600.0


def retry_delay_s(attempt: int, draw: float) -> float:
    """Return full jitter: a share `draw` (0..1) of min(300, 2 * 2^attempt) seconds."""
    return draw * min(MAX_RETRY_DELAY_S, 2.0 * 2.0**attempt)


def to_penstock_error(error: BaseException) -> PenstockError:
    """Return the error as a `PenstockError`; an error that no library boundary translated is `ProcessorFailed`."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory("the worker ran out of memory")
    if isinstance(error, OSError) and error.errno in FULL:
        return out_of_space(error)
    return ProcessorFailed(f"the model failed: its processor raised {type(error).__name__}")


def outcome_of(error: PenstockError, *, attempt: int, draw: float) -> Outcome:
    """Return the outcome of an attempt that raised this error. The store fails a retry after the last attempt."""
    report = error.report()
    if isinstance(error, Canceled):
        return Outcome(State.CANCELED)
    if error.retryable and not isinstance(error, InputError):
        asked_s = min(error.retry_after_s or 0.0, MAX_ASKED_DELAY_S)
        return Outcome(State.DELAYED, error=report, retry_delay_s=max(asked_s, retry_delay_s(attempt, draw)))
    return Outcome(State.FAILED, error=report)
