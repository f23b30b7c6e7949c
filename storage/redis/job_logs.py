"""The lines of a job: what its processor and runner said. Kept beside the record, bounded, and deleted with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.jobs import Claim, JobKey
from penstock.storage.redis.fields import MICRO, dump, us
from penstock.storage.redis.records import held_by, known
from penstock.storage.redis.scripts import Command, query

#: Bytes and lines that are kept of one job, the latest.
MAX_BYTES, MAX_LINES = 64 * 1024, 1_000


@dataclass(frozen=True, slots=True)
class JobLine:
    """A line, with its time in seconds since the epoch by its worker's clock."""

    at_s: float
    attempt: int
    #: `processor` or `runner`.
    source: str
    #: `debug`, `info`, `warning`, `error` or `critical`.
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class JobLines:
    """The kept lines of a job, in the order of their arrival, and the number of those that were left out."""

    lines: tuple[JobLine, ...]
    cut: int


def store_lines(
    claim: Claim, number: int, lines: Sequence[tuple[float, str, str, str]], *, cut: int
) -> Command[bool]:  # fmt: skip
    """Store a numbered part of an attempt's lines, each (time, source, level, text); storing it twice does no more.

    `cut` lines were left out before. False where the attempt no longer holds the job: then nothing is stored.
    """
    rows = [[us(at_s), source, level, text] for at_s, source, level, text in lines]
    return Command("add", {
        "op": "lines", **held_by(claim), "number": number,
        "attempt": claim.attempt, "lines": len(rows), "cut": cut, "data": dump(rows), "max_bytes": MAX_BYTES,
        "max_lines": MAX_LINES,
    }, bool)  # fmt: skip


def read_lines(key: JobKey) -> Command[JobLines]:
    """Return the lines of a job; `UnknownJob` or `JobGone` without one."""
    return query("logs", lambda reply: _lines(known(reply)[0]), tenant=key.tenant, id=key.id)


def _lines(parts: Sequence[str]) -> JobLines:
    lines: list[JobLine] = []
    left_out = 0
    for part in parts:
        head, _, data = part.partition("|")
        _, _, attempt, _, cut = head.split(":")
        left_out += int(cut)
        lines += [_line(int(attempt), row) for row in json.loads(data)]
    return JobLines(tuple(lines), left_out)


def _line(attempt: int, row: Sequence[Any]) -> JobLine:
    at_us, source, level, text = row
    return JobLine(int(at_us) / MICRO, attempt, source, level, text)
