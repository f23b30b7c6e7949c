"""The division of a job into parts for several workers. Pure: the same work and workers give the same parts.

A processor whose work can be saved in units says so (`Prepared.division`). Parts are ranges of all units, also of those
that are saved already, so that a job that is divided again among as many workers has the same parts; a range of which
all is saved is no part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.processors.base import Divisible
from penstock.storage.redis.parts import Division, PartRange, Room


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The operator's limits of a division."""

    #: Parts of one job, at most; below 2, no job is divided.
    max_parts: int
    #: Prompts of a part, at least, on average: each part fetches its media and begins anew.
    min_prompts: int
    #: True where more workers come than those that live now, whether or not a driver has reported.
    always: bool = False


def part_count(prompts: int, room: Room, limits: PartLimits) -> int:
    """Return the number of workers that should share so many prompts; 1 = the job stays whole.

    These are this worker and those that neither hold a job nor will soon hold one that waits. Where a driver starts
    workers for waiting jobs, each part may have a new one, less those that the jobs which wait will have.
    """
    return max(1, min(limits.max_parts, _workers(room, limits), prompts // max(1, limits.min_prompts)))


def _workers(room: Room, limits: PartLimits) -> int:
    if limits.always:
        return limits.max_parts
    if room.grows:
        return limits.max_parts - room.waiting
    return 1 + max(0, room.workers - max(1, room.busy) - room.waiting)


def divide(work: Divisible, count: int, kind: str) -> Division | None:
    """Return the division of a job into at most `count` parts for machines of a kind; None for fewer than two."""
    parts = []
    for start, end in balanced([prompts for _, prompts, _ in work.units], count):
        units = work.units[start:end]
        if left := sum(each for _, _, each in units):
            parts.append(PartRange(units[0][0], units[-1][0], left))
    return Division(division_digest(work.digest, kind), kind, tuple(parts)) if len(parts) > 1 else None


def division_digest(digest: str, kind: str) -> str:
    """Return the digest of a division: that of the processor, for one kind of machine."""
    return hashlib.sha256(f"{digest} {kind}".encode()).hexdigest()[:32]


def balanced(weights: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return at most `count` ranges (start, end) that cover all weights in order, the heaviest as light as possible."""
    low, high = max(weights, default=0), sum(weights)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(weights, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return _filled(weights, low)


def _filled(weights: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the fewest ranges with at most `most` in each; `most` is at least the largest weight."""
    ranges, start, held = [], 0, 0
    for at, weight in enumerate(weights):
        if at > start and held + weight > most:
            ranges.append((start, at))
            start, held = at, 0
        held += weight
    return [*ranges, (start, len(weights))] if weights else []
