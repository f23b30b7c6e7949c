"""Runs of jobs in the engine: prompts drawn ahead, and outputs kept until the job takes them."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import inf
from threading import Condition, Lock
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.observation.listening import Listener
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import UNDER_WAY, Check, OnBatch, OnDevice
from penstock.workers.engine.batching import Limit, Turn
from penstock.workers.engine.residency import POLL_S, Resident


class Bucket(NamedTuple):
    """The key of prompts that may share a batch: the loaded model, and the runner's own key."""

    resident: Resident
    key: Hashable

    @classmethod
    def of(cls, resident: Resident, prompt: Prompt) -> Bucket:
        """Return the prompt's bucket."""
        return cls(resident, resident.runner.bucket(prompt))

    def limit(self) -> Limit:
        """Return the largest batch of this bucket."""
        cost = self.resident.model.max_batch_cost or inf
        elsewhere, under_way = self.resident.elsewhere, self.resident.under_way
        begin = inf if elsewhere is None else elsewhere.free
        return Limit(
            self.resident.reduced.get(self.key, self.resident.runner.max_batch),
            cost,
            begin=0 if under_way >= UNDER_WAY else begin,
            only_full=under_way > 0,
        )

    def reduce(self, prompts: int) -> None:
        """Lower the largest batch for as long as the model stays loaded."""
        self.resident.reduced[self.key] = prompts


@dataclass(slots=True, eq=False)
class Item:
    """A prompt in a run."""

    run: Run
    index: int
    bucket: Bucket
    state: Any
    cost: int
    bytes: int
    #: True after the first step.
    begun: bool = False
    #: Finished share of the work, from 0 to 1.
    done: float = 0.0

    @classmethod
    def of(cls, run: Run, prompt: Prompt) -> Item:
        """Admit a prompt and return it without an index, which the run sets."""
        prompt = run.resident.fitted(prompt)
        state = run.resident.runner.admit(prompt)
        return cls(run, -1, Bucket.of(run.resident, prompt), state, prompt.cost, size_bytes(prompt.data))

    @property
    def awake(self) -> bool:
        """False while another engine works on the prompt and has nothing new."""
        if not self.begun:
            return True
        elsewhere = self.bucket.resident.elsewhere
        return elsewhere is None or elsewhere.awake(self.state)

    def drop(self) -> None:
        """End the prompt's work in another engine. The lock must be held."""
        if (elsewhere := self.bucket.resident.elsewhere) is not None:
            elsewhere.drop(self.state)


class Window(NamedTuple):
    """The limit of a run's prompts that are waiting, on the device, or answered and not yet taken."""

    prompts: int
    bytes: int


