"""The models of a worker: those that it can run, and the catalogue entry of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.models import CatalogueEntry, Model
from penstock.storage.redis.catalogues import CHECKING, FETCHING
from penstock.storage.redis.parts import part_lane
from penstock.workers.engine.device_class import device_class
from penstock.workers.provenance import facts_of


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model that this worker can run."""

    #: The model; its `source` is a local path.
    model: Model
    #: JSON Schema of the model's input; it marks the media references.
    schema: Mapping[str, Any]
    #: The model and this machine, for the environments of its results.
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failing:
    """The state of a model whose load ended its process."""

    #: The end of the load as a sentence: "its load was ended by SIGABRT".
    reason: str
    #: True if its jobs may be claimed, for the next try or because they fail at once.
    claimable: bool


class ServedModels:
    """The models of a worker by name, each with its entry. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, CatalogueEntry] = {}
        self._runnable: dict[str, RunnableModel] = {}
        #: Names of the models that stay in preparation although their entries have a problem.
        self._again: set[str] = set()
        #: Models whose loads ended their processes.
        self._failing: dict[str, Failing] = {}
        self._fetching = threading.Event()

    def put(self, model: Model, entry: CatalogueEntry, *, again: bool = False) -> None:
        """Add a model or replace its entry. A model whose entry has a problem cannot be run.

        Hashes the weights of a model that can be run and whose record has no hashes.
        With `again`, the model is fetched once more, and counts as being prepared until its next entry.
        """
        runnable = None if entry.problem else RunnableModel(model, entry.input_schema, facts_of(model))
        with self._lock:
            (self._again.add if again else self._again.discard)(model.name)
            self._set_entry(entry)
            if runnable is not None:
                self._runnable[model.name] = runnable

    def set_ready(self, name: str) -> None:
        """Make a model ready."""
        with self._lock:
            self._failing.pop(name, None)
            self._set_entry(self._entries[name].model_copy(update={"ready": True, "note": None}))

    def update(self, name: str, **changes: Any) -> None:
        """Change a model's entry: `ready`, or a `problem`."""
        with self._lock:
            self._set_entry(self._entries[name].model_copy(update=changes))

    def set_failing(self, name: str, failing: Failing | None) -> None:
        """Make a model whose load ended its process not ready, with the reason as its note; None: it is to be tried.

        A model that cannot be run stays as it is.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or name not in self._runnable:
                return
            if failing is None:
                self._failing.pop(name, None)
                self._set_entry(entry.model_copy(update={"note": None}))
            else:
                self._failing[name] = failing
                self._set_entry(entry.model_copy(update={"ready": False, "note": failing.reason}))

    def failing(self, name: str) -> Failing | None:
        """Return the state of a model whose load ended its process; None for any other."""
        with self._lock:
            return self._failing.get(name)

    def set_away(self, name: str, reason: str | None) -> bool:
        """Make a model whose server is away not ready, or with None ready; return True if this changed something.

        Jobs of such a model are accepted and wait. The reason is the note of the model's entry.
        """
        with self._lock:
            entry = self._entries[name]
            changed = entry.ready != (reason is None) or entry.note != reason
            if entry.problem is None and changed:
                self._set_entry(entry.model_copy(update={"ready": reason is None, "note": reason}))
            return changed

    def runnable(self) -> dict[str, RunnableModel]:
        """Return the models that can be run, ready or not."""
        with self._lock:
            return dict(self._runnable)

    def entries(self) -> list[CatalogueEntry]:
        """Return the catalogue entries for the API."""
        with self._lock:
            return list(self._entries.values())

    def ready(self) -> frozenset[str]:
        """Return the names of the models whose jobs may be claimed."""
        with self._lock:
            return frozenset(name for name, entry in self._entries.items() if entry.ready and entry.problem is None)

    def claimable(self) -> frozenset[str]:
        """Return the names under which jobs wait that may be claimed, and parts of jobs for this kind of machine.

        These are the jobs of ready models, and of those whose load ended its process and may be tried again.
        """
        ready, runnable = self.ready(), self.runnable()
        with self._lock:
            ready |= {name for name, failing in self._failing.items() if failing.claimable}
        return ready.union(part_lane(name, device_class(runnable[name].model)) for name in ready & runnable.keys())

    def preparing(self) -> bool:
        """Return True while a model is fetched, waits for another try to fetch it, is checked or warmed up.

        A model that could not be fetched several times counts no more; see `fetching`. Nor does one whose server is
        away.
        """
        with self._lock:
            return bool(self._again) or any(
                entry.problem in (CHECKING, FETCHING)
                or (entry.problem is None and not entry.ready and entry.note is None)
                for entry in self._entries.values()
            )

    @contextmanager
    def fetch(self) -> Iterator[None]:
        """Make `fetching` return True inside the block; for one thread."""
        self._fetching.set()
        try:
            yield
        finally:
            self._fetching.clear()

    def fetching(self) -> bool:
        """Return True while models are fetched, also after many failures."""
        return self._fetching.is_set()

    def _set_entry(self, entry: CatalogueEntry) -> None:
        """Store an entry; an entry with a problem is not ready, and its model cannot be run."""
        if entry.problem is not None:
            entry = entry.model_copy(update={"ready": False})
            self._runnable.pop(entry.name, None)
            self._failing.pop(entry.name, None)
        self._entries[entry.name] = entry
