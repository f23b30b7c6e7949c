"""The models of a worker: which it can run, and what the API is told of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.models import CatalogueEntry, Model


@dataclass(frozen=True, slots=True)
class Serving:
    """A model that this worker can run."""

    #: Its `source` is a local path.
    model: Model
    #: JSON Schema of its input: where the media references are.
    schema: Mapping[str, Any]


class Shelf:
    """The models of a worker by name, each with its entry. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, CatalogueEntry] = {}
        self._serving: dict[str, Serving] = {}

    def put(self, model: Model, entry: CatalogueEntry) -> None:
        """Put a model there, or in the place of what was known of it: with a problem it cannot be run."""
        with self._lock:
            self._tell(entry)
            if entry.problem is None:
                self._serving[model.name] = Serving(model, entry.input_schema)

    def update(self, name: str, **changes: Any) -> None:
        """Change what is told of a model: `ready`, or a `problem`."""
        with self._lock:
            self._tell(self._entries[name].model_copy(update=changes))

    def serving(self) -> dict[str, Serving]:
        """Return the models that can be run, ready or not."""
        with self._lock:
            return dict(self._serving)

    def entries(self) -> list[CatalogueEntry]:
        """Return what the API is told."""
        with self._lock:
            return list(self._entries.values())

    def ready(self) -> frozenset[str]:
        """Return the names of the models whose jobs may be claimed."""
        with self._lock:
            return frozenset(name for name, entry in self._entries.items() if entry.ready and entry.problem is None)

    def _tell(self, entry: CatalogueEntry) -> None:
        """Keep an entry; one with a problem is not ready, and its model cannot be run."""
        if entry.problem is not None:
            entry = entry.model_copy(update={"ready": False})
            self._serving.pop(entry.name, None)
        self._entries[entry.name] = entry
