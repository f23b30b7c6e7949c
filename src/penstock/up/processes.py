"""A process that the supervisor keeps running."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

import psutil


class KeptProcess(ABC):
    """A process that can be started, watched and ended."""

    #: Display name.
    name: str
    #: File of the process's log.
    log: Path
    #: Seconds that the process has to end on request.
    stop_s: float
    #: Name of the stage in which the process is ended. Processes of one stage end together; None = alone.
    stage: str | None = None
    _process: psutil.Process | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def alive(self) -> bool: ...

    def exit_code(self) -> int | None:
        """Return the exit code of the ended process; None if it is not known."""
        return None

    def note_failures(self, failures: int, why: str) -> None:  # noqa: B027  (not every process has a record)
        """Record how often the process ended right after its start, for others to read."""

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return 0 if self._process is None else int(self._process.pid)

    def terminate(self) -> None:
        """Request the process's end (SIGTERM)."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.kill()
