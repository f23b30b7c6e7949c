"""Keeping processes running, on a clock of its own and with processes that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from penstock.errors import ConfigError
from penstock.up import children
from penstock.up.children import Child, End, Failing, Ledger, Supervisor, error_in, failing, pause_s, summary


@dataclass
class Fake:
    """A process that lives until it is told, or made, to end."""

    log: Path
    name: str = "worker"
    stop_s: float = 5.0
    pid: int = 1
    lives: bool = False
    stubborn: bool = False
    broken: bool = False
    code: int | None = 1
    stage: str | None = None
    failures: int = 0
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        if self.broken:
            raise ConfigError("its folder is gone")
        self.calls.append("start")
        self.lives = True

    def alive(self) -> bool:
        return self.lives

    def exit_code(self) -> int | None:
        return self.code

    def note_failures(self, failures: int, _why: str) -> None:
        self.failures = failures

    def terminate(self) -> None:
        self.calls.append("terminate")
        self.lives = self.stubborn

    def kill(self) -> None:
        self.calls.append("kill")
        self.lives = False


class House:
    """A supervisor of fakes, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.folder = folder
        self.supervisor = Supervisor(lambda who, what: self.said.append(f"{who}: {what}"), clock=lambda: self.now)

    def fake(self, name: str = "worker", **options: bool) -> Fake:
        fake = Fake(self.folder / f"{name}.log", name=name, **options)
        self.supervisor.start(fake)
        return fake

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.supervisor.tick()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_what_ends_is_started_again_after_a_pause(house: House) -> None:
    worker = house.fake()
    worker.log.write_text("ImportError: no module named nothing\n")
    worker.lives = False

    house.pass_time(0)
    assert not worker.lives
    assert house.said == ["worker: ended; last log line: ImportError: no module named nothing (next start in 0.5 s)"]
    house.pass_time(0.4)
    assert not worker.lives
    house.pass_time(0.1)
    assert worker.lives


@pytest.mark.parametrize(
    ("code", "line", "why"),
    [
        (1, "ImportError: no module", "ended; last log line: ImportError: no module"),
        (-9, '{"event": "worker.started", "level": "info"}', "was ended by SIGKILL; last log line: worker started"),
        (-99, "[]", "ended; last log line: []"),
        (None, '{"event": "x", "level": "error", "detail": "y"}', "ended; last log line: x: y"),
    ],
)
def test_an_end_says_the_signal_and_the_last_event(tmp_path: Path, code: int | None, line: str, why: str) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"{line}\n")
    assert End(code, 1.0, summary(log)).why == why


