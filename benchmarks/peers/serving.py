"""Servers of peers: processes that are started again when they end."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.measuring import START_S, Lost, tree
from benchmarks.peers.works import Work

SERVERS = Path(__file__).with_name("servers")


@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of a peer: its Python, its work, and a folder of its own."""

    python: Path
    work: Work
    folder: Path

    def environment(self, **more: object) -> dict[str, str]:
        """Return the environment of a server: the same threads for all, and nothing of Penstock."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "PYTHON", "VIRTUAL_ENV"))
        }
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(os.cpu_count()))
        ours = {
            "PATH": f"{self.python.parent}:{kept['PATH']}", "PYTHONPATH": str(SERVERS), "PYTHONSAFEPATH": "1",
            "PEER_WORK": str(self.work.folder), "PEER_PATIENCE_S": str(self.work.patience_s), "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        return kept | threads | ours | {name: str(value) for name, value in more.items()}


@dataclass
class Supervised:
    """A process that is started again when it ends, as systemd would."""

    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    _ended: bool = False

    def start(self) -> None:
        """Start it, and a thread that watches it."""
        self._launch()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """End it and everything below it: by SIGTERM, and after ten seconds by SIGKILL."""
        self._ended = True
        below = tree([self.process.pid])
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()
        _, left = psutil.wait_procs(below, timeout=10)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=10)
        self.process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it may have started meanwhile

    def last_words(self) -> str:
        """Return the end of its log."""
        lines = (self.folder / "server.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")[:300]

    def _launch(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=dict(self.environment), cwd=self.folder, stdin=subprocess.PIPE, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def _watch(self) -> None:
        quick = 0
        while not self._ended:
            begun, left = time.monotonic(), tree([self.process.pid])
            while self.process.poll() is None and not self._ended:
                left = tree([self.process.pid]) or left
                time.sleep(0.5)
            if self._ended:
                return
            for process in left:  # what the dead process left of itself holds its port
                if process.pid != self.process.pid and process.is_running():
                    process.send_signal(signal.SIGKILL)
            quick = quick + 1 if time.monotonic() - begun < 5 else 0
            if quick > 5:
                return
            self._launch()


@contextmanager
def supervised(place: Place, command: list[object], **environment: object) -> Iterator[Supervised]:
    """Run a server inside the block."""
    server = Supervised(list(map(str, command)), place.environment(**environment), place.folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def wait_until(ready: Callable[[], bool], server: Supervised, within_s: float = START_S) -> None:
    """Wait for a server; raise `RuntimeError` with its last words if it does not become ready."""
    ends = time.monotonic() + within_s
    while not _true(ready):
        if time.monotonic() > ends:
            raise RuntimeError(f"it did not become ready in {within_s:.0f} s: {server.last_words()}")
        if server.process.poll() is not None:
            raise RuntimeError(f"it ended with {server.process.poll()}: {server.last_words()}")
        time.sleep(0.2)


def _true(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except (OSError, Lost, http.client.HTTPException):
        return False


def answers(port: int, path: str) -> Callable[[], bool]:
    """Return a check that a GET is answered with 200, without waiting for connections."""

    def ready() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    return ready
