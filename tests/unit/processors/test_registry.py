from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.cli.doctor import _models
from penstock.client.answers import ModelInfo
from penstock.client.decoding import read
from penstock.errors import ConfigError, InvalidRequest, Issue, ModelUnavailable
from penstock.intake.submissions import check_input
from penstock.models import CatalogueEntry, Limits, MediaReference, Model, media_references
from penstock.processors.base import OutputSpec
from penstock.processors.language.request import TextEmbeddingRequest
from penstock.processors.registry import Registry, export
from penstock.processors.vision.request import ClassificationRequest


class Request(BaseModel):
    scene: MediaReference


class Processor:
    request = Request
    outputs = (OutputSpec("text", "text/plain", "What it says."),)

    def __init__(self, model: Model) -> None:
        self.model = model


class Particular(Processor):
    def __init__(self, model: Model) -> None:
        raise ConfigError(f"model {model.name!r}: wrong options")


class Broken(Processor):
    def __init__(self, model: Model) -> None:
        raise KeyError(model.name)


def a_model(processor: str = "good", **fields: Any) -> Model:
    return Model(name="m", title="M", runner="fake", processor=processor, source="none", revision="7", **fields)


REGISTRY = Registry().register("good", Processor).register("particular", Particular).register("broken", Broken)


def test_registering_returns_a_new_registry() -> None:
    first = Registry()
    second = first.register("good", Processor)
    assert dict(first.processors) == {}
    assert dict(second.processors) == {"good": Processor}
    with pytest.raises(TypeError):
        second.processors["other"] = Processor  # type: ignore[index]


def test_a_processor_is_made_from_its_model_s_record() -> None:
    processor: Any = REGISTRY.processor_for(a_model())
    assert isinstance(processor, Processor)
    assert processor.model == a_model()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelUnavailable, match="'magic'; installed: broken, good, particular"):
        REGISTRY.processor_for(a_model("magic"))


def test_the_shipped_processors_are_installed() -> None:
    registry = Registry.imported()
    assert "raster-segmentation" in {*registry.processors, *registry.problems}


def test_a_plugin_that_cannot_be_imported_is_its_models_problem_and_others_serve() -> None:
    registry = REGISTRY._with_entry_point(EntryPoint("plugin", "no_such_module:Processor", "penstock.io_processors"))
    entry = export(registry, a_model("plugin"))
    assert entry.problem is not None
    assert "no_such_module" in entry.problem
    assert export(registry, a_model("good")).problem is None


def test_a_model_is_exported_with_all_the_api_needs() -> None:
    model = a_model(limits=Limits(max_bytes=5), licence="MIT", max_attempts=2)
    entry = export(REGISTRY, model)
    assert (entry.name, entry.revision, entry.limits, entry.licence, entry.max_attempts) == (
        *("m", "7", Limits(max_bytes=5), "MIT", 2),
    )
    assert entry.input_schema == Request.model_json_schema()
    assert list(media_references(entry.input_schema, {"scene": "media://1"})) == [("/scene", "media://1")]
    assert [output.name for output in entry.outputs] == ["text"]
    assert CatalogueEntry.model_validate_json(entry.model_dump_json()) == entry


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        ("particular", "model 'm': wrong options"),
        ("broken", "the processor 'broken' rejects model 'm': 'm'"),
        ("magic", "model 'm': there is no processor 'magic'; installed: broken, good, particular"),
    ],
)
def test_what_is_wrong_with_a_model_is_its_problem_and_no_exception(processor: str, problem: str) -> None:
    entry = export(REGISTRY, a_model(processor))
    assert entry.problem == problem
    assert entry.outputs == ()


def test_wrong_views_are_the_models_problem() -> None:
    class Unclear(Processor):
        views = ("labels",)

    entry = export(REGISTRY.register("unclear", Unclear), a_model("unclear"))
    assert entry.problem is not None
    assert "views" in entry.problem
    assert export(REGISTRY, a_model()).problem is None


@pytest.mark.parametrize(
    ("processor_request", "field", "items"),
    [
        (TextEmbeddingRequest, "texts", ["a", "b"]),
        (TextEmbeddingRequest, "files", ["media://1", "media://2"]),
        (ClassificationRequest, "images", ["media://1", "media://2"]),
    ],
)
def test_the_api_refuses_more_items_than_a_model_takes(
    processor_request: type[BaseModel], field: str, items: list[str]
) -> None:
    class OfItems(Processor):
        request = processor_request  # type: ignore[assignment]

    registry = Registry().register("good", OfItems)
    few = export(registry, a_model(limits=Limits(max_items=1)))
    with pytest.raises(InvalidRequest) as refused:
        check_input(few, {field: items})
    assert refused.value.errors == (Issue(f"/input/{field}", "has 2 items; at most 1 are allowed"),)
    check_input(few, {field: items[:1]})
    check_input(export(registry, a_model()), {field: items})
    assert "x-items" not in str(few.input_schema)


def test_a_plugin_s_problem_is_one_sentence() -> None:
    registry = REGISTRY._with_entry_point(EntryPoint("plugin", "no_such_module:Processor", "penstock.io_processors"))
    entry = export(registry, a_model("plugin"))
    problem = entry.problem or ""
    assert problem.startswith(
        "the processor 'plugin': no_such_module:Processor cannot be imported: ModuleNotFoundError"
    )
    (finding,) = _models([read(ModelInfo, entry.model_dump(mode="json"))], {"m"})
    assert (finding.ok, finding.detail) == (False, problem)
    assert "models check m" in finding.remedy
    assert "install" not in finding.remedy
