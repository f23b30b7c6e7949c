"""Loaded models: loaded on demand, unloaded by least recent use within a budget of memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import structlog

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.numbers import as_floats
from penstock.processors.reductions import without_request
from penstock.workers.engine.base import Check, Elsewhere, Queues, Runner, TakesNumbers
from penstock.workers.engine.encoder_cache import EncoderCache
from penstock.workers.engine.runners import Runners

log = structlog.get_logger(__name__)

#: Seconds between two checks of a waiting job for its own end.
POLL_S = 0.2

#: Loads a model and returns its runner, or raises `ModelUnavailable` or the error of the check.
Load = Callable[[Model, Check], Runner]

#: A model's name and revision.
Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class Resident:
    """A loaded model, which stays loaded while it has users."""

    model: Model
    runner: Runner
    load_s: float
    users: int = 0
    #: Largest batch by bucket, where the model's own did not fit into the device's memory.
    reduced: dict[Hashable, int] = field(default_factory=dict)
    #: The runner, if another engine computes.
    elsewhere: Elsewhere | None = field(init=False, default=None)
    #: True if the runner steps in a process of its own, and the number of batches that it has there.
    queues: bool = field(init=False, default=False)
    under_way: int = field(init=False, default=0)
    #: True if the runner takes prompts of a file's own numbers.
    takes_numbers: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.elsewhere = self.runner if isinstance(self.runner, Elsewhere) else None
        self.queues = isinstance(self.runner, Queues)
        self.takes_numbers = isinstance(self.runner, TakesNumbers) and self.runner.takes_numbers

    def fitted(self, prompt: Prompt) -> Prompt:
        """Return a prompt as the runner takes it: for most runners floats, without a request to reduce the scores."""
        return prompt if self.takes_numbers else without_request(as_floats(prompt))


class Residency:
    """The loaded models of one device: at most `max_models`, and at most `budget_bytes` of memory for their weights.

    Safe to use from many threads. A model without room waits until a loaded model has no users: swapping models between
    batches would cost more. With room for as many models as jobs run at a time no job waits.
    """

    def __init__(
        self, runners: Runners, *, max_models: int, budget_bytes: Callable[[], int], load: Load | None = None
    ) -> None:
        """`load` loads a model for which there is room; None = by its runner."""
        self._runners = runners
        self._load_runner = load or (lambda model, _check: runners.load(model))
        self._max_models = max_models
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: Least recently used first.
        self._residents: OrderedDict[Key, Resident] = OrderedDict()
        #: Expected bytes of each model that is being loaded.
        self._loading: dict[Key, int] = {}
        #: Bytes of each model when it was last loaded.
        self._known_bytes: dict[Key, int] = {}

    def acquire(self, model: Model, check: Check) -> Resident:
        """Load the model unless it is loaded, and add a user, which `release` removes."""
        key = model.name, model.revision
        check()
        with self._lock:
            if resident := self._used(key):
                return resident
        expected = self._expected_bytes(key, model)
        while True:
            check()
            with self._lock:
                if resident := self._used(key):
                    return resident
                size = self._known_bytes.get(key, expected)
                self._refuse_if_too_large(model, size)
                if key in self._loading or (idle := self._make_room(size)) is None:
                    self._changed.wait(POLL_S)
                    continue
                self._loading[key] = size
            for unused in idle:
                _unload(unused)
            if resident := self._load(key, model, check):
                return resident

    def _used(self, key: Key) -> Resident | None:
        """Return a loaded model with one more user. The lock must be held."""
        if resident := self._residents.get(key):
            resident.users += 1
            self._residents.move_to_end(key)
        return resident

    def hold(self, resident: Resident) -> None:
        """Add a user to a model that has users."""
        with self._lock:
            resident.users += 1

    def release(self, resident: Resident) -> None:
        """Remove a user from a model."""
        with self._lock:
            resident.users -= 1
            if not resident.users:  # only then it may make room for another model
                self._changed.notify_all()

    def names(self) -> frozenset[str]:
        """Return the names of the loaded models."""
        with self._lock:
            return frozenset(name for name, _revision in self._residents)

    def kept_bytes(self) -> dict[str, int]:
        """Return the bytes of cached encodings of each loaded model that caches them."""
        with self._lock:
            found = (
                (resident.model.name, getattr(resident.runner, "encodings", None))
                for resident in self._residents.values()
            )
            return {name: encodings.held_bytes for name, encodings in found if isinstance(encodings, EncoderCache)}

    def close(self) -> None:
        """Unload everything."""
        with self._lock:
            residents = list(self._residents.values())
            self._residents.clear()
        for resident in residents:
            _unload(resident)

    def _expected_bytes(self, key: Key, model: Model) -> int:
        """Return the bytes of a model when last loaded, else the estimate, which is at most the whole budget.

        Called without the lock, because estimates read files.
        """
        with self._lock:
            known = self._known_bytes.get(key)
        return min(self._runners.expected_bytes(model), self._budget_bytes()) if known is None else known

    def _make_room(self, size_bytes: int) -> list[Resident] | None:
        """Remove the least recently used idle models until one more fits and return them; None if none would fit."""
        surplus = len(self._residents) + len(self._loading) + 1 - self._max_models
        taken_bytes = sum(resident.runner.memory_bytes for resident in self._residents.values())
        surplus_bytes = taken_bytes + sum(self._loading.values()) + size_bytes - self._budget_bytes()
        idle = []
        for key, resident in self._residents.items():
            if surplus <= 0 and surplus_bytes <= 0:
                break
            if not resident.users:
                idle.append(key)
                surplus, surplus_bytes = surplus - 1, surplus_bytes - resident.runner.memory_bytes
        if surplus > 0 or surplus_bytes > 0:
            return None
        return [self._residents.pop(key) for key in idle]

    def _load(self, key: Key, model: Model, check: Check) -> Resident | None:
        """Load a model for which room was made; return None if it turned out larger and must wait for more room."""
        resident = None
        started = time.monotonic()
        try:
            resident = Resident(model, self._load_runner(model, check), time.monotonic() - started, users=1)
        finally:
            with self._lock:
                del self._loading[key]
                idle = self._keep(key, resident) if resident else ()
                self._changed.notify_all()
        if idle is None:
            _unload(resident)
            return None
        for unused in idle:
            _unload(unused)
        log.info("model.loaded", model=model.name, revision=model.revision, load_s=round(resident.load_s, 3))
        return resident

    def _keep(self, key: Key, resident: Resident) -> list[Resident] | None:
        """Add a loaded model and return the models to unload; None if the model has no room. The lock must be held."""
        self._known_bytes[key] = resident.runner.memory_bytes
        idle = self._make_room(resident.runner.memory_bytes)
        if idle is not None:
            self._residents[key] = resident
        return idle

    def _refuse_if_too_large(self, model: Model, size_bytes: int) -> None:
        if size_bytes > (budget := self._budget_bytes()):
            raise ModelUnavailable(
                f"model {model.name!r} takes {size_bytes:,} bytes of memory, and models may take {budget:,} here"
            )


def _unload(resident: Resident) -> None:
    try:
        resident.runner.close()
    except Exception:
        log.exception("model.unload_failed", model=resident.model.name)
    else:
        log.info("model.unloaded", model=resident.model.name)
