"""Splitting of a job into parts for several workers.

A processor whose work can be saved in units says so (`Prepared.division`). Parts are ranges of all units, also of those
that are saved already, so that a job that is split again among as many workers has the same parts; a range of which all
is saved is no part. `divide` and what it calls are pure: the same work and workers give the same parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import structlog

from penstock.errors import JobStoreError, ProcessorFailed
from penstock.jobs import Claim
from penstock.models import Model
from penstock.processors.base import Divisible
from penstock.storage.redis import parts, records
from penstock.storage.redis.parts import Capacity, Division, PartRange
from penstock.workers.engine.device_class import device_class

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The operator's limits of a division."""

    #: Parts of one job, at most; below 2, no job is divided.
    max_parts: int
    #: Prompts of a part, at least, on average: each part fetches its media and begins anew.
    min_prompts: int
    #: True where more workers come than those that live now, whether or not a driver has reported.
    always: bool = False


class JobSplit(Exception):
    """The job goes on in parts."""

    def __init__(self, division: Division) -> None:
        super().__init__(f"{len(division.ranges)} parts")
        self.division = division


@dataclass(frozen=True, slots=True)
class Splitter:
    """Divides jobs among the workers of their queues."""

    store: records.Runs
    limits: PartLimits

    def decide(self, claim: Claim, model: Model, work: Divisible | None) -> None:
        """Return if this attempt computes its job, or its part of one; raise `JobSplit` if workers share the job.

        A job is divided once: after its parts, one worker computes what they left. Raises `ProcessorFailed` for a part
        whose checkpoints the job would not find, because this worker would make others.
        """
        kind = device_class(model)
        if claim.part is not None:
            if work is None or division_digest(work.digest, kind) != claim.part.digest:
                raise ProcessorFailed("this worker would compute another result than the job's first worker")
            return
        if work is None or claim.parts or self.limits.max_parts < 2:
            return
        division = divide(work, self._count(claim, work), kind)
        if division is not None:
            raise JobSplit(division)

    def may_split(self, claim: Claim) -> bool:
        """Return True if workers would share a large job now."""
        if claim.part is not None or claim.parts or self.limits.max_parts < 2:
            return False
        capacity = self._capacity(claim)
        return capacity is not None and part_count(2 * self.limits.min_prompts, capacity, self.limits) > 1

    def _count(self, claim: Claim, work: Divisible) -> int:
        prompts = sum(left for _, _, left in work.units)
        if prompts < 2 * self.limits.min_prompts:
            return 1
        capacity = self._capacity(claim)
        if capacity is None:
            return 1
        count = part_count(prompts, capacity, self.limits)
        if count > 1:
            log.info("job.split_decided", among=count, **asdict(capacity))
        return count

    def _capacity(self, claim: Claim) -> Capacity | None:
        try:
            return self.store.run(parts.capacity(claim.submission.queue))
        except JobStoreError:
            log.warning("capacity.unknown", queue=claim.submission.queue)
            return None


def part_count(prompts: int, capacity: Capacity, limits: PartLimits) -> int:
    """Return the number of workers that should share so many prompts; 1 = the job stays whole.

    These are this worker and those that neither hold a job nor will soon hold one that waits. Where a driver starts
    workers for waiting jobs, each part may have a new one, less those that the jobs which wait will have.
    """
    return max(1, min(limits.max_parts, _workers(capacity, limits), prompts // max(1, limits.min_prompts)))


def _workers(capacity: Capacity, limits: PartLimits) -> int:
    if limits.always:
        return limits.max_parts
    if capacity.grows:
        return limits.max_parts - capacity.waiting
    return 1 + max(0, capacity.workers - max(1, capacity.busy) - capacity.waiting)


def divide(work: Divisible, count: int, kind: str) -> Division | None:
    """Return the division of a job into at most `count` parts for machines of a kind; None for fewer than two."""
    ranges = []
    for start, end in balanced([prompts for _, prompts, _ in work.units], count):
        units = work.units[start:end]
        if left := sum(each for _, _, each in units):
            ranges.append(PartRange(units[0][0], units[-1][0], left))
    return Division(division_digest(work.digest, kind), kind, tuple(ranges)) if len(ranges) > 1 else None


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
