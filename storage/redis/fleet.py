"""The workers of some queues on all machines, for whatever starts workers. Commands, as in `records.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.storage.redis.fields import us
from penstock.storage.redis.scripts import Arg, Command, query


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of a queue, or of several."""

    #: Living workers that claim jobs.
    claiming: int
    #: Workers that claim nothing more and still run jobs.
    draining: int
    #: Jobs that the draining workers run.
    draining_jobs: int
    #: Workers that were reserved and have not reported yet.
    starting: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers of some queues."""

    #: Number of reservations by `start_workers` so far, of all drivers.
    starts: int
    #: Models in the catalogue.
    models: int
    #: The workers of any of the queues, each counted once.
    together: Crew
    #: The workers of each queue, in the order of the queues.
    by_queue: tuple[Crew, ...]


def fleet(queues: Sequence[str]) -> Command[Fleet]:
    """Return the workers of these queues."""
    return Command("fleet", {"queues": list(queues)}, _fleet)


def keep_pool(queues: Sequence[str], *, alive_s: float) -> Command[str]:
    """Report for `alive_s` that a driver starts workers of these queues when jobs want them."""
    return Command("note", {"op": "pool", "queues": list(queues), "alive_ms": round(alive_s * 1000)}, str)


def pools() -> Command[frozenset[str]]:
    """Return the queues of which a driver starts workers."""
    return query("pools", frozenset)


def start_workers(queues: Sequence[str], workers: Sequence[str], *, after: int, alive_s: float) -> Command[bool]:
    """Reserve the start of workers of these queues; False if another driver reserved starts since `after`.

    `workers` are their new ids. A worker that has not reported within `alive_s` does not count any more.
    """
    args: dict[str, Arg] = {
        "queues": list(queues), "workers": list(workers), "after": after, "alive_us": us(alive_s),
    }  # fmt: skip
    return Command("start_workers", args, lambda reply: int(reply) == 1)


def forget_start(queues: Sequence[str], worker: str) -> Command[str]:
    """Forget the start of a worker of these queues that ended before it reported."""
    return Command("note", {"op": "forget_start", "queues": list(queues), "worker": worker}, str)


def _fleet(reply: list[Any]) -> Fleet:
    starts, models, together, *by_queue = reply
    return Fleet(starts, models, Crew(*together), tuple(Crew(*row) for row in by_queue))
