"""Child processes that are kept running: started, watched, started again, and ended in order."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from penstock.errors import PenstockError
from penstock.log import plain
from penstock.valkey import last_line

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
#: A process that lived so long is well: its next end is a first one again.
WELL_AFTER_S = 60.0
#: How long the kernel may take to end what was killed.
KILL_S = 5.0
#: A log that is longer at a start is kept aside once, as `<name>.log.1`.
LOG_BYTES = 10_000_000
_LOOK_EVERY_S = 0.05
#: Of prctl(2).
_PR_SET_PDEATHSIG = 1

Say = Callable[[str, str], None]


class Kept(Protocol):
    """Something that can be started, watched and ended."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def log(self) -> Path:
        """Where it says what it does."""
        ...

    @property
    def stop_s(self) -> float:
        """How long it may take to end when it was asked to."""
        ...

    @property
    def pid(self) -> int:
        """Its process id, while it lives."""
        ...

    def start(self) -> None: ...
    def alive(self) -> bool: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Child:
    """A process of ours, in a session of its own so that the terminal's Ctrl-C does not reach it."""

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, ledger: Ledger, stop_s: float
    ) -> None:
        self.name = name
        self.log = log
        self.stop_s = stop_s
        self._command = list(command)
        self._env = dict(env)
        self._ledger = ledger
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        """Start it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        _put_aside(self.log)
        with self.log.open("ab") as out:
            self._process = psutil.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._ledger.note(self.name, self._process)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return 0 if self._process is None else int(self._process.pid)

    def terminate(self) -> None:
        """Ask for its end (SIGTERM)."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()


class Ledger:
    """Which processes were started, so that the next supervisor ends those that outlived this one.

    A process is told by its id and its start time together: ids are used again.
    """

    #: Start times read at different moments differ by this much when the clock was set.
    SAME_START_S = 2.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, float]] = {}

    def note(self, name: str, process: psutil.Process) -> None:
        """Write a process down."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._rows[name] = {"pid": process.pid, "started_s": process.create_time()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}")
        draft.write_text(json.dumps(self._rows))
        draft.replace(self._path)

    def forget(self) -> None:
        """Drop the record: nothing of it runs any more."""
        self._rows.clear()
        self._path.unlink(missing_ok=True)

    def end_stale(self, patience_s: float) -> list[str]:
        """End what an earlier supervisor left running, by SIGTERM and then SIGKILL; return the names."""
        stale = dict(self._stale())
        for process in stale.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, left = psutil.wait_procs(list(stale.values()), timeout=patience_s)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=patience_s)
        self.forget()
        return list(stale)

    def _stale(self) -> Iterator[tuple[str, psutil.Process]]:
        try:
            rows = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return
        for name, row in rows.items():
            with contextlib.suppress(psutil.NoSuchProcess, KeyError, TypeError):
                process = psutil.Process(int(row["pid"]))
                same = abs(process.create_time() - row["started_s"]) < self.SAME_START_S
                if same and process.status() != psutil.STATUS_ZOMBIE:
                    yield name, process


@dataclass
class _Watch:
    """What is known of one kept process."""

    kept: Kept
    started_at: float = 0.0
    failures: int = 0
    #: When it is started again; None while it runs.
    due_at: float | None = None
    seen_bytes: int = 0


@dataclass
class Supervisor:
    """Keeps processes running; ends them in the reverse order of their start."""

    #: Told of (name, sentence).
    say: Say
    clock: Callable[[], float] = time.monotonic
    _watches: list[_Watch] = field(default_factory=list)

    def start(self, kept: Kept) -> None:
        """Start a process and watch it from now on; `ConfigError` if it cannot be started at all."""
        watch = _Watch(kept, started_at=self.clock(), seen_bytes=_size(kept.log))
        kept.start()
        self._watches.append(watch)

    def tick(self) -> None:
        """Look at each process once: start again what ended, tell what it logged as an error."""
        for watch in self._watches:
            self._tell_errors(watch)
            if watch.due_at is not None:
                if self.clock() >= watch.due_at:
                    self._restart(watch)
            elif not watch.kept.alive():
                self._note_end(watch)

    def stop(self, *, hurry: Callable[[], bool]) -> bool:
        """End all, last started first, each given its time; `hurry` makes it short. True if all ended by themselves."""
        willing = True
        for watch in reversed(self._watches):
            if watch.kept.alive():
                willing = self._end(watch.kept, hurry) and willing
        return willing

    def _restart(self, watch: _Watch) -> None:
        watch.due_at, watch.started_at = None, self.clock()
        try:
            watch.kept.start()
        except (PenstockError, OSError) as error:
            self._put_off(watch, f"does not start: {error}")
        else:
            self.say(watch.kept.name, "runs again")

    def _note_end(self, watch: _Watch) -> None:
        lived_s = self.clock() - watch.started_at
        watch.failures = 0 if lived_s > WELL_AFTER_S else watch.failures
        self._put_off(watch, f"ended, having said last: {summary(watch.kept.log)}")

    def _put_off(self, watch: _Watch, why: str) -> None:
        pause = pause_s(watch.failures)
        watch.failures += 1
        watch.due_at = self.clock() + pause
        self.say(watch.kept.name, f"{why} (next start in {pause:g} s)")

    def _end(self, kept: Kept, hurry: Callable[[], bool]) -> bool:
        ends = self.clock() + kept.stop_s
        kept.terminate()
        while kept.alive():
            if hurry() or self.clock() > ends:
                self._kill(kept)
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def _kill(self, kept: Kept) -> None:
        self.say(kept.name, "killed")
        kept.kill()
        ends = self.clock() + KILL_S
        while kept.alive() and self.clock() < ends:
            time.sleep(_LOOK_EVERY_S)

    def _tell_errors(self, watch: _Watch) -> None:
        for line in _new_lines(watch):
            if (sentence := error_in(line)) is not None:
                self.say(watch.kept.name, sentence)


def end_with(parent: int) -> None:
    """Have the kernel end this process (SIGTERM) when its parent is gone, where it can; leave if that is so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures before: 0.5 s, doubling to 10 s."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures))


def error_in(line: str) -> str | None:
    """Return what a log line says if it is an error's, without ids and tracebacks."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if record.get("level") not in ("error", "critical"):
        return None
    detail = record.get("detail") or record.get("error") or record.get("problem") or ""
    return plain(f"{record.get('event')} {detail}".strip())


def summary(log: Path) -> str:
    """Return a log's last line, as a sentence where it is one of our records."""
    line = last_line(log)
    return error_in(line) or plain(line[:300])


def _new_lines(watch: _Watch) -> list[str]:
    size = _size(watch.kept.log)
    if size < watch.seen_bytes:  # it was put aside
        watch.seen_bytes = 0
    if size == watch.seen_bytes:
        return []
    with watch.kept.log.open("rb") as file:
        file.seek(watch.seen_bytes)
        whole, _, _ = file.read(1 << 20).rpartition(b"\n")
    watch.seen_bytes += len(whole) + (1 if whole else 0)
    return whole.decode(errors="replace").splitlines()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _put_aside(log: Path) -> None:
    if _size(log) > LOG_BYTES:
        os.replace(log, log.with_name(f"{log.name}.1"))  # noqa: PTH105  (what was there goes)
