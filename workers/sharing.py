"""The decision of an attempt whether several workers share its job, and the check of a part before it is computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import structlog

from penstock.errors import JobStoreError, ProcessorFailed
from penstock.jobs import Claim
from penstock.models import Model
from penstock.processors.base import Divisible
from penstock.storage.redis import parts, records
from penstock.workers.division import PartLimits, divide, division_digest, part_count
from penstock.workers.engine.kinds import machine_kind

log = structlog.get_logger(__name__)


class Divided(Exception):
    """The job goes on in parts."""

    def __init__(self, division: parts.Division) -> None:
        super().__init__(f"{len(division.ranges)} parts")
        self.division = division


@dataclass(frozen=True, slots=True)
class Sharing:
    """Divides jobs among the workers of their queues."""

    store: records.Runs
    limits: PartLimits

    def decide(self, claim: Claim, model: Model, work: Divisible | None) -> None:
        """Return if this attempt computes its job, or its part of one; raise `Divided` if workers share the job.

        A job is divided once: after its parts, one worker computes what they left. Raises `ProcessorFailed` for a part
        whose checkpoints the job would not find, because this worker would make others.
        """
        kind = machine_kind(model)
        if claim.part is not None:
            if work is None or division_digest(work.digest, kind) != claim.part.digest:
                raise ProcessorFailed("this worker would compute another result than the job's first worker")
            return
        if work is None or claim.parts or self.limits.max_parts < 2:
            return
        division = divide(work, self._count(claim, work), kind)
        if division is not None:
            raise Divided(division)

    def may_share(self, claim: Claim) -> bool:
        """Return True if workers would share a large job now."""
        if claim.part is not None or claim.parts or self.limits.max_parts < 2:
            return False
        room = self._room(claim)
        return room is not None and part_count(2 * self.limits.min_prompts, room, self.limits) > 1

    def _count(self, claim: Claim, work: Divisible) -> int:
        prompts = sum(left for _, _, left in work.units)
        if prompts < 2 * self.limits.min_prompts:
            return 1
        room = self._room(claim)
        if room is None:
            return 1
        count = part_count(prompts, room, self.limits)
        if count > 1:
            log.info("job.shared", among=count, **asdict(room))
        return count

    def _room(self, claim: Claim) -> parts.Room | None:
        try:
            return self.store.run(parts.room(claim.submission.queue))
        except JobStoreError:
            log.warning("room.unknown", queue=claim.submission.queue)
            return None