@dataclass(slots=True, eq=False)
class Run:
    """One call of `Engine.run`. The engine's lock guards every field; both conditions share the lock."""

    resident: Resident
    window: Window
    lock: Lock
    #: The engine's runs that are not over, in order of their beginning.
    among: dict[Run, None] = field(default_factory=dict)
    #: Notified when the job has an output, the end or an error to take.
    ready: Condition = field(init=False)
    #: Notified when a prompt may be drawn, or the run is over.
    room: Condition = field(init=False)
    #: Admitted prompts that wait for a step, in order.
    waiting: list[Item] = field(default_factory=list)
    outputs: dict[int, Output] = field(default_factory=dict)
    #: The latest partial output of prompts that have no output yet.
    partials: dict[int, Output] = field(default_factory=dict)
    #: Latest turn; set by the engine.
    turn: Turn = (-1, -1)
    #: Cost of the prompts that are not answered yet; infinite if unknown.
    left: float = inf
    #: Called for each batch that had prompts of this run.
    on_batch: OnBatch | None = None
    #: Called for each step with prompts of this run, with its share of the device's time.
    on_device: OnDevice | None = None
    #: Receives the lines of a runner that works on this run alone.
    listener: Listener | None = None
    #: Bytes in memory of each prompt that was drawn and not yet taken: first of the prompt, then of its output.
    held_bytes: dict[int, int] = field(default_factory=dict)
    drawn: int = 0
    taken: int = 0
    exhausted: bool = False
    over: bool = False
    #: End of the run, in seconds of the monotonic clock.
    over_s: float = inf
    error: PenstockError | None = None

    def __post_init__(self) -> None:
        self.ready, self.room = Condition(self.lock), Condition(self.lock)

    @property
    def wants_prompts(self) -> bool:
        """True while the next prompt may be drawn."""
        if self.over or self.exhausted:
            return False
        return not self.held_bytes or (
            len(self.held_bytes) < self.window.prompts and sum(self.held_bytes.values()) < self.window.bytes
        )

    def wait_for_room(self) -> bool:
        """Wait until the next prompt may be drawn; return False once the run is over. The lock must be held."""
        while not self.over and not self.wants_prompts:
            self.room.wait()
        return not self.over

    def add(self, item: Item) -> None:
        """Add the next prompt. The lock must be held."""
        if not self.over:
            item.index = self.drawn
            self.held_bytes[item.index] = item.bytes
            self.waiting.append(item)
            self.drawn += 1
        else:
            item.drop()

    def answer(self, item: Item, output: Output) -> None:
        """Store a prompt's output, and wake the job's thread if it takes this output next. The lock must be held."""
        if not self.over:
            self.held_bytes[item.index] = size_bytes(output.data)
            self.partials.pop(item.index, None)
            self.outputs[item.index] = output
            self.left -= item.cost
            if item.index == self.taken:
                self.ready.notify()

    def report_batch(self, prompts: int, progress: float) -> None:
        """Report a batch of so many prompts that advanced this run by `progress` prompts. The lock must be held."""
        if self.on_batch is not None and not self.over:
            self.on_batch(prompts, progress)

    def resume(self, item: Item, state: Any, partial: Output | None) -> None:
        """Queue a prompt for its next step, before all later prompts. The lock must be held.

        The partial output replaces an earlier one that was not taken.
        """
        item.state, item.begun = state, True
        if self.over:
            item.drop()
            return
        insort(self.waiting, item, key=lambda other: other.index)
        if partial is not None:
            self.held_bytes[item.index] = item.bytes + size_bytes(partial.data)
            self.partials[item.index] = partial
            if item.index == self.taken:
                self.ready.notify()

    def no_more_prompts(self) -> None:
        """Note that no more prompts will come. The lock must be held."""
        self.exhausted = True
        if self.taken == self.drawn:
            self.ready.notify()

    def end(self, error: PenstockError | None = None) -> None:
        """End the run; only the first error is kept. The lock must be held."""
        if self.over:
            return
        self.error, self.over, self.over_s = error, True, time.monotonic()
        self.among.pop(self, None)
        for item in self.waiting:
            item.drop()
        # Runners free a state's memory when the state is deleted.
        self.waiting.clear()
        self.ready.notify()
        self.room.notify()

    def take(self, check: Check) -> Iterator[Output]:
        """Yield outputs in the prompts' order, partial ones between; raise the run's error or the error of `check`."""
        while True:
            with self.lock:
                found = self._next()
                if not found and not self.over:
                    self.ready.wait(POLL_S)
                    found = self._next()
                if not found and self.over:  # without an error: all outputs were taken
                    return
            check()
            if found:
                yield found.pop()  # a yielded output is not kept here

    def _next(self) -> list[Output]:
        """Return the next output, else its latest partial one, else nothing. End the run with its last output.

        The lock must be held. Raises the run's error.
        """
        if self.error:
            raise self._hand_over(self.error)
        output = self.outputs.pop(self.taken, None)
        if output is not None:
            del self.held_bytes[self.taken]
            self.taken += 1
            self.room.notify()
        else:
            output = self.partials.pop(self.taken, None)
        if self.exhausted and self.taken == self.drawn:
            self.end()
        return [] if output is None else [output]

    def _hand_over(self, error: PenstockError) -> PenstockError:
        """Return the error and forget it: its frames hold states, which hold the run. The lock must be held."""
        self.error = None
        return error


def size_bytes(data: Any) -> int:
    """Return the bytes of a prompt's or an output's arrays."""
    return sum(getattr(value, "nbytes", 0) for value in data.values())
