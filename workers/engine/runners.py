"""Installed runners by name: a value read once from the entry points of the environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

import structlog

from penstock.catalogue.environments import Environments
from penstock.errors import ModelUnavailable, PenstockError
from penstock.models import Model
from penstock.processors.io_signature import Offers
from penstock.workers.engine.base import Hosting, Runner, RunnerFactory, RunnerSpec
from penstock.workers.engine.device_class import uses_cuda
from penstock.workers.engine.memory import CONTEXT_BYTES

#: Entry points of this group name a `RunnerSpec`.
GROUP = "penstock.runners"
#: A runner that lists of known runners leave out.
_FOR_TESTS = "fake"

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Runners:
    """Runners by name, each imported when the first model of the runner is checked or loaded."""

    specs: Mapping[str, RunnerSpec | EntryPoint] = field(default_factory=dict)

    @classmethod
    @cache
    def installed(cls) -> Runners:
        """Return every installed runner without importing any."""
        return cls(MappingProxyType({point.name: point for point in entry_points(group=GROUP)}))

    @classmethod
    def of(cls, factories: Mapping[str, RunnerFactory]) -> Runners:
        """Return runners with these loading functions, for tests."""
        return cls({name: RunnerSpec(factory) for name, factory in factories.items()})

    def register(self, name: str, spec: RunnerSpec) -> Runners:
        """Return a registry that has this runner too."""
        return Runners(MappingProxyType({**self.specs, name: spec}))

    def load(self, model: Model) -> Runner:
        """Load a model, in a process of its own or here, and return its runner; raise `ModelUnavailable`."""
        if (hosting := self.hosting_of(model)) is None:
            return self.load_here(model)
        from penstock.workers.engine.hosted.runner import load_hosted

        return self._call("loaded", partial(load_hosted, hosting=hosting), model)

    def load_here(self, model: Model) -> Runner:
        """Load a model's weights in this process and return its runner; raise `ModelUnavailable`.

        A runner that starts a program of the model's environment does so.
        """
        self.import_for(model)
        return self._call("loaded", self._spec(model.runner).load, model)

    def import_for(self, model: Model) -> None:
        """Import what the model's runner needs to load it, without touching a device; raise `ModelUnavailable`."""
        begun = time.monotonic()
        self._call("loaded", self._spec(model.runner).imports, model)
        import_s = round(time.monotonic() - begun, 3)
        log.info("runner.imported", runner=model.runner, model=model.name, import_s=import_s)

    def check(self, model: Model) -> None:
        """Check a model's files and options, without its weights where the runner can; raise `ModelUnavailable`.

        A process of the model's environment does it, for all models of that environment.
        """
        spec = self._spec(model.runner)
        self.hosting_of(model)
        if not spec.checks_apart and (model.environment is None or spec.starts_program(model)):
            self.check_here(model)
            return
        from penstock.workers.engine.checking import check_apart

        check_apart(model)

    def check_here(self, model: Model) -> None:
        """Check a model in this process; raise `ModelUnavailable`."""
        spec = self._spec(model.runner)
        if spec.check is None:
            self.load_here(model).close()
        else:
            self._call("checked", spec.check, model)

    def is_served(self, model: Model) -> bool:
        """Return True for a model that a server computes; False for an unknown or broken runner, too."""
        try:
            return self._spec(model.runner).served
        except ModelUnavailable:  # the check reports it
            return False

    def loads_safely(self, model: Model) -> bool:
        """Return True if a model's load cannot end this process; also for an unknown or broken runner."""
        try:
            return self._spec(model.runner).loads_safely or self.hosting_of(model) is not None
        except ModelUnavailable:  # loading reports it
            return True

    def release_of(self, name: str) -> str:
        """Return the name and version of the package that has a runner; empty if it is not installed by a package."""
        found = self.specs.get(name)
        dist = found.dist if isinstance(found, EntryPoint) else None
        return "" if dist is None else f"{dist.name} {dist.version}"

    def with_environment(self, model: Model, environments: Environments, *, build: bool) -> Model:
        """Return a model with its environment, and what that says of it; raise `ModelUnavailable` if there is none."""
        if model.environment is None and not model.dependencies:
            return model
        return self._spec(model.runner).with_environment(model, environments, build)

    def expected_bytes(self, model: Model) -> int:
        """Return the bytes of memory that a model is expected to take; 0 if unknown: loading reports the reason."""
        try:
            expected = self._call("measured", self._spec(model.runner).expected_bytes, model)
            return expected + (CONTEXT_BYTES if expected and self.hosting_of(model) and uses_cuda(model) else 0)
        except ModelUnavailable:
            return 0

    def hosting_of(self, model: Model) -> Hosting | None:
        """Return how a model runs in a process of its own; None if it runs here. Raises `ModelUnavailable`."""
        spec = self._spec(model.runner)
        hosting = spec.hosting(model)
        asked = "own_process" if model.own_process else "environment"
        apart = model.own_process or (model.environment is not None and not spec.starts_program(model))
        if hosting is None and apart:
            reason = f"the runner {model.runner!r} computes such models inside the worker: leave out `{asked}`"
            raise ModelUnavailable(f"model {model.name!r}: {reason}")
        return hosting if apart else None

    def hub_files(self, model: Model) -> Sequence[str]:
        """Return glob patterns of the files to fetch from a model's repository on the hub; raise `ModelUnavailable`."""
        return self._call("fetched", self._spec(model.runner).hub_files, model)

    def offers(self, name: str) -> Offers | None:
        """Return the signatures that a runner declares; None if it declares none. Raises `ModelUnavailable`."""
        return self._spec(name).io_signatures

    def offers_of(self, model: Model) -> Offers | None:
        """Return the signatures of a model with its runner, without its weights; None if they are not known.

        Raises `ModelUnavailable` for an unknown runner, or one that cannot be imported.
        """
        spec = self._spec(model.runner)
        try:
            return spec.io_signatures_of(model) or spec.io_signatures
        except Exception as error:  # wrong files or options, which `check` and `load` report
            log.info("runner.signatures_unknown", runner=model.runner, model=model.name, error=repr(error))
            return spec.io_signatures

    @property
    def names(self) -> Sequence[str]:
        """The names of the runners for users, sorted."""
        return sorted(set(self.specs) - {_FOR_TESTS})

    def _spec(self, name: str) -> RunnerSpec:
        if name not in self.specs:
            known = ", ".join(self.names) or "none"
            raise ModelUnavailable(f"there is no runner {name!r}; known runners: {known}")
        found = self.specs[name]
        return self._imported(found) if isinstance(found, EntryPoint) else found

    @staticmethod
    def _imported(point: EntryPoint) -> RunnerSpec:
        try:
            spec = point.load()
        except Exception as error:
            log.exception("runner.broken", runner=point.name, source=point.value)
            problem = f"{point.value} cannot be imported: {type(error).__name__}: {error}"
            raise ModelUnavailable(f"the runner {point.name!r}: {problem}") from error
        if not isinstance(spec, RunnerSpec):
            raise ModelUnavailable(f"the runner {point.name!r}: {point.value} is not a RunnerSpec")
        return spec

    @staticmethod
    def _call(done: str, function: Callable[[Model], T], model: Model) -> T:
        try:
            return function(model)
        except PenstockError:
            raise
        except Exception as error:
            log.exception("runner.failed", runner=model.runner, model=model.name)
            raise ModelUnavailable(f"model {model.name!r} could not be {done} ({type(error).__name__})") from error
