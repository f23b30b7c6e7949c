"""vLLM's IO-processor plugins as processors, with a double of vLLM: see `tests/vllm/` for vLLM itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import (
    ConfigError,
    InvalidInput,
    MediaUnreadable,
    ModelUnavailable,
    ProcessorFailed,
)
from penstock.models import Limits, Model, media_references
from penstock.processors.base import Output, Prompt
from penstock.processors.registry import Registry, export
from penstock.processors.testing import LocalFiles, check_processor
from penstock.processors.vllm.library import Vllm
from penstock.processors.vllm.plugin import VllmPlugin, as_list
from penstock.processors.vllm.serialization import deserialize, serialize
from tests.support.vllm_plugins import FILES, a_directory, a_model, vllm_double

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[Path]:
    with vllm_double() as folder:
        yield folder


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return a_model(a_directory(tmp_path / "model"))


def triple(prompts: Iterator[Prompt]) -> Iterator[Output]:
    """Answer prompts like the double's engine."""
    for prompt in prompts:
        image = deserialize("prompt", prompt.data)["multi_modal_data"]["image"]["pixel_values"]
        assert image.dtype == torch.float16
        factor = deserialize("params", prompt.data)["extra_kwargs"]["factor"]
        yield Output({**serialize("output", image.float() * factor), "prompt_token_ids": [1]})


def numbers(tmp_path: Path, *values: Any, name: str = "in.json") -> dict[str, Path]:
    path = tmp_path / name
    path.write_text(json.dumps(values))
    return {FILES["file"]: path}


@pytest.mark.parametrize("plugin", ["tally", "later", "old", "first"])
def test_a_plugin_of_any_form_runs_as_a_processor(plugin: str, tmp_path: Path) -> None:
    processor = VllmPlugin(a_model(a_directory(tmp_path / "model"), plugin))
    files = numbers(tmp_path, 1, 2, 4) | {"media://other": numbers(tmp_path, 5, name="other.json")[FILES["file"]]}
    other = {"file": "media://other", "times": 3}
    done = check_processor(processor, FILES, files, engine=triple, other=other)
    assert done.result.data == {"data": {"name": "double", "total": 21.0, "images": [{"artifact": "images-0.png"}]}}
    media_type, data = done.artifacts["images-0.png"]
    assert (media_type, data[:8]) == ("image/png", PNG)


