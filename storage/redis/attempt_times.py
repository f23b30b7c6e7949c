"""The course of a job's attempts, as its record stores it.

`phases` has the phases of the latest attempt, each with the microseconds from the claim to its start:
`FENCE loading:0 fetching:1210 ...`. `attempts` is a JSON list of the attempts that ended without ending the job, the
latest 20: `[FENCE, NUMBER, WORKER, START, END, OUTCOME, PHASES]`, times in microseconds, everything a text. A phase
ends where the next one begins, or with its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.jobs import AttemptTimes, Phase, PhaseTimes
from penstock.storage.redis.fields import MICRO


def phases_text(fence: int, phases: Iterable[tuple[Phase, int]]) -> str:
    """Return the text of an attempt's phases and the microseconds from its claim to the start of each."""
    return " ".join((str(fence), *(f"{phase.value}:{after_us}" for phase, after_us in phases)))


def past_attempt(row: Sequence[str]) -> AttemptTimes:
    """Return the attempt of a row of `attempts`."""
    fence, number, worker, started, ended, outcome, phases = row[:7]
    return attempt_times(int(fence), int(number), worker, int(started), int(ended), outcome, phases)


def attempt_times(
    fence: int, number: int, worker: str, started_us: int, ended_us: int | None, outcome: str | None, phases: str
) -> AttemptTimes:
    """Return an attempt; a text of phases with another fence is ignored, as an older release leaves it behind."""
    owner, *rows = phases.split(" ")
    found = tuple(_phases(rows, started_us, ended_us)) if owner == str(fence) else ()
    ended_s = None if ended_us is None else ended_us / MICRO
    return AttemptTimes(number, fence, worker, started_us / MICRO, ended_s, outcome, found)


def _phases(rows: Sequence[str], started_us: int, ended_us: int | None) -> Iterator[PhaseTimes]:
    begun = [(name, started_us + int(after_us)) for name, _, after_us in (row.partition(":") for row in rows)]
    ends = [*(at for _, at in begun), ended_us][1:]
    for (name, at), end in zip(begun, ends, strict=True):
        # The worker measures from the claim's arrival: its last phase may begin a moment after the end by Redis' clock.
        at = at if ended_us is None else min(at, ended_us)
        end = end if end is None or ended_us is None else min(end, ended_us)
        yield PhaseTimes(Phase.read(name), at / MICRO, None if end is None else max(at, end) / MICRO)
