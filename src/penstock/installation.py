"""The models that this machine can run: the catalogue, what is here of each model, and what is wrong with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.config import Settings
from penstock.errors import ConfigError, ModelUnavailable, ObjectStoreUnavailable, UnknownModel
from penstock.models import Catalogue, CatalogueEntry, Model, WrongRecord, find, known_names, read_catalogue
from penstock.processors.registry import Registry, unusable
from penstock.storage.objects import open_store
from penstock.workers.engine.sources import localise, sha256_of
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import InThread, Processing


class Installation:
    """Models by name or alias. Safe to use from many threads."""

    def __init__(self, settings: Settings, processing: Processing, *, catalogue: Sequence[str | Path] = ()) -> None:
        """Read the catalogue: the shipped one, those of the settings, and then the files named here.

        `processing` says where processors are imported.
        """
        self._settings = settings
        self._processing = processing
        self.models: Catalogue = read_catalogue(*settings.models, *map(Path, catalogue))
        #: Where fetched models lie.
        self.cache = settings.model_cache_dir
        self._lock = threading.Lock()
        #: Models without a problem.
        self._found: dict[str, tuple[Model, CatalogueEntry]] = {}

    @property
    def names(self) -> list[str]:
        """The names of all records, also of wrong ones, sorted."""
        return sorted({*self.models, *self.models.wrong})

    def wrong(self, name: str) -> WrongRecord | None:
        """Return a record that makes no model; None where there is none of this name, or a right one."""
        return None if find(self.models, name) else find(self.models.wrong, name)

    def record(self, name: str) -> Model:
        """Return a model's record as it stands in the catalogue.

        Raises `UnknownModel` with the known names, or `ConfigError` with what is wrong with the record.
        """
        record = find(self.models, name)
        if record is None:
            if wrong := self.wrong(name):
                raise ConfigError(wrong.problem)
            raise UnknownModel(f"there is no model {name!r}; known models: {known_names(self.models)}")
        return record

    def look_up(self, name: str, *, fetch: bool = False) -> tuple[Model, CatalogueEntry]:
        """Return a model's record, its source a local path, and what the API would serve of it.

        Where the source cannot be had, or without `fetch` is not here yet, it stays as it is and the entry says so. Of
        a wrong record the entry says what is wrong with it.
        """
        if wrong := self.wrong(name):
            return wrong.rest, unusable(wrong.rest, wrong.problem)
        record = self.record(name)
        with self._lock:
            found = self._found.get(record.name) or self._look_up(record, fetch=fetch)
            if found[1].problem is None:
                self._found[record.name] = found
            return found

    def servable(self, name: str) -> tuple[Model, CatalogueEntry]:
        """Return a model as `look_up` does, fetched where it must be.

        Raises `ModelUnavailable` with its problem, and what `record` raises.
        """
        self.record(name)
        record, entry = self.look_up(name, fetch=True)
        if entry.problem is not None:
            raise ModelUnavailable(f"{record.name} cannot be used: {entry.problem}")
        return record, entry

    def fetch(self, name: str) -> Path:
        """Bring a model's files here, unless they are, check their hashes, and return where they lie."""
        return Path(self._localise(self.record(name), fetch=True).source)

    def pins(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of each file of a model by its path inside the source; of a source that is one file, by
        the empty path."""
        source = self.fetch(name)
        if source.is_file():
            return {"": sha256_of(source)}
        paths = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        seen = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
        return {path.as_posix(): sha256_of(source / path) for path in seen}

    def _look_up(self, record: Model, *, fetch: bool) -> tuple[Model, CatalogueEntry]:
        try:
            record = self._localise(record, fetch=fetch)
        except (ModelUnavailable, ObjectStoreUnavailable) as error:
            return record, unusable(record, error.detail)
        return record, self._processing.entry(record)

    def _localise(self, record: Model, *, fetch: bool) -> Model:
        return localise(record, cache=self.cache, s3=lambda url: open_store(url, self._settings), fetch=fetch)


def processing_here(settings: Settings, *, isolated: bool, log_level: str = "error") -> Processing:
    """Return where processors work: in IO processes as in a worker, which log what is so grave, or in the calling
    thread."""
    if not isolated:
        return InThread(Registry.found())
    options = ForkOptions(settings.io_memory_bytes, preload=settings.io_preload, log_level=log_level)
    return IOPool(os.cpu_count() or 1, options)
