"""Which prompts share the next forward pass: a pure function of what is waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

#: What prompts must have in common to share a batch: model, shapes, dtypes.
Bucket = TypeVar("Bucket")


@dataclass(frozen=True, slots=True)
class Batch(Generic[Bucket]):
    """A batch of one bucket."""

    bucket: Bucket
    #: (queue, position in it) of every member.
    picks: tuple[tuple[int, int], ...]
    #: The queues' order for the next call: those passed over first, then those served, the last served last.
    order: tuple[int, ...]


def compose(queues: Sequence[Sequence[Bucket]], limit: Callable[[Bucket], int]) -> Batch[Bucket] | None:
    """Return the next batch, or None if nothing waits.

    Each queue holds the buckets of one job's waiting prompts, oldest first, and the queue whose turn it is comes first.
    The oldest prompt of the first queue that has one is always served and gives the batch its bucket; every queue then
    adds its prompts of that bucket in their order, one per round, up to the bucket's limit. So no prompt waits for more
    batches than there are queues and older prompts in its own, however many prompts another job has.
    """
    bucket = next((queue[0] for queue in queues if queue), None)
    if bucket is None:
        return None
    matching = [[position for position, other in enumerate(queue) if other == bucket] for queue in queues]
    turns = ((turn, queue, position) for queue, found in enumerate(matching) for turn, position in enumerate(found))
    picked = heapq.nsmallest(max(1, limit(bucket)), turns)
    last_turn = {queue: index for index, (_, queue, _) in enumerate(picked)}
    order = sorted(range(len(queues)), key=lambda queue: last_turn.get(queue, -1))
    return Batch(bucket, tuple((queue, position) for _, queue, position in picked), tuple(order))
