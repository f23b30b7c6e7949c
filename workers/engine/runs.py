"""One job's way through the engine: prompts drawn ahead, outputs kept until they are asked for."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from penstock.errors import PenstockError
from penstock.processors.base import Output, Prompt
from penstock.workers.batching import Limit, Turn
from penstock.workers.engine.base import Check, OnBatch
from penstock.workers.engine.residency import POLL_S, Resident


@dataclass(frozen=True, slots=True)
class Bucket:
    """What prompts must have in common to share a batch: the loaded model, and what its runner says."""

    resident: Resident
    key: Hashable

    @classmethod
    def of(cls, resident: Resident, prompt: Prompt) -> Bucket:
        """Return the prompt's bucket."""
        return cls(resident, resident.runner.bucket(prompt))

    def limit(self) -> Limit:
        """Return how much may share a batch."""
        cost = self.resident.model.max_batch_cost or inf
        return Limit(self.resident.reduced.get(self.key, self.resident.runner.max_batch), cost)

    def reduce(self, prompts: int) -> None:
        """Allow fewer, as long as the model stays loaded."""
        self.resident.reduced[self.key] = prompts


@dataclass(slots=True, eq=False)
class Item:
    """One prompt on its way."""

    run: Run
    index: int
    bucket: Bucket
    state: Any
    cost: int
    bytes: int
    #: Whether it has taken a step already.
    begun: bool = False
    #: How much of its work is done, from 0 to 1.
    done: float = 0.0

    @classmethod
    def of(cls, run: Run, prompt: Prompt, state: Any) -> Item:
        """Return a prompt that was admitted; the run numbers it."""
        return cls(run, -1, Bucket.of(run.resident, prompt), state, prompt.cost, size_bytes(prompt.data))

    def reach(self, done: float) -> float:
        """Note how much is done, and return how much that is more than before."""
        further, self.done = done - self.done, done
        return further


@dataclass(frozen=True, slots=True)
class Window:
    """How far a run may draw ahead: prompts waiting, on the device, or answered and not yet taken."""

    prompts: int
    bytes: int


@dataclass(eq=False)
class Run:
    """One call of `Engine.run`. Every field is guarded by the engine's lock, which both conditions share."""

    resident: Resident
    window: Window
    #: Something came for the job: an output, the end or an error.
    ready: threading.Condition
    #: A prompt may be drawn, or the run is over.
    room: threading.Condition
    #: Admitted and waiting for a step, in the prompts' order.
    waiting: list[Item] = field(default_factory=list)
    outputs: dict[int, Output] = field(default_factory=dict)
    #: The latest partial output of prompts that have no output yet.
    partials: dict[int, Output] = field(default_factory=dict)
    #: When it was last served; set by the engine.
    turn: Turn = (-1, -1)
    #: The cost of what is not answered yet; infinite if nobody knows.
    left: float = inf
    #: Told of each batch that had prompts of this run.
    on_batch: OnBatch | None = None
    #: What each prompt that was drawn and not yet taken holds in memory: its own bytes, then its output's.
    held_bytes: dict[int, int] = field(default_factory=dict)
    drawn: int = 0
    taken: int = 0
    exhausted: bool = False
    over: bool = False
    #: When it was over, by the monotonic clock.
    over_s: float = inf
    error: PenstockError | None = None

    @property
    def wants_prompts(self) -> bool:
        """Whether the next prompt may be drawn."""
        if self.over or self.exhausted:
            return False
        return not self.held_bytes or (
            len(self.held_bytes) < self.window.prompts and sum(self.held_bytes.values()) < self.window.bytes
        )

    def wait_for_room(self) -> bool:
        """Wait until the next prompt may be drawn; False if none is wanted any more."""
        with self.room:
            while not self.over and not self.wants_prompts:
                self.room.wait()
            return not self.over

    def add(self, item: Item) -> None:
        """Take in the next prompt. The lock must be held."""
        if not self.over:
            item.index = self.drawn
            self.held_bytes[item.index] = item.bytes
            self.waiting.append(item)
            self.drawn += 1

    def answer(self, item: Item, output: Output) -> None:
        """Take in a prompt's output. The lock must be held."""
        if not self.over:
            self.held_bytes[item.index] = size_bytes(output.data)
            self.partials.pop(item.index, None)
            self.outputs[item.index] = output
            self.left -= item.cost
            self.ready.notify_all()

    def shared(self, prompts: int, further: float) -> None:
        """Tell that prompts of this run were in a batch of so many, and how many of its own it is further.

        The lock must be held.
        """
        if self.on_batch is not None and not self.over:
            self.on_batch(prompts, further)

    def resume(self, item: Item, state: Any, partial: Output | None) -> None:
        """Queue a prompt for its next step, before those that came after it. The lock must be held.

        Its partial output replaces an earlier one that nobody took.
        """
        if self.over:
            return
        item.state, item.begun = state, True
        insort(self.waiting, item, key=lambda other: other.index)
        if partial is not None:
            self.held_bytes[item.index] = item.bytes + size_bytes(partial.data)
            self.partials[item.index] = partial
            if item.index == self.taken:
                self.ready.notify_all()

    def finish(self) -> None:
        """No more prompts will come. The lock must be held."""
        self.exhausted = True
        self.ready.notify_all()

    def end(self, error: PenstockError | None = None) -> None:
        """Take in nothing more; the first error is the one that counts. The lock must be held."""
        self.error = self.error if self.over else error
        self.over_s = min(self.over_s, time.monotonic())
        self.over = True
        # What runners hold for a state is free when the state goes.
        self.waiting.clear()
        self.ready.notify_all()
        self.room.notify_all()

    def take(self, check: Check) -> Iterator[Output]:
        """Yield the outputs in the prompts' order, partial ones between; raise the run's error or what `check` does."""
        while True:
            check()
            with self.ready:
                if self.error:
                    raise self._hand_over(self.error)
                if self.exhausted and self.taken == self.drawn:
                    return
                output = self._next()
                if output is None:
                    self.ready.wait(POLL_S)
                    continue
            yield output

    def _hand_over(self, error: PenstockError) -> PenstockError:
        """Keep the error no longer: its frames hold states, and those hold the run. The lock must be held."""
        self.error = None
        return error

    def _next(self) -> Output | None:
        """Return what is to be taken next, if it is there. The lock must be held."""
        output = self.outputs.pop(self.taken, None)
        if output is None:
            return self.partials.pop(self.taken, None)
        del self.held_bytes[self.taken]
        self.taken += 1
        self.room.notify_all()
        return output


def size_bytes(data: Any) -> int:
    """Return the memory of a prompt's or an output's arrays."""
    return sum(int(getattr(array, "nbytes", 0)) for array in data.values())
