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
    _process: psutil.Process | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def alive(self) -> bool: ...

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
