from __future__ import annotations

from io import StringIO

import structlog

from penstock.observation import log
from penstock.observation.listening import MAX_BYTES, MAX_LINES, RecentLines


def told(recent: RecentLines, text: str, **fields: object) -> None:
    recent.keep(None, "info", {"event": text, "level": "info", **fields})


def test_lines_have_the_ids_of_their_job_and_model_and_no_secrets() -> None:
    recent = RecentLines()
    log.configure(stream=StringIO(), recent=recent)
    structlog.get_logger("x").warning("job.retried", job="acme/1", model="csmask", api_key="penstock_x", tries=2)
    [line] = recent.read()[1]
    assert (line.level, line.text) == ("warning", "job.retried api_key=[redacted] tries=2 job=acme/1 model=csmask")


def test_the_latest_lines_are_kept_and_all_are_counted() -> None:
    recent = RecentLines()
    for number in range(MAX_LINES + 5):
        told(recent, f"line {number}")
    count, lines = recent.read()
    assert (count, len(lines), lines[0].text, lines[-1].text) == (
        MAX_LINES + 5, MAX_LINES, "line 5", f"line {MAX_LINES + 4}",
    )  # fmt: skip


def test_long_lines_leave_room_for_fewer() -> None:
    recent = RecentLines()
    for number in range(100):
        told(recent, f"{number} " + "ä" * 1_000)
    _, lines = recent.read()
    assert sum(len(line.text.encode()) for line in lines) <= MAX_BYTES
    assert lines[-1].text.startswith("99 ")
    assert len(lines) == MAX_BYTES // 2_003
