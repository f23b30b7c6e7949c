"""The most memory that a service's processes ever held, measured from outside while they work."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

#: Between two looks at which processes there are. The kernel keeps each one's peak, so that only the last moments of
#: one that ends are missed.
LOOK_S = 0.1


class Peaks:
    """Watches a worker and all below it; a context manager."""

    def __init__(self, worker: int) -> None:
        self._root = psutil.Process(worker)
        #: By process id.
        self._peaks: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peaks")

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    @property
    def worker_bytes(self) -> int:
        """The worker's own."""
        return self._peaks[self._root.pid]

    @property
    def io_bytes(self) -> int:
        """Return the peak of the largest IO process, pages that it shares included."""
        return max(peak for pid, peak in self._peaks.items() if pid != self._root.pid)

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return len(self._peaks)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(psutil.NoSuchProcess):
                for process in (self._root, *self._root.children(recursive=True)):
                    self._look(process.pid)

    def _look(self, pid: int) -> None:
        with suppress(OSError):  # it has just ended
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self._peaks[pid] = max(self._peaks.get(pid, 0), int(line.split()[1]) * 1024)
