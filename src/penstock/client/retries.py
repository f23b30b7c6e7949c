"""The delays between the tries of a request, and the time that a job is waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime

from penstock.client.answers import ClientError, Job, PenstockAPIError, StillRunning, Unreachable
from penstock.client.options import OnRetry

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 10.0


@dataclass
class Delays:
    """Delays after failures in a row: doubling, with jitter, until their sum would exceed `patience_s`."""

    patience_s: float
    #: Returns the jitter, 0 to 1.
    draw: Callable[[], float]
    #: Called before each pause.
    on_retry: OnRetry | None = None
    _spent_s: float = 0.0
    _delay_s: float = _FIRST_DELAY_S

    def next(self, failure: Unreachable | PenstockAPIError) -> float:
        """Return the seconds to wait, or raise the failure where a retry is pointless."""
        pause_s = self._delay_s * (0.5 + self.draw() / 2)
        if isinstance(failure, PenstockAPIError):
            if not failure.retryable:
                raise failure
            pause_s = max(pause_s, failure.retry_after_s or 0.0)
        self._spent_s, self._delay_s = self._spent_s + pause_s, min(_LONGEST_DELAY_S, 2 * self._delay_s)
        if self._spent_s > self.patience_s:
            raise failure
        if self.on_retry is not None:
            self.on_retry(failure, pause_s)
        return pause_s

    def reset(self) -> None:
        """Start over after a success."""
        self._spent_s, self._delay_s = 0.0, _FIRST_DELAY_S


@dataclass
class Deadline:
    """A timeout that starts with its creation; None = no timeout."""

    timeout_s: float | None
    clock: Callable[[], float] = time.monotonic
    _ends: float = field(init=False)

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s >= 0:
            raise ClientError(f"timeout_s is {self.timeout_s}: give seconds, 0 or more")
        self._ends = math.inf if self.timeout_s is None else self.clock() + self.timeout_s

    def left_s(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self._ends - self.clock())

    @property
    def passed(self) -> bool:
        """True once no time remains."""
        return self.left_s() == 0

    def check(self, job: Job) -> None:
        """Raise `StillRunning` for a running job once the time is over."""
        if self.passed:
            raise StillRunning(job, self.timeout_s or 0.0)


def retry_after_s(header: str | None, at: float | None = None) -> float | None:
    """Return the seconds of a `Retry-After` header (a number or a date); None where it has neither.

    `at` is the time in seconds since the epoch; None = now.
    """
    text = (header or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - (time.time() if at is None else at))
