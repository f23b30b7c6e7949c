"""Which prompts share the next forward pass: a pure function of what is waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

#: What prompts must have in common to share a batch: the model, and what its runner says.
Bucket = TypeVar("Bucket")
BucketOf = TypeVar("BucketOf", covariant=True)

#: When a queue was last served: the batch's number and the place in it. One that came since has the place -1 in the
#: last batch: such queues are equals.
Turn = tuple[int, int]


class Waiting(Protocol[BucketOf]):
    """A prompt that waits for a step."""

    @property
    def bucket(self) -> BucketOf:
        """See `Bucket`."""
        ...

    @property
    def cost(self) -> int:
        """The prompt's work, see `Limit`."""
        ...


class Queue(Protocol[BucketOf]):
    """One job."""

    @property
    def waiting(self) -> Sequence[Waiting[BucketOf]]:
        """Its prompts that wait, oldest first."""
        ...

    @property
    def turn(self) -> Turn:
        """Its last turn: the queue whose was the longest ago is next."""
        ...

    @property
    def left(self) -> float:
        """The cost of everything that it still has to do: among queues of the same turn the one with least is next."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may share a batch. A prompt that costs more goes alone."""

    prompts: int
    cost: float = inf

    def copies(self, cost: int) -> int:
        """Return how many prompts of one cost share a batch."""
        return max(1, int(min(self.prompts, self.cost // max(1, cost))))


@dataclass(frozen=True, slots=True)
class Pick:
    """A prompt that was chosen: its queue, and its position in it."""

    queue: int
    position: int


@dataclass(frozen=True, slots=True)
class Batch(Generic[Bucket]):
    """A batch of one bucket."""

    bucket: Bucket
    picks: tuple[Pick, ...]
    #: Whether a limit was reached: more prompts of this bucket would not make the batch larger.
    full: bool


def compose(queues: Sequence[Queue[Bucket]], limit: Callable[[Bucket], Limit]) -> Batch[Bucket] | None:
    """Return the next batch, or None if nothing waits.

    Queues take turns: first the one whose last turn is the longest ago. Its oldest prompt is always served and gives
    the batch its bucket; every queue then adds its prompts of that bucket in their order, one per round, as long as
    they are within the bucket's limit. So no prompt waits for more batches than there are queues and older prompts in
    its own, however many prompts another job has, and nothing waits that would have fitted.
    """
    order = sorted(
        (index for index, queue in enumerate(queues) if queue.waiting),
        key=lambda index: (queues[index].turn, queues[index].left),
    )
    if not order:
        return None
    bucket = queues[order[0]].waiting[0].bucket
    allowed = limit(bucket)
    sources = [(index, _matching(queues[index].waiting, bucket)) for index in order]
    picks, full = _take_turns(sources, allowed)
    return Batch(bucket, tuple(picks), full)


def _matching(waiting: Sequence[Waiting[Bucket]], bucket: Bucket) -> Iterator[tuple[int, int]]:
    """Yield (position, cost) of the prompts of a bucket."""
    return ((position, item.cost) for position, item in enumerate(waiting) if item.bucket == bucket)


def _take_turns(sources: Sequence[tuple[int, Iterator[tuple[int, int]]]], allowed: Limit) -> tuple[list[Pick], bool]:
    """Take one prompt of each source per round up to the limit; return them and whether the limit was reached.

    A source whose next prompt costs too much is done: its later ones may not overtake that one.
    """
    picks: list[Pick] = []
    cost, full = 0, False
    while sources:
        going = []
        for index, source in sources:
            if len(picks) >= allowed.prompts:
                return picks, True
            if (found := next(source, None)) is None:
                continue
            position, its_cost = found
            if picks and cost + its_cost > allowed.cost:
                full = True
                continue
            picks.append(Pick(index, position))
            cost += its_cost
            going.append((index, source))
        sources = going
    return picks, full or len(picks) >= allowed.prompts or cost >= allowed.cost
