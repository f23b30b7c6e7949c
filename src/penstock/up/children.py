"""Supervised child processes: started, watched, restarted, and ended in order."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from penstock.errors import PenstockError
from penstock.observation.listening import error_of, place_of
from penstock.observation.log import plain
from penstock.up.processes import KeptProcess
from penstock.up.valkey import last_line

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
#: Seconds after which a process counts as healthy: a later end is treated as its first failure.
WELL_AFTER_S = 60.0
#: Seconds that the kernel has to end a killed process.
KILL_S = 5.0
#: Bytes of a log above which its lines move to `<name>.log.1`.
LOG_BYTES = 10_000_000
POLL_EVERY_S = 0.05
#: Name of the record of started processes, in the data folder.
RECORD = "children.json"
#: Constant of prctl(2).
_PR_SET_PDEATHSIG = 1

Say = Callable[[str, str], None]


class Child(KeptProcess):
    """A child process in a new session: Ctrl-C in the terminal does not reach it."""

    _stdin = subprocess.DEVNULL

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, ledger: Ledger, stop_s: float,
        stage: str | None = None, descriptors: Sequence[int] = (),
        warm: Callable[[], psutil.Popen | None] = lambda: None,
    ) -> None:  # fmt: skip
        """`descriptors` are files that the process inherits. `warm` returns a process that stands in for a new one."""
        self.name = name
        self.log = log
        self.stop_s = stop_s
        self.stage = stage
        self._descriptors = tuple(descriptors)
        self._warm = warm
        self._command = list(command)
        self._env = dict(env)
        self._ledger = ledger

    def start(self) -> None:
        """Start the process."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._process = self._warm() or psutil.Popen(
                self._command, env=self._env, stdin=self._stdin, stdout=out, stderr=out, start_new_session=True,
                pass_fds=self._descriptors,
            )  # fmt: skip
        self._ledger.note(self.name, self._process)

    def alive(self) -> bool:
        """Return True while the process runs."""
        return isinstance(self._process, psutil.Popen) and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.poll() if isinstance(self._process, psutil.Popen) else None

    def note_failures(self, failures: int, why: str) -> None:
        """Record the failures in the ledger."""
        self._ledger.note_failures(self.name, failures, why)


class Ledger:
    """The record of started processes, so that the next supervisor ends those that outlived this one.

    A process is identified by its id and its start time together: ids are reused.
    """

    #: Largest difference in seconds between two readings of one start time: the clock may have been set.
    SAME_START_S = 2.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, Any]] = {}

    def note(self, name: str, process: psutil.Process) -> None:
        """Add a process to the record."""
        with contextlib.suppress(psutil.NoSuchProcess):
            kept = {key: value for key, value in self._rows.get(name, {}).items() if key in ("failures", "why")}
            self._rows[name] = {"pid": process.pid, "started_s": process.create_time(), **kept}
        self._write()

    def drop(self, name: str) -> None:
        """Remove a process from the record: it has another name now."""
        self._rows.pop(name, None)
        self._write()

    def note_failures(self, name: str, failures: int, why: str) -> None:
        """Record how often a process ended right after its start, and the last reason; 0 clears that."""
        if not failures and "failures" not in self._rows.get(name, {}):
            return
        row = {key: value for key, value in self._rows.get(name, {}).items() if key not in ("failures", "why")}
        self._rows[name] = {**row, "failures": failures, "why": why} if failures else row
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}")
        partial.write_text(json.dumps(self._rows))
        partial.replace(self._path)

    def forget(self) -> None:
        """Delete the record: none of its processes runs any more."""
        self._rows.clear()
        self._path.unlink(missing_ok=True)

    def end_stale(self, patience_s: float) -> list[str]:
        """End the processes of an earlier supervisor, by SIGTERM and then SIGKILL; return their names."""
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


@dataclass(frozen=True, slots=True)
class Failing:
    """A process that ends right after every start: the number of failures in a row, and the last reason."""

    name: str
    failures: int
    why: str


