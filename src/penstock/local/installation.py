"""The models that this machine can run: the catalogue, the local files of each model, and its problems."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.catalogue.environments import Environments
from penstock.catalogue.records import Catalogue, WrongRecord, catalogue_of
from penstock.config import Settings
from penstock.cores import cores
from penstock.errors import ConfigError, ModelUnavailable, ObjectStoreUnavailable, UnknownModel
from penstock.models import CatalogueEntry, Model, find, no_model
from penstock.processors.registry import Registry, unusable
from penstock.storage.objects.opening import open_store
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise, sha256_of
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import InThread, Processing


class Installation:
    """Models by name or alias. Safe to use from many threads."""

    def __init__(self, settings: Settings, processing: Processing, *, catalogue: Sequence[str | Path] = ()) -> None:
        """Read the shipped catalogue, then the catalogues of the settings, then `catalogue`.

        `processing` imports and runs the processors.
        """
        self._settings = settings
        self._processing = processing
        self.models: Catalogue = catalogue_of(settings, *map(Path, catalogue))
        #: Folder of fetched models.
        self.cache = settings.model_cache_dir
        self._lock = threading.Lock()
        #: Models without a problem, by name.
        self._found: dict[str, tuple[Model, CatalogueEntry]] = {}

    @property
    def names(self) -> list[str]:
        """The names of all records, including invalid ones, sorted."""
        return sorted({*self.models, *self.models.wrong})

    def wrong(self, name: str) -> WrongRecord | None:
        """Return the invalid record of this name; None if there is none."""
        return None if find(self.models, name) else find(self.models.wrong, name)

    def record(self, name: str) -> Model:
        """Return a model's record from the catalogue.

        Raises `UnknownModel` with the known names, or `ConfigError` with the record's problem.
        """
        record = find(self.models, name)
        if record is None:
            if wrong := self.wrong(name):
                raise ConfigError(wrong.problem)
            raise UnknownModel(no_model([name], self.models))
        return record

    def look_up(self, name: str, *, fetch: bool = False) -> tuple[Model, CatalogueEntry]:
        """Return a model's record, with a local path as source, and its catalogue entry.

        If the source cannot be fetched, or is missing and `fetch` is False, the source stays unchanged and the entry
        reports the problem. The entry of an invalid record reports the record's problem.
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
        """Return a model as `look_up` does, fetched if necessary.

        Raises `ModelUnavailable` with the model's problem, and the errors of `record`.
        """
        self.record(name)
        record, entry = self.look_up(name, fetch=True)
        if entry.problem is not None:
            raise ModelUnavailable(f"{record.name} cannot be used: {entry.problem}")
        return record, entry

    def fetch(self, name: str) -> Path:
        """Fetch a model's files if they are missing, check their hashes, and return their path.

        Raises `ConfigError` for a model that a server computes.
        """
        record = self.record(name)
        if Runners.installed().is_served(record):
            raise ConfigError(f"{record.name} has no files: the server at {record.source} computes")
        files = record.model_copy(update={"environment": None, "dependencies": ()})
        return Path(self._localise(files, fetch=True).source)

    def pins(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of each file of a model by its path inside the source; a single file's path is empty."""
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
        environments = Environments.of(self._settings)
        return localise(
            record, cache=self.cache, s3=lambda url: open_store(url, self._settings), fetch=fetch,
            environments=environments,
        )  # fmt: skip


def processing_here(settings: Settings, *, isolated: bool, log_level: str = "error") -> Processing:
    """Return the processing of local runs: in IO processes that log from `log_level` on, or in the calling thread."""
    if not isolated:
        return InThread(Registry.installed())
    options = ForkOptions(
        settings.io_memory_bytes,
        file_bytes=settings.io_file_bytes,
        preload=settings.io_preload,
        log_level=log_level,
        log_text=True,
        programs=settings.io_programs,
    )
    return IOPool(cores(), options)
