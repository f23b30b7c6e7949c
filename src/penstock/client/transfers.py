"""The summed progress of transfers that run at once."""

from __future__ import annotations

import threading

from penstock.client.answers import ClientError
from penstock.client.options import OnBytes


class TransferStopped(ClientError):
    """A transfer was stopped because another one failed."""


class TransferProgress:
    """The summed progress of transfers in several threads."""

    def __init__(self, on_bytes: OnBytes | None, total: int) -> None:
        #: Set to end the transfers.
        self.stop = threading.Event()
        self._on_bytes = on_bytes
        self._total = total
        self._done: dict[object, int] = {}
        self._reported = 0
        self._lock = threading.Lock()

    def of(self, name: object) -> OnBytes:
        """Return the callback of one transfer."""
        return lambda done, _total: self.report(name, done)

    def done(self, name: object) -> int:
        """Return the bytes done of a transfer."""
        return self._done.get(name, 0)

    def report(self, name: object, done: int) -> None:
        """Record a transfer's progress; raise `TransferStopped` where it should end. The sum never decreases."""
        if self.stop.is_set():
            raise TransferStopped("another transfer failed")
        with self._lock:
            self._done[name] = done
            self._reported = max(self._reported, sum(self._done.values()))
            if self._on_bytes is not None:
                self._on_bytes(self._reported, self._total)