def failing(path: Path) -> tuple[Failing, ...]:
    """Return the processes that keep ending, from the record of a supervisor; none without one."""
    try:
        rows = json.loads(path.read_text())
        found = [Failing(name, int(row.get("failures", 0)), str(row.get("why", ""))) for name, row in rows.items()]
    except (OSError, ValueError, AttributeError, TypeError):
        return ()
    return tuple(each for each in found if each.failures)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process: its exit code, its age in seconds, and the last line of its log."""

    code: int | None
    lived_s: float
    last_line: str

    @property
    def why(self) -> str:
        """A sentence for the operator."""
        how = "ended"
        if self.code is not None and self.code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-self.code).name}"
        return f"{how}; last log line: {self.last_line}"


@dataclass
class _Supervised:
    """The state of one supervised process."""

    kept: KeptProcess
    #: Called at the end of a process that is not started again; None = it is.
    on_end: Callable[[End], None] | None = None
    started_at: float = 0.0
    failures: int = 0
    #: True once the process has lived for `WELL_AFTER_S` since its start.
    well: bool = False
    #: Time of the next start; None while the process runs.
    due_at: float | None = None
    seen_bytes: int = 0


@dataclass
class Supervisor:
    """Keeps processes running; ends them in the reverse order of their start, the processes of a stage together."""

    #: Receives messages as (name, sentence).
    say: Say
    clock: Callable[[], float] = time.monotonic
    _watches: list[_Supervised] = field(default_factory=list)

    def start(self, kept: KeptProcess, *, on_end: Callable[[End], None] | None = None) -> None:
        """Start a process and supervise it; `ConfigError` if it cannot be started at all.

        With `on_end` the process is not started again: `on_end` is called at its end.
        """
        watch = _Supervised(kept, on_end, started_at=self.clock(), seen_bytes=_size(kept.log))
        kept.start()
        self._watches.append(watch)

    def tick(self) -> None:
        """Check each process once: restart ended ones, report logged errors."""
        for watch in list(self._watches):
            self._tell_errors(watch)
            if _size(watch.kept.log) > LOG_BYTES:
                _rotate(watch.kept.log)
                watch.seen_bytes = 0
            if watch.due_at is not None:
                if self.clock() >= watch.due_at:
                    self._restart(watch)
            elif not watch.kept.alive():
                self._note_end(watch)
            elif not watch.well and self.clock() - watch.started_at > WELL_AFTER_S:
                watch.well, watch.failures = True, 0
                watch.kept.note_failures(0, "")

    def stop(self, *, hurry: Callable[[], bool]) -> bool:
        """End all, last started first, each within its time; `hurry` shortens it. True if all ended by themselves."""
        willing = True
        stages = groupby(reversed(self._watches), key=lambda watch: watch.kept.stage or id(watch))
        for stage in [[watch.kept for watch in watches if watch.kept.alive()] for _, watches in stages]:
            for kept in stage:
                kept.terminate()
            for kept in stage:
                willing = self._end(kept, hurry) and willing
        return willing

    def _restart(self, watch: _Supervised) -> None:
        watch.due_at, watch.started_at, watch.well = None, self.clock(), False
        try:
            watch.kept.start()
        except (PenstockError, OSError) as error:
            self._put_off(watch, f"does not start: {error}")
        else:
            self.say(watch.kept.name, "runs again")

    def _note_end(self, watch: _Supervised) -> None:
        end = End(watch.kept.exit_code(), self.clock() - watch.started_at, summary(watch.kept.log))
        if watch.on_end is not None:
            self._watches.remove(watch)
            watch.on_end(end)
            return
        watch.failures = 0 if end.lived_s > WELL_AFTER_S else watch.failures
        if watch.kept.exit_code() == 0:
            watch.due_at = self.clock() + FIRST_PAUSE_S
            self.say(watch.kept.name, f"left by itself (next start in {FIRST_PAUSE_S:g} s)")
            return
        self._put_off(watch, end.why)

    def _put_off(self, watch: _Supervised, why: str) -> None:
        pause = pause_s(watch.failures)
        watch.failures += 1
        watch.due_at = self.clock() + pause
        watch.kept.note_failures(watch.failures, why)
        self.say(watch.kept.name, f"{why} (next start in {pause:g} s)")

    def _end(self, kept: KeptProcess, hurry: Callable[[], bool]) -> bool:
        ends = self.clock() + kept.stop_s
        while kept.alive():
            if hurry() or self.clock() > ends:
                self._kill(kept)
                return False
            time.sleep(POLL_EVERY_S)
        return True

    def _kill(self, kept: KeptProcess) -> None:
        self.say(kept.name, "killed")
        kept.kill()
        ends = self.clock() + KILL_S
        while kept.alive() and self.clock() < ends:
            time.sleep(POLL_EVERY_S)

    def _tell_errors(self, watch: _Supervised) -> None:
        for line in _new_lines(watch):
            if (sentence := error_in(line)) is not None:
                self.say(watch.kept.name, sentence)


def end_with(parent: int) -> None:
    """Have the kernel end this process (SIGTERM) when its parent ends, if possible; exit if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def pause_s(failures: int) -> float:
    """Return the pause before the next start after so many failures: 0.5 s, doubling up to 10 s."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures))


def error_in(line: str) -> str | None:
    """Return a log line of level error as a sentence: event, detail or exception with its place, model and job.

    None for other lines.
    """
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if record.get("level") not in ("error", "critical"):
        return None
    detail = record.get("detail") or record.get("error") or record.get("problem") or ""
    traceback = str(record.get("exception") or record.get("traceback") or "")
    raised = " at ".join(filter(None, (error_of(traceback), place_of(traceback))))
    told = ": ".join(filter(None, (_words(str(record.get("event"))), str(detail), raised)))
    ids = ", ".join(f"{name} {record[name]}" for name in ("model", "job") if record.get(name))
    return plain(f"{told} ({ids})" if ids else told)


#: Texts of events, for the operator who reads the output of `penstock up`.
_WORDS = {
    "worker.unhealthy": "worker ended itself",
    "worker.idle": "worker left: it had no job",
    "worker.max_jobs": "worker left: it had claimed its number of jobs",
    "worker.draining": "worker drains: it claims no more jobs",
    "worker.stuck": "worker ended with jobs that did not stop; they went back to the queue",
}
_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")


def _words(event: str) -> str:
    """Return the name of an event in words; a sentence stays as it is."""
    if event in _WORDS:
        return _WORDS[event]
    return event.replace(".", " ").replace("_", " ") if _EVENT.fullmatch(event) else event


def last_record(log: Path, events: Sequence[str]) -> dict[str, Any] | None:
    """Return the latest record with one of these events, of the last 64 kB of a log; None if there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, _size(log) - 65_536))
        for line in reversed(file.read().splitlines()):
            with contextlib.suppress(ValueError, AttributeError):
                record: dict[str, Any] = json.loads(line)
                if record.get("event") in events:
                    return record
    return None


def summary(log: Path) -> str:
    """Return a log's last line; an event without its ids, and an error with its detail."""
    line = last_line(log)
    return error_in(line) or plain(_event_in(line)[:300])


def _event_in(line: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return _words(str(json.loads(line).get("event") or line))
    return line


def _new_lines(watch: _Supervised) -> list[str]:
    size = _size(watch.kept.log)
    if size < watch.seen_bytes:  # the log was moved
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


def _rotate(log: Path) -> None:
    """Copy a log to `<name>.log.1` and empty it: its process appends to the same file.

    Lines that the process writes between the copy and the truncation are lost. On a full disk all lines are lost.
    """
    with contextlib.suppress(OSError), log.open("rb") as lines, log.with_name(f"{log.name}.1").open("wb") as aside:
        shutil.copyfileobj(lines, aside)
    with contextlib.suppress(OSError):
        os.truncate(log, 0)
