"""Batches: which prompts the next one has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

#: Key of prompts that may share a batch: the model, and the runner's own key.
Bucket = TypeVar("Bucket")
BucketOf = TypeVar("BucketOf", covariant=True)


#: Latest turn of a queue: the number of the batch, and the place in the batch. A queue that came since has the place -1
#: in the latest batch; such queues are equal.
Turn = tuple[int, int]


class Waiting(Protocol[BucketOf]):
    """A prompt waiting for a step."""

    @property
    def bucket(self) -> BucketOf:
        """The prompt's bucket."""
        ...

    @property
    def cost(self) -> int:
        """The prompt's work, see `Limit`."""
        ...

    @property
    def begun(self) -> bool:
        """True after the first step."""
        ...

    @property
    def awake(self) -> bool:
        """False for a begun prompt for which a step can do nothing now."""
        ...


class Queue(Protocol[BucketOf]):
    """The waiting prompts of one job."""

    @property
    def waiting(self) -> Sequence[Waiting[BucketOf]]:
        """The waiting prompts, oldest first."""
        ...

    @property
    def turn(self) -> Turn:
        """The queue's latest turn: the queue with the earliest one is next."""
        ...

    @property
    def left(self) -> float:
        """The cost of the job's remaining work: among queues of equal turns the one with the least is next."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest batch. A prompt that costs more than `cost` goes alone."""

    prompts: int
    cost: float = inf
    #: Prompts in the batch that have not begun, at most.
    begin: float = inf
    #: A batch begins only if it is full: another one is under way, and this one would wait for it.
    only_full: bool = False

    def copies(self, cost: int) -> int:
        """Return how many prompts of one cost fit into a batch."""
        return max(1, int(min(self.prompts, self.cost // max(1, cost))))


class Pick(NamedTuple):
    """A chosen prompt: its queue, and its position in the queue."""

    queue: int
    position: int


@dataclass(frozen=True, slots=True)
class Batch(Generic[Bucket]):
    """A batch of one bucket."""

    bucket: Bucket
    picks: tuple[Pick, ...]
    #: Full: more prompts of this bucket would not make the batch larger.
    full: bool
    #: True if some of the prompts are between two steps.
    begun: bool = False


def compose(queues: Sequence[Queue[Bucket]], limit: Callable[[Bucket], Limit]) -> Batch[Bucket] | None:
    """Return the next batch, or None if nothing waits that a step could advance.

    Queues take turns, the one with the earliest turn first. Its oldest prompt that can advance is always served and
    determines the batch's bucket; every queue then adds its prompts of that bucket in order, one per round, within the
    bucket's limit. So a prompt waits for at most as many batches as there are queues plus older prompts in its own
    queue, however many prompts another job has, and no prompt waits that would have fitted. A bucket that begins only
    full batches is passed over while it has none.
    """
    turns = sorted([(queue.turn, queue.left, index) for index, queue in enumerate(queues) if queue.waiting])
    sources = [(index, queues[index].waiting) for _turn, _left, index in turns]
    passed_over: list[Bucket] = []
    for item in (item for _, waiting in sources for item in waiting):
        if item.bucket in passed_over or not _advances(item, limit):
            continue
        allowed = limit(item.bucket)
        picks, full, begun = _take_turns(sources, item.bucket, allowed)
        if full or begun or not allowed.only_full:
            return Batch(item.bucket, tuple(picks), full, begun)
        passed_over.append(item.bucket)
    return None


def _advances(item: Waiting[Bucket], limit: Callable[[Bucket], Limit]) -> bool:
    """Return True if a step could advance a prompt now."""
    return item.awake if item.begun else limit(item.bucket).begin > 0


def _take_turns(
    sources: Sequence[tuple[int, Sequence[Waiting[Bucket]]]], bucket: Bucket, allowed: Limit
) -> tuple[list[Pick], bool, bool]:
    """Take one prompt of the bucket that is awake from each queue per round up to the limit.

    Return the picks, True if the limit was reached, and True if some have begun. A queue whose next prompt
    costs too much, or may not begin, is finished: later prompts must not overtake.
    """
    picks: list[Pick] = []
    count, cost, new, full = 0, 0, 0, False
    turns = [(index, waiting, 0) for index, waiting in sources]
    while turns:
        going = []
        for index, waiting, begin in turns:
            if count >= allowed.prompts:
                return picks, True, count > new
            for position in range(begin, len(waiting)):
                item = waiting[position]
                if item.bucket == bucket and (not item.begun or item.awake):
                    break
            else:
                continue
            if (picks and cost + item.cost > allowed.cost) or (not item.begun and new >= allowed.begin):
                full = True
                continue
            picks.append(Pick(index, position))
            count, cost, new = count + 1, cost + item.cost, new + (not item.begun)
            if position + 1 < len(waiting):
                going.append((index, waiting, position + 1))
        turns = going
    return picks, full or count >= allowed.prompts or cost >= allowed.cost, count > new
