"""The IO processors that are installed, by name: a value read once from the entry points of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from penstock.errors import ModelUnavailable, PenstockError
from penstock.models import CatalogueEntry, Model, Output, Step, limited
from penstock.processors.base import IOProcessor

if TYPE_CHECKING:
    from penstock.processors.chain import PostProcessor

#: Entry points of this group name a class that is called with a `Model` and gives its `IOProcessor`.
GROUP = "penstock.io_processors"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registry:
    """Processor classes by name, and why those that could not be imported are missing."""

    processors: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def found(cls) -> Registry:
        """Return every installed processor without importing any: each is imported when it is first asked for."""
        return cls(MappingProxyType({point.name: point for point in entry_points(group=GROUP)}))

    @classmethod
    def installed(cls) -> Registry:
        """Import every installed processor; one that fails is a problem of its models and of nothing else."""
        registry = cls()
        for point in entry_points(group=GROUP):
            registry = registry._with_entry_point(point)
        return registry

    def register(self, name: str, processor: Any) -> Registry:
        """Return a registry that has this processor too."""
        problems = {known: problem for known, problem in self.problems.items() if known != name}
        return replace(
            self,
            processors=MappingProxyType({**self.processors, name: processor}),
            problems=MappingProxyType(problems),
        )

    def processor_for(self, model: Model) -> IOProcessor[Any, Any]:
        """Make the model's processor, behind the post-processors that the model names.

        Raises `ModelUnavailable` with what is wrong or which names there are.
        """
        processor = self._processor(model)
        if not model.post_processors:
            return processor
        from penstock.processors.chain import Chain

        return Chain(processor, [_made(step, model) for step in model.post_processors])

    def _processor(self, model: Model) -> IOProcessor[Any, Any]:
        name = model.processor
        if problem := self.problems.get(name):
            raise ModelUnavailable(f"the processor {name!r}: {problem}")
        if name not in self.processors:
            known = ", ".join(sorted({*self.processors, *self.problems})) or "none"
            raise ModelUnavailable(f"model {model.name!r} names the processor {name!r}; installed are: {known}")
        if isinstance(point := self.processors[name], EntryPoint):
            return self._with_entry_point(point)._processor(model)
        try:
            processor: IOProcessor[Any, Any] = self.processors[name](model)
        except PenstockError as error:
            raise ModelUnavailable(error.detail) from error
        except Exception as error:
            log.exception("processor.broken", processor=name, model=model.name)
            raise ModelUnavailable(f"the processor {name!r} does not take model {model.name!r}: {error}") from error
        return processor

    def _with_entry_point(self, point: EntryPoint) -> Registry:
        try:
            return self.register(point.name, point.load())
        except Exception as error:
            log.exception("processor.broken", processor=point.name, source=point.value)
            problem = f"{point.value} cannot be imported: {type(error).__name__}: {error}"
            return replace(self, problems=MappingProxyType({**self.problems, point.name: problem}))


def _made(step: Step, model: Model) -> PostProcessor:
    """Make a post-processor of a model; raise `ModelUnavailable` with what is wrong or which names there are."""
    from penstock.processors.chain import STEPS

    name, points = step.use, {point.name: point for point in entry_points(group=STEPS)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ModelUnavailable(f"model {model.name!r} names the post-processor {name!r}; installed are: {known}")
    try:
        made: PostProcessor = points[name].load()(model, step.options)
    except PenstockError as error:
        raise ModelUnavailable(error.detail) from error
    except Exception as error:
        log.exception("post_processor.broken", post_processor=name, model=model.name)
        raise ModelUnavailable(f"the post-processor {name!r} does not take model {model.name!r}: {error}") from error
    return made


def export(registry: Registry, model: Model) -> CatalogueEntry:
    """Return the model as the API serves it; what keeps it from being used is its `problem`, not an exception."""
    common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
    fields = {name: getattr(model, name) for name in common}
    try:
        processor = registry.processor_for(model)
        schema = limited(processor.request.model_json_schema(), model.limits)
        outputs = tuple(
            Output(name=o.name, media_type=o.media_type, description=o.description, default=o.default)
            for o in processor.outputs
        )
    except Exception as error:
        problem = error.detail if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        return unusable(model, problem)
    return CatalogueEntry(**fields, input_schema=schema, outputs=outputs)


def unusable(model: Model, problem: str) -> CatalogueEntry:
    """Return the entry of a model that cannot be used, with the reason."""
    common = set(Model.model_fields) & set(CatalogueEntry.model_fields)
    fields = {name: getattr(model, name) for name in common}
    return CatalogueEntry(**fields, input_schema={}, outputs=(), problem=problem)
