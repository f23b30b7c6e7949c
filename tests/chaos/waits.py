"""The two waits of a job that lost its worker, each judged by itself. Values and arithmetic only.

Lease's end to queued: while any worker or keeper lives, which all sweep, at most `QUEUED_LIMIT_S`. Queued to started: a
live worker with a free slot leaves the job in its queue for at most `STARTED_LIMIT_S`. Times in which Redis or the
object store did not answer count for neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Seconds after a lease's end within which its job is in the queue again, while anybody lives who sweeps.
QUEUED_LIMIT_S = 2.0
#: Seconds that a queued job waits, at most, while a live worker has a free slot.
STARTED_LIMIT_S = 1.0
#: Events that end an attempt.
_ENDS = (
    "job.succeeded",
    "job.failed",
    "job.canceled",
    "job.expired",
    "job.requeued",
    "job.retrying",
    "job.released",
    "job.split",
)


@dataclass(frozen=True, slots=True)
class Span:
    """A time from `begin_s` to `end_s`, in seconds since the epoch."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job's stream."""

    at_s: float
    type: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A job that lost its worker: the end of its lease, its return to the queue, and its next start (None = none)."""

    lease_end_s: float
    queued_s: float
    started_s: float | None


def events_of(rows: Iterable[tuple[str, Mapping[str, str]]]) -> list[Event]:
    """Return the entries of a job's stream in Redis as events."""
    return [Event(int(i.partition("-")[0]) / 1000, row["type"], json.loads(row["data"])) for i, row in rows]


def recoveries(events: Sequence[Event]) -> list[Recovery]:
    """Return the recoveries of one job."""
    found = []
    for number, event in enumerate(events):
        if event.type == "job.requeued" and event.data.get("reason") == "lease_lost":
            late_s = float(str(event.data["late_ms"])) / 1000
            later = (each.at_s for each in events[number + 1 :] if each.type == "job.started")
            found.append(Recovery(event.at_s - late_s, event.at_s, next(later, None)))
    return found


def busy(jobs: Iterable[Sequence[Event]]) -> dict[str, list[Span]]:
    """Return the times of all attempts by worker; an attempt without an end is left out."""
    spans: dict[str, list[Span]] = {}
    for events in jobs:
        attempts = [event for event in events if event.type == "job.started" or event.type in _ENDS]
        for event, following in pairwise(attempts):
            if event.type == "job.started":
                spans.setdefault(str(event.data["worker"]), []).append(Span(event.at_s, following.at_s))
        for event in events:  # parts have no events of their own that stay
            if event.type == "job.part_ended" and event.data["took_ms"] is not None:
                begun_s = event.at_s - float(str(event.data["took_ms"])) / 1000
                spans.setdefault(str(event.data["worker"]), []).append(Span(begun_s, event.at_s))
    return spans


def free(live: Iterable[Span], taken: Iterable[Span], slots: int) -> list[Span]:
    """Return the parts of a worker's life in which fewer than `slots` attempts ran."""
    return _counted([(each, slots) for each in live], [(each, -1) for each in taken])


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return the parts of spans that lie in none of the others."""
    return _counted([(each, 1) for each in spans], [(each, -1_000_000) for each in others])


def longest_s(waited: Span, spans: Iterable[Span]) -> float:
    """Return the longest unbroken part of a wait that the spans together cover, in seconds."""
    inside = (
        Span(max(waited.begin_s, each.begin_s), min(waited.end_s, each.end_s))
        for each in _counted([(each, 1) for each in spans], [])
    )
    return max((each.end_s - each.begin_s for each in inside if each.end_s > each.begin_s), default=0.0)


def late_s(recovery: Recovery, sweeping: Iterable[Span], away: Iterable[Span]) -> float:
    """Return the seconds from a lease's end to the job's return to its queue in which somebody could have swept."""
    waited = Span(recovery.lease_end_s, recovery.queued_s)
    nobody = without([waited], sweeping)
    return sum(each.end_s - each.begin_s for each in without([waited], [*nobody, *away]))


def violations(
    found: Iterable[Recovery], sweeping: Sequence[Span], free_spans: Sequence[Span], away: Sequence[Span]
) -> list[str]:
    """Return a line for each wait that was too long.

    `sweeping` are the lives of all workers and keepers, `free_spans` the times of live workers with a free slot.
    """
    usable = without(free_spans, away)
    lines = []
    for each in found:
        if (late := late_s(each, sweeping, away)) > QUEUED_LIMIT_S:
            lines.append(f"an orphaned job was queued only {late:.1f} s after its lease ended")
        if each.started_s is not None:
            idle_s = longest_s(Span(each.queued_s, each.started_s), usable)
            if idle_s > STARTED_LIMIT_S:
                lines.append(f"an orphaned job waited {idle_s:.1f} s in its queue beside a free slot")
    return lines


def _counted(more: Iterable[tuple[Span, int]], less: Iterable[tuple[Span, int]]) -> list[Span]:
    """Return the spans in which the sum of all weights is above 0."""
    steps = [(span.begin_s, weight) for span, weight in (*more, *less)]
    steps += [(span.end_s, -weight) for span, weight in (*more, *less)]
    found: list[Span] = []
    level, begun_s = 0, None
    for at_s, weight in _merged(steps):
        level += weight
        if level > 0 and begun_s is None:
            begun_s = at_s
        elif level <= 0 and begun_s is not None:
            found.append(Span(begun_s, at_s))
            begun_s = None
    return found


def _merged(steps: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the steps in order, those of one moment as one."""
    levels: dict[float, int] = {}
    for at_s, weight in steps:
        levels[at_s] = levels.get(at_s, 0) + weight
    return sorted(levels.items())
