"""Jobs and events, as a person and as a program reads them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.display import (
    clock,
    fitted,
    moment,
    packed,
    show_estimates,
    show_event,
    show_job,
    show_rows,
    words,
)
from penstock.cli.progress import following, times
from penstock.client.answers import Event, Job
from penstock.client.decoding import read
from penstock.client.estimates import Estimate

AT = datetime(2026, 11, 21, 0, 4, 35, 579000, UTC)
REPORT = {"code": "media_unreadable", "title": "Title", "detail": "it is no raster", "retryable": False}


def test_a_program_reads_times_as_the_api_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_event(Event("1-0", "job.started", AT, {"attempt": 1}), as_json=True)

    assert json.loads(capsys.readouterr().out)["at"] == "2026-11-21T00:04:35.579000Z"


def test_an_event_names_its_error_and_its_times() -> None:
    assert words({"attempt": 1, "error": {**REPORT, "errors": []}, "empty": {}}) == (
        "attempt 1  media_unreadable: it is no raster"
    )
    assert (
        words({"number": 1, "at_s": AT.timestamp(), "note": "HTTP 204"}) == f"number 1  at {clock(AT)}  note HTTP 204"
    )


def test_a_time_is_the_same_however_it_came() -> None:
    assert clock(AT) == clock(AT.isoformat()) == clock(AT.timestamp())
    assert re.fullmatch(r"\d\d:\d\d:35\.57", clock(AT))
    assert clock(None) == ""


def test_a_failed_job_says_each_sentence_once(capsys: pytest.CaptureFixture[str]) -> None:
    issues = [{"pointer": "/input/scene", "detail": "it is no raster"}, {"pointer": "/input/mask", "detail": "missing"}]
    job = {
        "id": "1", "model": "m", "status": "failed", "created_at": AT.isoformat(), "metadata": {"a": "b"},
        "error": {**REPORT, "errors": issues},
    }  # fmt: skip

    show_job(read(Job, job), as_json=False)

    said = capsys.readouterr()
    assert said.err == "media_unreadable: it is no raster (/input/scene; /input/mask: missing)\n"
    assert said.out == "1  m  failed  a=b\n"


def test_a_job_of_a_chain_names_the_jobs_before_and_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "id": "1", "model": "m", "status": "queued", "phase": "waiting", "created_at": AT.isoformat(), "after": ["a"],
        "followers": [str(number) for number in range(7)],
        "progress": {"done": 0, "total": None, "unit": "prompts", "message": "waits for job a"},
    }  # fmt: skip

    show_job(read(Job, job), as_json=False)

    lines = capsys.readouterr().out.splitlines()
    assert lines == ["1  m  queued  waiting  waits for job a", "  after a", "  followed by 0 1 2 3 4 and 2 more"]


def test_an_estimate_tells_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    interval = {"low": 1.234567, "high": 4.0}
    known = {"media_bytes": 1234, "device_seconds": interval, "wait_seconds": 7.6}
    price = {**interval, "currency": "CHF"}
    show_estimates([read(Estimate, {"model": "m", "queue": "q", **known, "price": price})])
    show_estimates([read(Estimate, {"model": "m", "queue": "q", "model_problem": "no worker serves this queue"})])

    assert capsys.readouterr().out.splitlines() == [
        "m  would be accepted in queue q", "  media           1,234 bytes", "  device seconds  1.23 to 4 s",
        "  begins in       about 8 s", "  price           1.23 to 4 CHF",
        "m  would be accepted in queue q", "  device seconds  unknown: no job of the model was measured yet",
        "  begins in       unknown", "  waits: no worker serves this queue",
    ]  # fmt: skip


def told(*jobs: dict[str, Any]) -> list[str]:
    file = StringIO()
    common = {"id": "1", "model": "m", "created_at": AT.isoformat()}
    with following(Console(file=file)) as take:
        for job in jobs:
            take(read(Job, {**common, **job}))
    return file.getvalue().splitlines()


def test_a_pipe_gets_no_progress_but_what_was_not_expected() -> None:
    attempts = [
        {"number": number, "started_at": AT.isoformat(), "outcome": outcome}
        for number, outcome in ((1, "released"), (1, "lost"), (2, None))
    ]
    assert told(
        {"status": "queued", "model_problem": "no weights"},
        {"status": "running", "phase": "fetching", "progress": {"done": 0, "total": None}, "attempts": attempts[:1]},
        {"status": "running", "phase": "inferring", "progress": {"done": 1, "total": 3}, "attempts": attempts},
        {"status": "failed", "attempts": [*attempts[:2], {**attempts[2], "outcome": "failed"}]},
    ) == ["it cannot run at the moment: no weights", "attempt 1 released", "attempt 1 lost"]


@pytest.mark.parametrize(
    ("elapsed_s", "left_s", "sentence"),
    [
        (3.9, 12.0, "0:03 elapsed, 0:12 left"),
        (3.0, None, "0:03 elapsed"),
        (75.0, 0.0, "1:15 elapsed"),
        (3725.0, 61.0, "1:02:05 elapsed, 1:01 left"),
    ],
)
def test_the_times_of_a_job_say_what_they_are(elapsed_s: float, left_s: float | None, sentence: str) -> None:
    assert times(elapsed_s, left_s) == sentence


JOB = ("9944cdd0-c87c-5c88-81f0-38f7579315d6", "csmask", "succeeded", "11-24 14:58", "12/144 tiles", "delivered")
COLUMNS = ("job", "model", "status", "created", "progress", "webhooks")


@pytest.mark.parametrize(
    ("width", "rows", "kept"),
    [
        (80, [JOB], ["job", "model", "status", "created"]),
        (80, [(*JOB[:4], "1/1 tiles", "")], ["job", "model", "status", "created", "progress"]),
        (80, [(*JOB[:4], "", "")], ["job", "model", "status", "created"]),
        (120, [JOB], list(COLUMNS)),
        (80, [(JOB[0], "a-model-with-a-very-long-name-of-its-own", *JOB[2:])], ["job", "model", "status", "created"]),
    ],
)
def test_each_row_of_a_list_is_one_line_of_the_terminal(width: int, rows: list[Any], kept: list[str]) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(fitted(console, COLUMNS, rows, omit=("webhooks", "progress")))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == kept
    assert len(lines) == 1 + len(rows)
    assert max(map(len, lines)) <= width
    assert all(part in lines[1] for part in (JOB[0], "succeeded", "11-24 14:58"))


def test_a_list_in_a_file_has_all_columns() -> None:
    console = Console(file=StringIO(), width=10_000, color_system=None)
    console.print(fitted(console, COLUMNS, [(*JOB[:4], "", "")], omit=("webhooks", "progress")))
    assert console.file.getvalue().split()[:6] == list(COLUMNS)  # type: ignore[attr-defined]


MODELS = ("model", "title", "files", "parameters", "problem")
WEATHER = ("weather, sky", "Clouds over fields and coasts", "scene, sidecar", "outputs, radiometry, mask, mosaic",
           "the file weights.onnx is missing: put it beside the catalogue, or name its address")  # fmt: skip


def test_a_model_and_its_problem_can_be_read_on_80_columns() -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None, soft_wrap=True)
    rows = [WEATHER, ("fine", "", "", "", "")]
    show_rows(console, MODELS, rows, omit=("parameters", "files", "title"), below="problem")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines[:3]] == ["model", "weather,", "fine"]
    assert lines[0].split() == ["model", "title", "files"]
    assert max(map(len, lines)) <= 80
    assert " ".join(line.strip() for line in lines[3:]) == f"weather, sky: {WEATHER[-1]}"


def test_a_pipe_gets_a_model_and_its_problem_in_one_line() -> None:
    console = Console(file=StringIO(), width=10_000, color_system=None)
    show_rows(console, MODELS, [WEATHER], omit=("parameters", "files", "title"), below="problem")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 2
    assert all(cell in lines[1] for cell in WEATHER)


def test_a_date_is_shown_with_each_time() -> None:
    assert re.fullmatch(r"2026-11-2\d \d\d:\d\d:35", moment(AT))
    assert re.fullmatch(r"11-2\d \d\d:\d\d", moment(AT, wide=False))


def test_parts_fill_lines_of_a_width_and_are_never_cut() -> None:
    assert packed(["id", "csmask", "queued"], 80) == ["id  csmask  queued"]
    assert packed(["id", "csmask", "a=" + "b" * 9, "c=d"], 12) == ["id  csmask", "  a=bbbbbbbbb", "  c=d"]
    assert packed(["id", "a=b", "c=d"], 10) == ["id  a=b", "  c=d"]
