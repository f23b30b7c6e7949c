"""An attempt divides its job once, and computes a part only where the job will find what it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import ProcessorFailed, RedisUnavailable
from penstock.jobs import Claim, JobKey, Part, Submission
from penstock.models import Model
from penstock.processors.base import Divisible
from penstock.storage.redis.parts import Room
from penstock.storage.redis.records import Command
from penstock.workers.division import PartLimits, division_digest
from penstock.workers.engine.kinds import machine_kind
from penstock.workers.sharing import Divided, Sharing

KEY = JobKey("default", "a")
MODEL = Model(name="m", title="M", runner="fake", processor="p", source="-", revision="1", device="cpu")
WORK = Divisible("d", tuple((at, 10, 10) for at in range(8)))
CLAIM = Claim(Submission(KEY, "m", "q", {}, "f"), attempt=1, crashes=0, fence=1, claimed_s=0.0, lease_s=30.0)


class Answers:
    """A job store that answers one question."""

    def __init__(self, room: Room | None) -> None:
        self.room, self.asked = room, 0

    def run(self, command: Command[Any]) -> Any:
        self.asked += 1
        assert command.args["op"] == "room"
        if self.room is None:
            raise RedisUnavailable
        return self.room


IDLE = Room(4, 1, 0, False)


def sharing(room: Room | None = IDLE, max_parts: int = 16) -> Sharing:
    return Sharing(Answers(room), PartLimits(max_parts, 10))


def test_idle_workers_share_the_job() -> None:
    with capture_logs() as lines, pytest.raises(Divided) as found:
        sharing().decide(CLAIM, MODEL, WORK)
    assert [(line["event"], line["among"]) for line in lines] == [("job.shared", 4)]
    assert len(found.value.division.ranges) == 4
    assert found.value.division.kind == machine_kind(MODEL)


@pytest.mark.parametrize(
    ("store", "claim", "work"),
    [
        (sharing(), CLAIM, None),  # a processor that cannot share
        (sharing(Room(1, 1, 0, False)), CLAIM, WORK),
        (sharing(None), CLAIM, WORK),  # Redis does not answer
        (sharing(max_parts=1), CLAIM, WORK),
        (sharing(), replace(CLAIM, parts=4), WORK),  # it was divided before
        (sharing(), CLAIM, Divisible("d", ((0, 10, 10), (1, 10, 9)))),  # too small
    ],
)
def test_other_jobs_stay_whole(store: Sharing, claim: Claim, work: Divisible | None) -> None:
    with capture_logs() as lines:
        store.decide(claim, MODEL, work)
    assert not [line for line in lines if line["event"] == "job.shared"]


def test_a_part_is_computed_where_the_job_finds_it() -> None:
    digest = division_digest("d", machine_kind(MODEL))
    sharing().decide(replace(CLAIM, part=Part(KEY, digest, 0, 3)), MODEL, WORK)
    with pytest.raises(ProcessorFailed, match="another result"):
        sharing().decide(replace(CLAIM, part=Part(KEY, division_digest("d", "cuda-x"), 0, 3)), MODEL, WORK)
    with pytest.raises(ProcessorFailed, match="another result"):
        sharing().decide(replace(CLAIM, part=Part(KEY, digest, 0, 3)), MODEL, replace(WORK, digest="e"))
