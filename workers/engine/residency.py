"""Which models are loaded: on demand, kept by least recent use."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from penstock.errors import ModelUnavailable, PenstockError
from penstock.models import Model
from penstock.workers.engine.base import Check, Runner, RunnerFactory

log = structlog.get_logger(__name__)

#: How often a waiting job looks whether it must stop.
POLL_S = 0.2

#: A model's name and revision.
Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class Resident:
    """A loaded model. It stays loaded while it has users."""

    model: Model
    runner: Runner
    load_s: float
    users: int = 0
    #: Largest batch by kind of prompt, where the model's own did not fit in the device's memory.
    reduced: dict[Hashable, int] = field(default_factory=dict)


class Residency:
    """The loaded models of one device, at most `max_models` of them. Safe to use from many threads.

    A model that finds no room waits until one that is loaded has no users: swapping between batches would cost more.
    With room for as many models as jobs run at a time nobody waits.
    """

    def __init__(self, factories: Mapping[str, RunnerFactory], *, max_models: int) -> None:
        self._factories = factories
        self._max_models = max_models
        self._changed = threading.Condition()
        #: Least recently used first.
        self._residents: OrderedDict[Key, Resident] = OrderedDict()
        self._loading: set[Key] = set()

    @contextmanager
    def using(self, model: Model, check: Check) -> Iterator[Resident]:
        """Load the model unless it is loaded and keep it so inside the block."""
        resident = self._acquire(model, check)
        try:
            yield resident
        finally:
            self.release(resident)

    def hold(self, resident: Resident) -> None:
        """Add a user to a model that has one."""
        with self._changed:
            resident.users += 1

    def release(self, resident: Resident) -> None:
        """Take a user away."""
        with self._changed:
            resident.users -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Unload everything."""
        with self._changed:
            residents = list(self._residents.values())
            self._residents.clear()
        for resident in residents:
            _unload(resident)

    def _acquire(self, model: Model, check: Check) -> Resident:
        key = model.name, model.revision
        while True:
            check()
            with self._changed:
                if resident := self._residents.get(key):
                    resident.users += 1
                    self._residents.move_to_end(key)
                    return resident
                if key not in self._loading and (idle := self._make_room()) is not None:
                    self._loading.add(key)
                    break
                self._changed.wait(POLL_S)
        for unused in idle:
            _unload(unused)
        return self._load(key, model)

    def _make_room(self) -> list[Resident] | None:
        """Forget the least recently used idle models until one more fits and return them; None if none fits."""
        surplus = len(self._residents) + len(self._loading) + 1 - self._max_models
        idle = [key for key, resident in self._residents.items() if not resident.users]
        if surplus > len(idle):
            return None
        return [self._residents.pop(key) for key in idle[: max(0, surplus)]]

    def _load(self, key: Key, model: Model) -> Resident:
        started = time.monotonic()
        resident = None
        try:
            resident = Resident(model, self._make(model), time.monotonic() - started, users=1)
        finally:
            with self._changed:
                self._loading.discard(key)
                if resident:
                    self._residents[key] = resident
                self._changed.notify_all()
        log.info("model.loaded", model=model.name, revision=model.revision, load_s=round(resident.load_s, 3))
        return resident

    def _make(self, model: Model) -> Runner:
        factory = self._factories.get(model.runner)
        if factory is None:
            known = ", ".join(sorted(self._factories)) or "none"
            raise ModelUnavailable(f"model {model.name!r} names the runner {model.runner!r}; there are: {known}")
        try:
            return factory(model)
        except PenstockError:
            raise
        except Exception as error:
            log.exception("model.load_failed", model=model.name)
            raise ModelUnavailable(f"model {model.name!r} could not be loaded ({type(error).__name__})") from error


def _unload(resident: Resident) -> None:
    try:
        resident.runner.close()
    except Exception:
        log.exception("model.unload_failed", model=resident.model.name)
    else:
        log.info("model.unloaded", model=resident.model.name)
