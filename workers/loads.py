"""Loads of a worker's models: each is tried once in a process of its own, and one that ends its process backs off.

A failed load is stored with the job store, by model and machine. The machine then waits before its next try, and after
failures on many machines no further one tries: the model's jobs fail at once. See decision 116.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import structlog

from penstock import __version__
from penstock.catalogue.environments import digest_of
from penstock.errors import JobStoreError, LoadFailed, ModelUnavailable
from penstock.models import Model
from penstock.storage.redis import loads
from penstock.storage.redis.loads import MANY_MACHINES, LoadFailure
from penstock.storage.redis.records import Runs
from penstock.workers.engine.base import Check, Runner
from penstock.workers.engine.device_class import device_class
from penstock.workers.engine.runners import Runners
from penstock.workers.served_models import Failing, ServedModels
from penstock.workers.trial import try_load

#: Packages whose versions decide if a load ends well, beside that of the runner.
_PACKAGES = (
    "bitsandbytes", "diffusers", "lightgbm", "numpy", "olmoearth-pretrain-minimal", "onnxruntime", "onnxruntime-gpu",
    "rapidocr", "safetensors", "terratorch", "tokenizers", "torch", "torchvision", "transformers",
)  # fmt: skip
#: Fields of a record on which a load depends; the place of the files is another on each machine.
_FIELDS = {
    "name", "runner", "processor", "revision", "sha256", "files", "device", "dtype", "max_batch", "warm_up", "limits",
    "options", "dependencies",
}  # fmt: skip
#: Files of a model whose sizes are part of its digest.
_MOST_FILES = 1000
#: Seconds between two tries to become the only process of the machine that tries a model.
_ALONE_S = 0.2

log = structlog.get_logger(__name__)


class Loads:
    """Loads models for the engine, and tells the served models which of them wait. Safe to use from many threads."""

    def __init__(
        self, runners: Runners, store: Runs, served: ServedModels, folder: Path, *, machine: str | None = None,
        marks: Path | None = None,
    ) -> None:  # fmt: skip
        """`folder` is shared by the workers of this machine: one of them tries a model at a time.

        `machine` is the name of this machine [its host name]. In the folder `marks` the machine remembers loads that
        ended well, also without a job store or with a new one.
        """
        self._runners = runners
        self._store = store
        self._served = served
        self._folder = folder
        self._marks = marks
        self._machine = machine or socket.gethostname()
        self._lock = threading.Lock()
        #: Marks of loads that ended well here.
        self._passed: set[str] = set()

    def load(self, model: Model, check: Check) -> Runner:
        """Load a model's weights and return its runner; try the load in a process of its own unless one ended well.

        Raises `LoadFailed` if the load ended its process, now or so lately that the machine must wait;
        `ModelUnavailable` if it did on many machines; and what `check` raises.
        """
        record = record_of(model)
        try:
            if self._runners.loads_safely(model):
                if self._served.failing(model.name) is not None:
                    self._refuse(model, record)
            elif not self._has_passed(model, record):
                with self._alone(model.name, check):
                    if not self._has_passed(model, record):  # another worker of the machine may have tried it
                        self._refuse(model, record)
                        self._try(model, record, check)
            runner = self._runners.load(model)
        except LoadFailed as error:
            self._failed(model, record, error)
            raise
        self._succeeded(model)
        return runner

    def failing(self, model: Model) -> Failing | None:
        """Return what keeps this machine from loading a model, as the job store has it; None if nothing is known."""
        try:
            return _failing(self._failures(model, record_of(model)), self._machine)
        except JobStoreError:
            return None

    def look(self) -> Sequence[Model]:
        """Tell the served models what the job store knows of their loads; return the models to be tried again.

        Raises `JobStoreError`.
        """
        found = self._store.run(loads.load_failures())
        known, ready, again = {failure.model for failure in found}, self._served.ready(), list[Model]()
        for name, runnable in self._served.runnable().items():
            before = self._served.failing(name)
            if name in ready or (before is None and name not in known):
                continue
            record = record_of(runnable.model)
            now = _failing([each for each in found if (each.model, each.record) == (name, record)], self._machine)
            if now is not None or before is not None:
                self._served.set_failing(name, now)
            if now is None and before is not None:
                again.append(runnable.model)
        return again

    def _try(self, model: Model, record: str, check: Check) -> None:
        """Try a load, and remember that it ended well."""
        if not try_load(model, check):
            return
        mark = self._mark(model, record)
        self._passed.add(mark)
        if self._marks is not None:
            with suppress(OSError):
                self._marks.mkdir(parents=True, exist_ok=True)
                (self._marks / mark).touch()
        with suppress(JobStoreError):
            self._store.run(loads.store_passed(model.name, device_class(model), mark))

    def _has_passed(self, model: Model, record: str) -> bool:
        mark = self._mark(model, record)
        if mark in self._passed or (self._marks is not None and (self._marks / mark).exists()):
            return True
        try:
            return self._store.run(loads.passed(model.name, device_class(model))) == mark
        except JobStoreError:
            return False

    def _refuse(self, model: Model, record: str) -> None:
        """Raise the error of an earlier load that keeps this machine from trying now."""
        try:
            found = self._failures(model, record)
        except JobStoreError:
            return
        now = _failing(found, self._machine)
        if now is None:
            return
        own = next((each for each in found if each.machine == self._machine), found[0])
        if len(found) >= MANY_MACHINES:
            raise ModelUnavailable(f"{LoadFailed.of(model.name, own.how, own.lines).detail} (on {len(found)} machines)")
        if not now.claimable:
            raise LoadFailed.of(model.name, own.how, own.lines)

    def _failures(self, model: Model, record: str) -> list[LoadFailure]:
        found = self._store.run(loads.load_failures())
        return [each for each in found if (each.model, each.record) == (model.name, record)]

    def _failed(self, model: Model, record: str, error: LoadFailed) -> None:
        """Store a failed load, unless it is the one that keeps the machine waiting."""
        with self._lock:
            before = self.failing(model)
            if before is not None and not before.claimable:
                self._served.set_failing(model.name, before)
                return
            found = loads.load_failed(model.name, self._machine, record=record, how=error.how, lines=error.lines)
            wait_s = loads.FIRST_S
            try:
                wait_s = self._store.run(found)
            except JobStoreError:
                log.warning("load_failure.not_stored", model=model.name)
            log.error("model.load_failed", model=model.name, how=error.how, lines=error.lines, wait_s=wait_s)
            self._served.set_failing(model.name, Failing(f"its load {error.how}", claimable=False))

    def _succeeded(self, model: Model) -> None:
        """Forget this machine's earlier failures of a model that was loaded here."""
        if self._served.failing(model.name) is None:
            return
        with suppress(JobStoreError):
            self._store.run(loads.load_succeeded(model.name, self._machine))
        self._served.set_ready(model.name)

    def _mark(self, model: Model, record: str) -> str:
        """Return the digest of all on which a load depends, but the kind of machine."""
        if model.environment is not None:
            return _digest([record, __version__, digest_of(Path(model.environment))])
        return _digest([record, __version__, self._runners.release_of(model.runner), *map(_version, _PACKAGES)])

    @contextmanager
    def _alone(self, name: str, check: Check) -> Iterator[None]:
        """Keep the other workers of this machine from trying a model inside the block."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / f"{name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                check()
                time.sleep(_ALONE_S)
            yield
        finally:
            os.close(descriptor)


def record_of(model: Model) -> str:
    """Return the digest of a model's record and of the sizes of its file, or of the files directly in its folder."""
    about = model.model_dump(mode="json", include=_FIELDS, fallback=str)
    return _digest([about, _sizes(Path(model.source))])


def _sizes(source: Path) -> list[tuple[str, int]]:
    try:
        if source.is_file():
            return [("", source.stat().st_size)]
        return sorted((path.name, path.stat().st_size) for path in source.iterdir() if path.is_file())[:_MOST_FILES]
    except OSError:  # no file, as of a package
        return []


def _failing(found: Sequence[LoadFailure], machine: str) -> Failing | None:
    """Return the state on a machine of a model with these failures: it waits, may be tried, or fails its jobs."""
    own = next((each for each in found if each.machine == machine), None)
    if len(found) >= MANY_MACHINES:
        how = (own or found[0]).how
        return Failing(f"its load {how} on {len(found)} machines", claimable=True)
    return None if own is None else Failing(f"its load {own.how}", claimable=own.wait_s <= 0)


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
