"""The service as real processes, each of which may be killed at any moment and is started again when it dies."""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from penstock.config import Settings, load_settings
from tests.chaos.waits import Span, without

ROOT = Path(__file__).parents[2]
READY_S = 60.0
#: The processes of a fleet, which are forked where these are imported.
ENTRY_POINTS = ("tests.chaos.api_main", "tests.chaos.worker_main", "tests.chaos.keeper_main")
#: From <linux/prctl.h>.
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended: when, which, and how (the negative signal, or the exit code)."""

    at_s: float
    name: str
    pid: int
    code: int


class Forked:
    """A process that runs a module as `python -m` does, forked where our imports are done, which take seconds.

    It has the part of `Popen`'s methods that `Kept` uses.
    """

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload(list(ENTRY_POINTS))
    #: Processes are started and waited for by many threads, and multiprocessing looks at all of them at each start.
    _lock = threading.Lock()

    def __init__(self, module: str, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with self._lock:
            self._process = self._context.Process(target=_run, args=(module, [*words], {**environment}, log))
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative signal; None while the process runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._process.exitcode
            return self.returncode

    def wait(self) -> int:
        """Wait for the end and return its code."""
        wait([self._process.sentinel])
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(module: str, words: list[str], environment: dict[str, str], log: Path) -> None:
    """Become the process of a module, in the child."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the test run, even with one that is killed
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Kept:
    """A process that is started again whenever it ends, until it is stopped."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.deaths: list[Death] = []
        #: Time, process and number of each signal that was sent.
        self.signals: list[tuple[float, int, int]] = []
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._log = log
        self._stopped = threading.Event()
        self._process = self._launch()
        self._thread = threading.Thread(target=self._keep, name=f"keep-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process' id at the moment."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the process as it is now."""
        self.signals.append((time.time(), self.pid, number))
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def handles(self, number: int) -> bool:
        """Return True where the process handles signals: before that, SIGTERM ends it like any program."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:  # it died, and is started again
            return False
        caught = next((row for row in status.splitlines() if row.startswith("SigCgt:")), "SigCgt: 0")
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def stop(self, patience_s: float = 20) -> None:
        """End the process for good: SIGTERM, and SIGKILL for one that does not listen."""
        self._stopped.set()
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self.signal(signal.SIGKILL)
            self._thread.join(patience_s)

    def _launch(self) -> subprocess.Popen[bytes] | Forked:
        if self._command[:2] == [sys.executable, "-m"] and self._command[2] in ENTRY_POINTS:
            return Forked(self._command[2], self._command[3:], self._environment, self._log)
        with self._log.open("ab") as log:
            # They end with the test run, even with one that is killed.
            command = ["setpriv", "--pdeathsig", "KILL", *self._command]
            return subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            self.deaths.append(Death(time.time(), self.name, self._process.pid, code))
            if self._stopped.is_set():
                return
            self._process = self._launch()


class Fleet:
    """API, workers and keeper on one Redis and one object store; a context manager that returns when all are ready."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        failpoints: Mapping[str, Any],
        app: str = "penstock.api.app:from_settings",
        **settings: Any,
    ) -> None:
        """`app` is the API without failpoints."""
        self.folder = folder
        self._app = app
        self.port = free_port()
        self.hits = folder / "hits"
        self.hits.mkdir(parents=True)
        options = {"host": "127.0.0.1", "port": self.port, "secret": "of the chaos", "data": str(folder)} | settings
        known = {name: value for name, value in options.items() if name in Settings.model_fields}
        self.settings = load_settings(**known)
        self._workers = workers
        self._failpoints = failpoints
        self._environment = _environment(known)
        self.kept: list[Kept] = []
        #: Workers that a driver started.
        self.came: list[Any] = []
        #: The key for requests to the API, where it asks for one.
        self.key: str | None = None

    @property
    def url(self) -> str:
        """Return the API's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[Kept]:
        """The workers."""
        return [kept for kept in self.kept if kept.name.startswith("worker")]

    def one(self, name: str) -> Kept:
        """Return the process of this name."""
        return next(kept for kept in self.kept if kept.name == name)

    def hit(self, name: str) -> int:
        """Return how often a failpoint was hit."""
        return len(list(self.hits.glob(f"{name}.*")))

    def lives(self) -> dict[str, list[Span]]:
        """Return the times in which each worker, by its id, claimed jobs and was neither stopped nor asked to end."""
        return self._lives("live")

    def sweeping(self) -> list[Span]:
        """Return the times in which each worker and each keeper could sweep; they overlap."""
        return [span for spans in self._lives("sweeping").values() for span in spans]

    def _lives(self, what: str) -> dict[str, list[Span]]:
        folder = self.hits.with_name(what)
        found = {}
        for path in folder.iterdir() if folder.is_dir() else ():
            pid, since_s = path.read_text().split()
            left = folder.with_name("left") / path.name
            spans = self._life(int(pid), float(since_s))
            ends = [Span(float(left.read_text().split()[1]), math.inf)] if what == "live" and left.exists() else []
            found[path.name] = without(spans, ends)
        return found

    def _life(self, pid: int, since_s: float) -> list[Span]:
        processes = [*self.kept, *self.came]
        deaths = [death.at_s for each in processes for death in each.deaths if death.pid == pid]
        signals = sorted(
            [(at_s, number) for each in processes for at_s, to, number in each.signals if to == pid]
            + [(hit.stat().st_mtime, signal.SIGSTOP) for hit in self.hits.iterdir() if hit.read_text() == str(pid)]
        )
        # What a failpoint did to a process was a stop, or its death, which is among the deaths.
        ends = [at_s for at_s, number in signals if number in (signal.SIGTERM, signal.SIGKILL)]
        life = Span(since_s, min([*deaths, *ends, time.time()]))
        stops = [at_s for at_s, number in signals if number == signal.SIGSTOP]
        woken = [at_s for at_s, number in signals if number == signal.SIGCONT]
        return without(
            [life], [Span(at_s, min((each for each in woken if each > at_s), default=math.inf)) for at_s in stops]
        )

    def __enter__(self) -> Self:
        app = "tests.chaos.api_main:app" if self._failpoints.get("api") else self._app
        self._start("api", ["-m", "tests.chaos.api_main", app], "api")
        for number in range(self._workers):
            self._start(f"worker{number}", ["-m", "tests.chaos.worker_main"], f"worker{number}", "worker")
        self._start("keeper", ["-m", "tests.chaos.keeper_main"], "keeper")
        self.wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        stops = [threading.Thread(target=kept.stop) for kept in reversed(self.kept)]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()

    def add_keeper(self, name: str) -> None:
        """Start a further keeper."""
        self._start(name, ["-m", "tests.chaos.keeper_main"], "keeper")

    def wait_until_ready(self) -> None:
        """Return when the API answers and a worker serves the model."""
        ends = time.monotonic() + READY_S
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        with httpx2.Client(base_url=self.url, timeout=2, headers=headers) as client:
            while time.monotonic() < ends:
                with suppress(httpx2.HTTPError):
                    answer = client.get("/v1/models")
                    if answer.status_code == 200 and answer.json()["models"]:
                        return
                threading.Event().wait(0.05)  # nothing tells when a server begins to listen
        raise RuntimeError(f"the service was not ready in {READY_S} s\n{self.logs()}")

    def logs(self, last: int = 1500) -> str:
        """Return the last characters of each process's log."""
        return "\n".join(f"{log.name}:\n{log.read_text()[-last:]}" for log in self.folder.glob("*.log"))

    def _start(self, name: str, words: Sequence[str], *roles: str) -> None:
        command = [sys.executable, *words]
        self.kept.append(Kept(name, command, self.environment_of(*roles), self.folder / f"{name}.log"))

    def environment_of(self, *roles: str) -> dict[str, str]:
        """Return the variables of a process of these roles."""
        points: dict[str, Any] = {}
        for role in roles:
            points |= self._failpoints.get(role, {})
        return self._environment | {"CHAOS_FAILPOINTS": json.dumps(points), "CHAOS_HITS": str(self.hits)}


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    variables = {f"PENSTOCK_{name.upper()}": _text(value) for name, value in settings.items() if value is not None}
    return {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PENSTOCK_LOG_LEVEL": "warning", **variables}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
