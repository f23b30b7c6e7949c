"""The process that checks models: one for all records, within a limit, and its end is not the end of the check."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.checking import Checking, check_apart

#: Seconds that nothing here reaches.
PATIENCE_S = 120.0

#: Answers with its own process id, or does what the revision of a record says.
PROGRAM = """
import os, signal, socket, subprocess, sys
from penstock.functions.wire import Wire
wire = Wire(socket.socket(fileno=int(sys.argv[1])))
wire.receive()
while True:
    match wire.receive()["value"]["revision"]:
        case "hang": signal.pause()
        case "die": print("first line", file=sys.stderr); sys.exit("no network for you")
        case "close": wire.close(); os.kill(os.getpid(), signal.SIGTERM)
        case "child": subprocess.Popen(["sh", "-c", "exec sleep 1000 > FIFO"]); wire.send("checked", "")
        case _: wire.send("checked", str(os.getpid()))
"""


def record(revision: str, **options: object) -> Model:
    return Model(
        name="tiny", title="", runner="terratorch", processor="raster-segmentation", source="x", revision=revision,
        options=options,
    )  # fmt: skip


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checking]:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "checking_program.py").write_text(PROGRAM.replace("FIFO", str(tmp_path / "fifo")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = Checking(Path(sys.executable), "checking_program")
    yield found
    found.end()


def ask(rehearsal: Checking, revision: str, limit_s: float = PATIENCE_S) -> str:
    return rehearsal.ask(record(revision), limit_s)


def test_one_process_answers_for_all_records(rehearsal: Checking) -> None:
    first = ask(rehearsal, "a")
    assert int(first) != os.getpid()
    assert [ask(rehearsal, name) for name in "bc"] == [first, first]


def test_a_process_that_takes_too_long_is_killed_with_all_that_it_started(rehearsal: Checking, tmp_path: Path) -> None:
    first = ask(rehearsal, "a")
    assert ask(rehearsal, "child") == ""
    with (tmp_path / "fifo").open("rb") as held:
        said = ask(rehearsal, "hang", limit_s=0.01)
        assert held.read() == b""  # the end of the last process that can write
    assert said == (
        "the check of model 'tiny' did not end within 0.01 s, and its process was killed; "
        "options.check_timeout_s allows more"
    )
    assert ask(rehearsal, "a") not in {"", first}, "the next record has a process of its own"


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("die", "ended with the exit status 1; its last lines: first line | no network for you"),
        ("close", "was ended by SIGTERM"),
    ],
)
def test_a_process_that_dies_is_a_problem_of_its_record_alone(way: str, sentence: str, rehearsal: Checking) -> None:
    first = ask(rehearsal, "a")
    assert sentence in ask(rehearsal, way)
    assert ask(rehearsal, "a") not in {"", first}


def test_the_end_leaves_no_process(rehearsal: Checking, tmp_path: Path) -> None:
    ask(rehearsal, "child")
    with (tmp_path / "fifo").open("rb") as held:
        rehearsal.end()
        assert held.read() == b""


@pytest.mark.parametrize("limit", [0, -1, "long", True])
def test_a_limit_that_is_no_number_of_seconds_is_refused(limit: object) -> None:
    with pytest.raises(ModelUnavailable, match=r"options\.check_timeout_s is .*: give a number of seconds above 0"):
        check_apart(record("a", check_timeout_s=limit))
