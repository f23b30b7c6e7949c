"""Parts of jobs: the split of an attempt, and the workers that could share its work. Commands, as in `records.py`.

A part has a record with a lease, a fence and tries of its own, and nothing else of a job: no list shows it, no limit
and no count has it, no webhook tells of it. What it computes are checkpoints of its job.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.jobs import Claim, Progress, Usage
from penstock.storage.redis.fields import us
from penstock.storage.redis.record import encoded, phases_text
from penstock.storage.redis.records import LOOK_S, PhaseStarts, Reply, held_by
from penstock.storage.redis.scripts import Arg, Command, query


@dataclass(frozen=True, slots=True)
class PartRange:
    """A range of the units in which a job's work can be saved."""

    #: First and last unit, both included.
    first: int
    last: int
    #: Units of progress in the range.
    prompts: int


@dataclass(frozen=True, slots=True)
class Division:
    """A division of a job's work into parts."""

    #: Digest of everything that the units' contents depend on, and of the kind of machine.
    digest: str
    #: Kind of machine that computes the parts.
    kind: str
    ranges: tuple[PartRange, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The workers of a queue, seen by one that could share its job with others."""

    #: Living workers.
    workers: int
    #: Workers that hold a job.
    busy: int
    #: Jobs and parts that wait.
    waiting: int
    #: True where a driver starts workers when jobs want them.
    grows: bool


def part_lane(model: str, kind: str) -> str:
    """Return the name under which parts of a model's jobs wait for machines of a kind. No model has such a name."""
    return f"{model}:{kind}"


def split(
    claim: Claim, division: Division, progress: Progress, usage: Usage, phases: PhaseStarts = ()
) -> Command[Reply[str]]:
    """End an attempt whose job goes on in parts, which are made here; replies as `records.complete`.

    The last part that ends puts the job back into its queue. Where parts of an earlier split live, none are made.
    """
    rows: list[Arg] = [
        [claim.key.part(division.digest, each.first, each.last).id, each.first, each.last, each.prompts]
        for each in division.ranges
    ]
    args: dict[str, Arg] = {
        **held_by(claim),
        "done": progress.done, "total": progress.total, "unit": progress.unit,
        "phases": phases_text(claim.fence, phases), "lane": part_lane(claim.submission.model, division.kind),
        "digest": division.digest, "parts": rows, "record": encoded(bytes_in=usage.bytes_in), "look_us": us(LOOK_S),
    }  # fmt: skip
    return Command("split", args, lambda reply: Reply(str(reply[0]), reply[1]))


def capacity(queue: str) -> Command[Capacity]:
    """Return the workers of a queue."""
    return query("capacity", lambda reply: Capacity(reply[0], reply[1], reply[2], bool(reply[3])), queue=queue)