def test_pauses_grow_while_it_keeps_ending_and_shrink_when_it_was_well(house: House) -> None:
    worker = house.fake()

    def end_and_wait() -> float:
        worker.lives, begun = False, house.now
        house.pass_time(0)
        while not worker.lives:
            house.pass_time(0.25)
        return house.now - begun

    assert [end_and_wait() for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    house.pass_time(61)
    assert end_and_wait() == 0.5


def test_a_process_that_exits_with_zero_has_not_failed(house: House) -> None:
    worker = house.fake()
    for _ in range(3):
        worker.lives, worker.code = False, 0
        house.pass_time(0)
        assert (house.said[-1], worker.failures) == ("worker: left by itself (next start in 0.5 s)", 0)
        house.pass_time(0.5)
        assert worker.lives


def test_failures_are_noted_until_the_process_has_lived_for_a_while(house: House) -> None:
    worker = house.fake()
    worker.lives = False
    house.pass_time(0)
    house.pass_time(0.5)
    assert (worker.lives, worker.failures) == (True, 1)
    house.pass_time(60)
    assert worker.failures == 1
    house.pass_time(1)
    assert worker.failures == 0


def test_a_process_with_an_own_end_is_not_started_again(house: House) -> None:
    ends: list[End] = []
    worker = Fake(house.folder / "worker.log")
    house.supervisor.start(worker, on_end=ends.append)
    house.pass_time(3)
    worker.log.write_text("no such library\n")
    worker.lives = False
    house.pass_time(1)
    house.pass_time(60)
    assert (ends, worker.calls) == ([End(1, 4.0, "no such library")], ["start"])


def test_processes_of_one_stage_are_asked_to_end_at_once(house: House) -> None:
    order: list[str] = []

    class Ordered(Fake):
        def terminate(self) -> None:
            order.append(f"ask {self.name}")

        def alive(self) -> bool:
            if self.lives and order and len(order) >= 2:
                order.append(f"end {self.name}")
                self.lives = False
            return self.lives

    for name, stage in (("api", None), ("worker", "worker"), ("worker-2", "worker")):
        house.supervisor.start(Ordered(house.folder / f"{name}.log", name=name, stage=stage))

    assert house.supervisor.stop(hurry=lambda: False)
    assert order[:2] == ["ask worker-2", "ask worker"]
    assert order.index("ask api") > order.index("end worker")


def test_the_record_says_how_often_and_why_a_process_failed(tmp_path: Path, sleeper: psutil.Process) -> None:
    path = tmp_path / "children.json"
    ledger = Ledger(path)
    ledger.note("worker", sleeper)
    assert failing(path) == ()
    ledger.note_failures("worker", 2, "no such library")
    ledger.note("worker", sleeper)  # it is started again
    assert failing(path) == (Failing("worker", 2, "no such library"),)
    ledger.note_failures("worker", 0, "")
    assert failing(path) == failing(tmp_path / "none") == ()


def test_a_restart_that_fails_is_tried_again(house: House) -> None:
    worker = house.fake()
    worker.lives, worker.broken = False, True
    house.pass_time(0)
    house.pass_time(0.5)
    assert "does not start: its folder is gone" in house.said[-1]

    worker.broken = False
    house.pass_time(1)
    assert worker.lives


def test_a_first_start_that_fails_is_an_error(house: House) -> None:
    with pytest.raises(ConfigError):
        house.fake(broken=True)


def test_the_last_started_ends_first(house: House) -> None:
    order: list[str] = []

    class Ordered(Fake):
        def terminate(self) -> None:
            order.append(self.name)
            super().terminate()

    for name in ("valkey", "api", "worker"):
        house.supervisor.start(Ordered(house.folder / f"{name}.log", name=name))

    assert house.supervisor.stop(hurry=lambda: False)
    assert order == ["worker", "api", "valkey"]


def test_whoever_does_not_end_in_time_or_when_it_is_urgent_is_killed(house: House) -> None:
    slow = house.fake(stubborn=True)

    assert not house.supervisor.stop(hurry=lambda: True)
    assert slow.calls == ["start", "terminate", "kill"]


def test_errors_in_a_log_are_told_once(house: House) -> None:
    worker = house.fake()
    lines = [{"level": "info", "event": "a"}, {"level": "error", "event": "fetch.failed", "detail": "no route"}]
    worker.log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"level": "error", "eve')

    house.pass_time(0)
    house.pass_time(0)
    assert house.said == ["worker: fetch failed: no route"]

    with worker.log.open("a") as log:
        log.write('nt": "engine.lost"}\n')
    house.pass_time(0)
    assert house.said[1:] == ["worker: engine lost"]


def test_the_log_of_a_running_process_is_put_aside(tmp_path: Path) -> None:
    line = b"x" * 999 + b"\n"
    lines = children.LOG_BYTES // len(line) + 1
    log, gate, said = tmp_path / "logs" / "a.log", tmp_path / "gate", list[str]()
    os.mkfifo(gate)
    code = (
        f"sys.stdout.buffer.write({line!r} * {lines}); sys.stdout.flush(); open({str(gate)!r}).read(); print('after')"
    )
    command = [sys.executable, "-c", f"import sys; {code}"]
    child = Child("a", command, env=dict(os.environ), log=log, ledger=Ledger(tmp_path / "ledger"), stop_s=1)
    supervisor = Supervisor(lambda name, what: said.append(f"{name}: {what}"))
    supervisor.start(child)
    try:
        while _size(log) < lines * len(line):
            assert child.alive()
        supervisor.tick()
        assert (log.with_name("a.log.1").read_bytes(), log.read_bytes(), said) == (line * lines, b"", [])
        gate.write_text("")
        while not log.read_bytes():
            assert child.alive() or log.read_bytes()
        assert log.read_bytes() == b"after\n"
    finally:
        child.kill()
        while child.alive():
            pass


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_only_errors_of_ours_are_sentences() -> None:
    assert error_in("Traceback (most recent call last):") is None
    assert error_in('{"level": "warning", "event": "x"}') is None
    assert error_in("{broken") is None


def test_an_error_of_a_model_names_the_place_the_model_and_the_job() -> None:
    trace = "Traceback (most recent call last):\n  File \"/srv/mine.py\", line 12, in prepare\nKeyError: 'b'"
    record = {"level": "error", "event": "processor.failed", "exception": trace, "model": "mine", "job": "default/1"}
    said = "processor failed: KeyError: 'b' at mine.py:12 in prepare (model mine, job default/1)"
    assert error_in(json.dumps(record)) == said
    assert error_in('{"level": "error", "event": "worker.full", "detail": "no space"}') == "worker full: no space"


def test_pauses_end_at_ten_seconds() -> None:
    assert [pause_s(n) for n in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait(10)


def test_what_an_earlier_supervisor_left_is_ended(tmp_path: Path, sleeper: psutil.Process) -> None:
    Ledger(tmp_path / "children.json").note("worker", sleeper)

    assert Ledger(tmp_path / "children.json").end_stale(10) == ["worker"]

    assert not psutil.pid_exists(sleeper.pid)
    assert not (tmp_path / "children.json").exists()


def test_another_process_under_the_same_id_is_left_alone(tmp_path: Path, sleeper: psutil.Process) -> None:
    row = {"pid": sleeper.pid, "started_s": sleeper.create_time() - 100}
    (tmp_path / "children.json").write_text(json.dumps({"worker": row}))

    assert Ledger(tmp_path / "children.json").end_stale(10) == []
    assert sleeper.is_running()


@pytest.mark.parametrize("text", ["", "{", "{}", '{"worker": {}}', '{"worker": {"pid": 999999999, "started_s": 0}}'])
def test_a_record_that_says_nothing_ends_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "children.json").write_text(text)

    assert Ledger(tmp_path / "children.json").end_stale(1) == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"level": "error", "event": "worker.unhealthy", "detail": "it had claimed nothing for 60 s"},
            "worker ended itself: it had claimed nothing for 60 s",
        ),
        ({"level": "info", "event": "worker.idle"}, "worker left: it had no job"),
        ({"level": "info", "event": "attempt.ended"}, "attempt ended"),
        ({"level": "info", "event": "Started server process [1]"}, "Started server process [1]"),
    ],
)
def test_an_event_of_a_log_is_shown_in_words(tmp_path: Path, record: dict[str, str], words: str) -> None:
    (log := tmp_path / "worker.log").write_text(json.dumps(record) + "\n")
    assert summary(log) == words
