"""The lines of an attempt: bounded, in order, and read from a file that is not trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.workers.job_log import FIRST_BYTES, LAST_BYTES, MAX_FILE_BYTES, AttemptLog, LineFile, LineMemory


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


@pytest.fixture
def memory() -> Iterator[LineMemory]:
    memory = LineMemory()
    yield memory
    memory.close()


def test_lines_of_a_process_are_read_as_they_come_and_half_of_one_waits(memory: LineMemory) -> None:
    log = AttemptLog()
    with log.reading(memory):
        LineFile(memory.descriptor)("warning", "whole")
        assert said(log, last=False) == ["whole"]
        at = len(os.pread(memory.descriptor, 1000, 0).rstrip(b"\0"))
        os.pwrite(memory.descriptor, b'[1, "info", "ha', at)
        assert said(log, last=False) == []
        os.pwrite(memory.descriptor, b'lf"]\n', at + 15)
        part = log.next_part(last=True)
    assert part is not None
    [line] = part.lines
    assert (line.text, line.source, line.level) == ("half", "processor", "info")
    assert line.at_s > 1_700_000_000  # a time from far away is not believed


def test_lines_that_nobody_has_read_at_the_end_are_kept_and_the_memory_counts_as_used(memory: LineMemory) -> None:
    log = AttemptLog()
    with log.reading(memory):
        assert not memory.is_used
        LineFile(memory.descriptor)("info", "the last")
    assert memory.is_used
    LineFile(memory.descriptor)("info", "of another job")
    assert said(log) == ["the last"]


def test_a_memory_is_sent_once_and_not_used_while_no_line_comes(memory: LineMemory) -> None:
    assert (memory.to_send(), memory.to_send()) == (memory.descriptor, None)
    log = AttemptLog()
    with log.reading(memory):
        assert said(log) == []
    assert not memory.is_used


def test_a_thread_that_outlives_its_job_writes_no_line_into_the_next_ones(memory: LineMemory) -> None:
    log, line_file = AttemptLog(), LineFile(memory.descriptor)
    line_file.close()
    with log.reading(memory):
        line_file("info", "late")
    assert said(log) == []


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
def test_a_process_may_write_anything(memory: LineMemory, row: bytes, text: str) -> None:
    log = AttemptLog()
    with log.reading(memory):
        os.pwrite(memory.descriptor, row + b"\n", 0)
        assert said(log) == [text]
    assert said(log) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the size is fixed on Linux only")
def test_a_process_can_neither_grow_nor_shrink_its_memory(memory: LineMemory) -> None:
    for act in (
        lambda: os.truncate(memory.descriptor, 4 * MAX_FILE_BYTES),
        lambda: os.truncate(memory.descriptor, 0),
        lambda: os.pwrite(memory.descriptor, b"x", MAX_FILE_BYTES),
    ):
        with pytest.raises(PermissionError):
            act()
    log = AttemptLog()
    with log.reading(memory):
        os.pwrite(memory.descriptor, b"x" * MAX_FILE_BYTES, 0)  # one line without an end
        assert said(log) == []


def test_a_full_memory_takes_no_more_lines(memory: LineMemory) -> None:
    log, line_file = AttemptLog(), LineFile(memory.descriptor)
    with log.reading(memory):
        for _ in range(MAX_FILE_BYTES // 1000 + 10):
            line_file("info", "x" * 1000)
        part = log.next_part(last=True)
    assert part is not None
    assert part.lines[0].text == "x" * 1000
