"""Registry of the installed IO processors, read from the environment's entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from penstock.errors import ModelUnavailable, PenstockError
from penstock.models import CatalogueEntry, Model, Output, Step, limited
from penstock.processors.base import IOProcessor
from penstock.processors.io_signature import IOSignature, declared

if TYPE_CHECKING:
    from penstock.processors.chain import PostProcessor

#: Group of entry points. Each names a class that is called with a `Model` and makes an `IOProcessor`.
GROUP = "penstock.io_processors"
#: Processors of Penstock that call the library of their model: they run in the model's environment.
OF_LIBRARIES = frozenset({"vllm-plugin"})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registry:
    """Processor classes by name, and the import errors of broken ones by name."""

    processors: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def installed(cls) -> Registry:
        """Return a registry that imports each installed processor at its first use."""
        return cls(MappingProxyType({point.name: point for point in entry_points(group=GROUP)}))

    @classmethod
    def imported(cls) -> Registry:
        """Import every installed processor. A processor that fails to import affects only its own models."""
        registry = cls()
        for point in entry_points(group=GROUP):
            registry = registry._with_entry_point(point)
        return registry

    def register(self, name: str, processor: Any) -> Registry:
        """Return a copy with one more processor."""
        problems = {known: problem for known, problem in self.problems.items() if known != name}
        return replace(
            self,
            processors=MappingProxyType({**self.processors, name: processor}),
            problems=MappingProxyType(problems),
        )

    def processor_for(self, model: Model) -> IOProcessor[Any, Any]:
        """Make the model's processor, with the post-processors that the model names.

        Raises `ModelUnavailable` with the reason, or with the installed names if the processor is unknown.
        """
        processor = self._processor(model)
        if not model.post_processors:
            return processor
        from penstock.processors.chain import Chain

        return Chain(processor, [_made(step, model) for step in model.post_processors])

    def io_signatures(self) -> Mapping[str, tuple[IOSignature, ...] | None]:
        """Return the signatures that each processor's class declares, None if it declares none; imports all of them.

        A processor that fails to import is left out.
        """
        found: dict[str, tuple[IOSignature, ...] | None] = {}
        for name, processor in self.processors.items():
            known = self._with_entry_point(processor) if isinstance(processor, EntryPoint) else self
            if name not in known.problems:
                found[name] = declared(known.processors[name])
        return found

    def _processor(self, model: Model) -> IOProcessor[Any, Any]:
        name = model.processor
        if problem := self.problems.get(name):
            raise ModelUnavailable(f"the processor {name!r}: {problem}")
        if name not in self.processors:
            known = ", ".join(sorted({*self.processors, *self.problems})) or "none"
            raise ModelUnavailable(f"model {model.name!r}: there is no processor {name!r}; installed: {known}")
        if isinstance(point := self.processors[name], EntryPoint):
            return self._with_entry_point(point)._processor(model)
        try:
            processor: IOProcessor[Any, Any] = self.processors[name](model)
        except PenstockError as error:
            raise ModelUnavailable(error.detail) from error
        except Exception as error:
            log.exception("processor.broken", processor=name, model=model.name)
            raise ModelUnavailable(f"the processor {name!r} rejects model {model.name!r}: {error}") from error
        return processor

    def _with_entry_point(self, point: EntryPoint) -> Registry:
        try:
            return self.register(point.name, point.load())
        except Exception as error:
            log.exception("processor.broken", processor=point.name, source=point.value)
            problem = f"{point.value} cannot be imported: {type(error).__name__}: {error}"
            return replace(self, problems=MappingProxyType({**self.problems, point.name: problem}))


@cache
def is_installed(name: str) -> bool:
    """Return True for a processor that is installed in this environment."""
    return bool(entry_points(group=GROUP, name=name))


def _made(step: Step, model: Model) -> PostProcessor:
    """Make a post-processor of a model; raise `ModelUnavailable` with the reason or the installed names."""
    from penstock.processors.chain import STEPS

    name, points = step.use, {point.name: point for point in entry_points(group=STEPS)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ModelUnavailable(f"model {model.name!r}: there is no post-processor {name!r}; installed: {known}")
    try:
        made: PostProcessor = points[name].load()(model, step.options)
    except PenstockError as error:
        raise ModelUnavailable(error.detail) from error
    except Exception as error:
        log.exception("post_processor.broken", post_processor=name, model=model.name)
        raise ModelUnavailable(f"the post-processor {name!r} rejects model {model.name!r}: {error}") from error
    return made


def export(
    registry: Registry, model: Model, *, check: Callable[[IOProcessor[Any, Any]], None] = lambda _: None
) -> CatalogueEntry:
    """Return the model's catalogue entry for the API; the entry of a broken model has a `problem`.

    `check` raises an error for a processor that cannot be used.
    """
    common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
    fields = {name: getattr(model, name) for name in common}
    try:
        processor = registry.processor_for(model)
        check(processor)
        schema = limited(processor.request.model_json_schema(), model.limits)
        outputs = tuple(
            Output(name=o.name, media_type=o.media_type, description=o.description, default=o.default)
            for o in processor.outputs
        )
        views = tuple(getattr(processor, "views", ()))
        return CatalogueEntry(**fields, input_schema=schema, outputs=outputs, views=views)
    except Exception as error:
        problem = error.detail if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        return unusable(model, problem)


def unusable(model: Model, problem: str) -> CatalogueEntry:
    """Return the catalogue entry of a model that cannot be used, with the reason."""
    common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
    fields = {name: getattr(model, name) for name in common}
    return CatalogueEntry(**fields, input_schema={}, outputs=(), problem=problem)