def test_the_record_says_what_a_request_may_hold(model: Model) -> None:
    entry = export(Registry().register("vllm-plugin", VllmPlugin), model)
    assert entry.problem is None
    assert entry.input_schema["required"] == ["file"]
    assert set(entry.input_schema["properties"]) == {"file", "times"}
    assert list(media_references(entry.input_schema, FILES)) == [("/file", FILES["file"])]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "'file' is a required property"),
        ({**FILES, "format": "url"}, "'format' was unexpected"),
        ({**FILES, "times": 0}, "times: 0 is less than the minimum of 1"),
        ({"file": 7}, "file: 7 is not of type 'string'"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(model: Model, request_: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VllmPlugin(model).request.model_validate(request_)


def prepare(model: Model, files: dict[str, Path], **more: Any) -> Any:
    processor = VllmPlugin(model)
    return processor, processor.pre_process(processor.request.model_validate({**FILES, **more}), LocalFiles(files))


def test_what_a_plugin_refuses_is_the_inputs_fault_and_names_no_path(model: Model, tmp_path: Path) -> None:
    missing = {FILES["file"]: tmp_path / "gone.json"}
    with pytest.raises(MediaUnreadable, match="cannot read its input: FileNotFoundError") as refused:
        prepare(model, missing)
    assert FILES["file"] in refused.value.detail
    assert str(tmp_path) not in refused.value.detail
    (tmp_path / "no.json").write_text("[")
    with pytest.raises(InvalidInput, match="rejects its input: JSONDecodeError"):
        prepare(model, {FILES["file"]: tmp_path / "no.json"})


def test_what_a_plugin_fails_at_is_its_own_fault(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ProcessorFailed, match="'tally' failed in pre_process: KeyError: 'not a number'"):
        prepare(model, numbers(tmp_path, "text"))
    processor, prepared = prepare(model, numbers(tmp_path, 400))
    with pytest.raises(ProcessorFailed, match="'tally' failed in post_process: RuntimeError: it does not fit"):
        processor.post_process(triple(prepared.prompts), prepared.context, None)


def test_more_prompts_than_the_model_takes_are_refused(model: Model, tmp_path: Path) -> None:
    few = model.model_copy(update={"limits": Limits(max_tiles=2)})
    assert prepare(few, numbers(tmp_path, 1, 2))[1].count == 2
    with pytest.raises(InvalidInput, match="3 prompts of this input; this model accepts at most 2"):
        prepare(few, numbers(tmp_path, 1, 2, 3))


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("broken", "'broken' cannot be loaded: RuntimeError: no licence found"),
        ("missing", "'missing' cannot be loaded: ModuleNotFoundError"),
        ("elsewhere", "'elsewhere' returned no class"),
        ("choosy", "does not contain the datamodule configuration"),
        ("unheard-of", "no vLLM plugin 'unheard-of' in this environment; installed: broken, choosy, crashing"),
    ],
)
def test_a_broken_plugin_is_its_models_problem_while_others_serve(plugin: str, said: str, tmp_path: Path) -> None:
    registry, source = Registry().register("vllm-plugin", VllmPlugin), a_directory(tmp_path / "model")
    assert said in (export(registry, a_model(source, plugin)).problem or "")
    assert export(registry, a_model(source)).problem is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plugin": ""}, "must name a vLLM plugin"),
        ({"plugins": 1}, "unknown options: plugins; known: engine, fields"),
        ({"media": "file"}, "must be a list of names"),
        ({"fixed": {"file": "x"}}, "listed twice in `media`, `fields` and `fixed`: file"),
        ({"fields": {"times": {"type": "number of times"}}}, "holds an invalid JSON Schema"),
        ({"sample": {"times": 1}}, "`options.sample` must be a table with at least file"),
        ({"sample": {"file": "none.json"}}, "`options.sample` names a missing file as file"),
        ({"sample": {"file": "numbers.json", "times": 0}}, "`options.sample` is no request of it: .*times: 0 is less"),
        ({"engine": "fast"}, "must be a table of vLLM's engine arguments"),
        ({"engine": {"colour": 1}}, "EngineArgs got unexpected keyword arguments"),
    ],
)
def test_a_record_that_makes_no_sense_says_where(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = a_model(a_directory(tmp_path / "model"), options=options)
    with pytest.raises((ConfigError, ModelUnavailable), match=said):
        VllmPlugin(model)


def test_a_warm_up_without_a_sample_is_refused_by_the_check_and_the_service_alike(tmp_path: Path) -> None:
    source = a_directory(tmp_path / "model")
    model = a_model(source, options={"sample": None})
    said = r'set `sample` in options, such as `sample = \{ file = "a file" \}`.*or set `warm_up = false` in the record'
    with pytest.raises(ConfigError, match=said):
        VllmPlugin(model)
    assert re.search(said, export(Registry.imported(), model).problem or "")
    cold = model.model_copy(update={"warm_up": False})
    assert export(Registry.imported(), cold).problem is None
    with pytest.raises(ConfigError, match=said):  # where it is asked for nevertheless: `models check --warm-up`
        VllmPlugin(cold).dummy(Limits(), tmp_path)


def test_the_warm_up_of_a_model_of_terratorchs_needs_no_sample(tmp_path: Path) -> None:
    source = a_directory(tmp_path / "model")
    tile = {"input": {"target": "x", "data": {"x": {"shape": [6, 32, 32]}}}, "model": {"init_args": {}}}
    a_directory(source, pretrained_cfg=tile)
    options = {"media": ["data"], "sample": None, "fixed": {}, "fields": {}}
    dummy = VllmPlugin(a_model(source, options=options)).dummy(Limits(), tmp_path)
    from rasterio import open as open_raster

    with open_raster(dummy.files[dummy.request["data"]]) as scene:
        assert (scene.count, scene.shape) == (6, (64, 64))


TREES: list[Any] = [
    "a text", [1, 2, 3], {"a": [None, True, 1.5, "x"], "b": {}}, ({"t": (1, 2)}, []), b"\0bytes",
]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_plain_trees_cross_whole(tree: Any) -> None:
    crossed = serialize("prompt", {"x": tree})
    json.dumps({name: value for name, value in crossed.items() if not isinstance(value, np.ndarray)})
    assert deserialize("prompt", crossed) == {"x": tree}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool])
def test_tensors_cross_with_their_dtype_and_every_bit(dtype: torch.dtype) -> None:
    tensor = torch.linspace(-3, 3, 12).reshape(3, 4).T.to(dtype)
    crossed = deserialize("prompt", serialize("prompt", [tensor]))[0]
    assert (crossed.dtype, crossed.tolist()) == (dtype, tensor.tolist())


def test_arrays_and_images_cross() -> None:
    image = Image.linear_gradient("L").convert("RGB")
    tree = deserialize("prompt", serialize("prompt", {"array": np.arange(6).reshape(2, 3), "image": image}))
    assert tree["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tree["image"].tobytes() == image.tobytes()


@pytest.mark.parametrize(
    "tree", [{1: 2}, {"@": 1}, {"x": object()}, {"x": {1, 2}}], ids=["number", "at", "object", "set"]
)
def test_what_cannot_cross_says_so(tree: Any) -> None:
    with pytest.raises(ProcessorFailed, match="cannot be serialized"):
        serialize("prompt", tree)


@pytest.mark.parametrize(
    "data", [{}, {"prompt": {"@": ["tensor", "prompt.9", "x"]}}, {"prompt": {"@": ["code", "prompt"]}}]
)
def test_what_no_plugin_made_is_not_put_together(data: dict[str, Any]) -> None:
    with pytest.raises(ProcessorFailed, match="is not a serialized prompt or answer of a plugin"):
        deserialize("prompt", data)


@pytest.mark.parametrize(
    ("made", "count"), [("one text", 1), ([1, 2, 3], 1), ({"prompt": "x"}, 1), (["a", "b"], 2), ([{}, {}], 2), ([], 0)]
)
def test_one_prompt_alone_is_a_list_of_one(made: Any, count: int) -> None:
    assert len(as_list(made)) == count


def test_without_vllm_the_model_says_what_to_install(model: Model) -> None:
    def load(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="vllm")

    registry = Registry().register("vllm-plugin", lambda model: VllmPlugin(model, Vllm(load)))
    problem = export(registry, model).problem
    assert problem is not None
    assert problem.startswith("vLLM is not installed where this worker runs: `pip install vllm`")
