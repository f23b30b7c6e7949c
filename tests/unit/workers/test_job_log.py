"""The lines of an attempt: bounded, in order, and read from a file that is not trusted."""

from __future__ import annotations

import os

import pytest

from penstock.workers.job_log import FIRST_BYTES, LAST_BYTES, MAX_FILE_BYTES, AttemptLog, LineFile


def said(log: AttemptLog, *, last: bool = True) -> list[str]:
    part = log.next_part(last=last)
    log.stored()
    return [] if part is None else [line.text for line in part.lines]


def test_the_first_and_the_latest_lines_are_kept_and_those_between_counted() -> None:
    log = AttemptLog()
    for number in range(10_000):
        log.hear_runner("info", f"line {number:05d}")
    first = log.next_part(last=False)
    assert first is not None
    assert (first.number, first.cut) == (1, 0)
    log.stored()
    assert log.next_part(last=False) is None
    last = log.next_part(last=True)
    assert last is not None
    assert last.number == 2
    assert len(first.lines) + last.cut + len(last.lines) == 10_000
    assert (first.lines[0].text, last.lines[-1].text) == ("line 00000", "line 09999")
    assert sum(line.size_bytes for line in first.lines) <= FIRST_BYTES
    assert sum(line.size_bytes for line in last.lines) <= LAST_BYTES


def test_a_part_that_was_not_stored_is_the_same_again() -> None:
    log = AttemptLog()
    log.hear_runner("info", "one")
    first = log.next_part(last=False)
    log.hear_runner("info", "two")
    assert log.next_part(last=True) is first
    log.stored()
    assert said(log) == ["two"]


def memory_of(log: AttemptLog) -> int:
    descriptor = log.open_memory()
    assert descriptor is not None
    return descriptor


def test_lines_of_a_process_are_read_as_they_come_and_half_of_one_waits() -> None:
    log = AttemptLog()
    memory = memory_of(log)
    line_file = LineFile(os.dup(memory))
    line_file("warning", "whole")
    assert said(log, last=False) == ["whole"]
    at = len(os.pread(memory, 1000, 0).rstrip(b"\0"))
    os.pwrite(memory, b'[1, "info", "ha', at)
    assert said(log, last=False) == []
    os.pwrite(memory, b'lf"]\n', at + 15)
    part = log.next_part(last=True)
    assert part is not None
    [line] = part.lines
    assert (line.text, line.source, line.level) == ("half", "processor", "info")
    assert line.at_s > 1_700_000_000  # a time from far away is not believed
    line_file.close()
    log.close()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (b"no json", "no json"),
        (b"[1]", "[1]"),
        (b'[1, {"a": 1}, null]', '[1, {"a": 1}, null]'),
        (b'["x", "info", "said"]', "said"),
        (b"[" * 100_000, "[" * 2000 + "…"),
        (b"\xff\xfe", "��"),
        (b'[1, "info", "key penstock_abcdefghij0123_SECRET0"]', "key penstock_abcdefghij0123_[redacted]"),
    ],
)
def test_a_process_may_write_anything(row: bytes, text: str) -> None:
    log = AttemptLog()
    os.pwrite(memory_of(log), row + b"\n", 0)
    assert said(log) == [text]
    log.close()
    assert said(log) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the size is fixed on Linux only")
def test_a_process_can_neither_grow_nor_shrink_its_memory() -> None:
    log = AttemptLog()
    memory = memory_of(log)
    for act in (
        lambda: os.truncate(memory, 4 * MAX_FILE_BYTES),
        lambda: os.truncate(memory, 0),
        lambda: os.pwrite(memory, b"x", MAX_FILE_BYTES),
    ):
        with pytest.raises(PermissionError):
            act()
    os.pwrite(memory, b"x" * MAX_FILE_BYTES, 0)  # one line without an end
    assert said(log) == []
    log.close()


def test_a_full_memory_takes_no_more_lines() -> None:
    log = AttemptLog()
    line_file = LineFile(os.dup(memory_of(log)))
    for _ in range(MAX_FILE_BYTES // 1000 + 10):
        line_file("info", "x" * 1000)
    part = log.next_part(last=True)
    assert part is not None
    assert part.lines[0].text == "x" * 1000
    line_file.close()
    log.close()
