"""One job's way through the engine: prompts drawn ahead, outputs kept until they are asked for."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Check
from penstock.workers.engine.residency import POLL_S, Resident


@dataclass(frozen=True, slots=True)
class Bucket:
    """What prompts must have in common to share a batch: the loaded model, and every name, shape and dtype."""

    resident: Resident
    shapes: tuple[tuple[str, Hashable, str], ...]

    @classmethod
    def of(cls, resident: Resident, prompt: Prompt) -> Bucket:
        """Return the prompt's bucket."""
        named = sorted(prompt.data.items())
        return cls(resident, tuple((n, getattr(a, "shape", None), str(getattr(a, "dtype", type(a)))) for n, a in named))

    def limit(self) -> int:
        """Return how many of them may share a batch."""
        return self.resident.reduced.get(self.shapes, self.resident.runner.max_batch)

    def reduce(self, limit: int) -> None:
        """Allow fewer, as long as the model stays loaded."""
        self.resident.reduced[self.shapes] = limit


@dataclass(slots=True, eq=False)
class Item:
    """One prompt on its way."""

    run: Run
    index: int
    bucket: Bucket
    state: Any


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
    #: What each prompt that was drawn and not yet taken holds in memory: its own bytes, then its output's.
    held_bytes: dict[int, int] = field(default_factory=dict)
    drawn: int = 0
    taken: int = 0
    exhausted: bool = False
    over: bool = False
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

    def add(self, prompt: Prompt, state: Any) -> None:
        """Take in a prompt that was drawn and admitted. The lock must be held."""
        if not self.over:
            self.held_bytes[self.drawn] = size_bytes(prompt.data)
            self.waiting.append(Item(self, self.drawn, Bucket.of(self.resident, prompt), state))
            self.drawn += 1

    def answer(self, item: Item, output: Output) -> None:
        """Take in a prompt's output. The lock must be held."""
        if not self.over:
            self.held_bytes[item.index] = size_bytes(output.data)
            self.outputs[item.index] = output
            self.ready.notify_all()

    def resume(self, item: Item, state: Any) -> None:
        """Queue a prompt for its next step, before those that came after it. The lock must be held."""
        if not self.over:
            item.state = state
            insort(self.waiting, item, key=lambda other: other.index)

    def finish(self) -> None:
        """No more prompts will come. The lock must be held."""
        self.exhausted = True
        self.ready.notify_all()

    def end(self, error: PenstockError | None = None) -> None:
        """Take in nothing more; the first error is the one that counts. The lock must be held."""
        self.error = self.error or error
        self.over = True
        self.ready.notify_all()
        self.room.notify_all()

    def take(self, check: Check) -> Iterator[Output]:
        """Yield the outputs in the prompts' order; raise the run's error or what `check` raises."""
        while True:
            check()
            with self.ready:
                if self.error:
                    raise self.error
                if self.exhausted and self.taken == self.drawn:
                    return
                output = self.outputs.pop(self.taken, None)
                if output is None:
                    self.ready.wait(POLL_S)
                    continue
                del self.held_bytes[self.taken]
                self.taken += 1
                self.room.notify_all()
            yield output


def size_bytes(data: Any) -> int:
    """Return the memory of a prompt's or an output's arrays."""
    return sum(int(getattr(array, "nbytes", 0)) for array in data.values())
