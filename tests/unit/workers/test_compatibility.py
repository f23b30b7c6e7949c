"""The check of a model's runner and processor: what is refused, and what the refusal says."""

from __future__ import annotations

import hashlib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import helper

from penstock.models import Model
from penstock.processors.io_signature import IOSignature
from penstock.processors.registry import Registry
from penstock.workers.compatibility import checked_entry, processors_for, runners_for
from penstock.workers.engine.base import RunnerSpec
from penstock.workers.engine.fake import load_fake
from penstock.workers.engine.runners import GROUP, Runners
from tests.support.language import a_gpt2
from tests.support.model_directories import bytes_directory, image_directory, make_model
from tests.support.onnx_files import conv, save, value

REGISTRY, RUNNERS = Registry.installed(), Runners.installed()


def problem(model: Model, registry: Registry = REGISTRY, runners: Runners = RUNNERS) -> str:
    return checked_entry(registry, runners, model).problem or ""


def test_a_runner_that_gives_other_values_is_refused_with_those_that_fit(tmp_path: Path) -> None:
    bytes_directory(tmp_path)
    a_gpt2(tmp_path, vocab_size=257)
    assert problem(make_model(tmp_path, "text-generation", runner="vllm")) == (
        "the runner 'vllm' cannot serve the processor 'text-generation': it does not give `token_ids` (list), "
        "`finish_reason` (text); it does not take `max_new_tokens` (number), `temperature` (number), `top_p` (number), "
        "`seed` (number). Runners for 'text-generation': transformers. Processors for 'vllm': openai-chat, "
        "openai-completion, openai-embedding, tensor, text-embedding, vllm-plugin"
    )
    assert problem(make_model(tmp_path, "text-generation", runner="transformers")) == ""


def test_an_unknown_runner_is_refused(tmp_path: Path) -> None:
    model = make_model(image_directory(tmp_path, {0: "a"}), "image-classification", runner="magic")
    assert problem(model).startswith("there is no runner 'magic'; known runners: diffusers, ")


def means(path: Path, name: str) -> Path:
    """Save a network that gives each colour's mean under this name."""
    nodes = [helper.make_node("ReduceMean", ["pixels"], [name], axes=[2, 3], keepdims=0)]
    return save(path, nodes, [value("pixels", ("n", 3, "h", "w"))], [value(name, ("n", 3))], {})


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("logits", {}, ""),
        (
            "output1",
            {},
            "it does not give `logits` (array (classes)). Check the names in the model's options and files",
        ),
        ("output1", {"outputs": {"logits": {"name": "output1"}}}, ""),
        ("logits", {"outputs": {"scores": {"name": "logits"}}}, "it does not give `logits`"),
        ("logits", {"inputs": {"image": {"name": "pixels"}}}, "it does not take `pixels` (float32 (3, H, W))"),
    ],
)
def test_the_names_in_an_onnx_file_are_compared(tmp_path: Path, name: str, table: Any, said: str) -> None:
    path = means(image_directory(tmp_path, {0: "a"}) / "model.onnx", name)
    model = make_model(path.parent, "image-classification", runner="onnx", options={"onnx": table})
    found = problem(model)
    assert said in found
    assert bool(said) == bool(found)


def test_an_onnx_file_of_other_channels_and_axes_is_refused(tmp_path: Path) -> None:
    path = conv(image_directory(tmp_path, {0: "a"}) / "model.onnx", bands=6)
    said = problem(make_model(path.parent, "image-classification", runner="onnx"))
    assert "it takes `pixels` as float32 (6, _, _), the processor sends float32 (3, H, W)" in said
    assert "it gives `logits` as float32 (_, _, _), the processor reads array (classes)" in said


def a_program(folder: Path, description: str, **fields: Any) -> Model:
    image_directory(folder, {0: "a", 1: "b"})
    (folder / "penstock.toml").write_text(description)
    program = torch.export.export(torch.nn.Identity(), (torch.zeros(1, 3, 8, 8),))
    torch.export.save(program, folder / "program.pt2")
    files = {"program.pt2": hashlib.sha256((folder / "program.pt2").read_bytes()).hexdigest()}
    return make_model(folder, **{"processor": "image-classification", "runner": "torch", "files": files, **fields})


@pytest.mark.parametrize(
    ("output", "said"), [("logits", ""), ("probability", "it does not give `logits` (array (classes))")]
)
def test_the_names_in_penstock_toml_are_compared(tmp_path: Path, output: str, said: str) -> None:
    model = a_program(tmp_path, f'[inputs.pixels]\nshape = ["bands=3", "H", "W"]\n[outputs.{output}]')
    assert said in problem(model)
    assert bool(said) == bool(problem(model))


def test_class_ids_of_resized_images_need_a_network_that_knows_the_size(tmp_path: Path) -> None:
    description = '[inputs.pixels]\nshape = [3, "H", "W"]\n[outputs.classes]\nreduce = "argmax"'
    model = a_program(tmp_path, description, processor="image-segmentation")
    assert "it does not take `size` (list)" in problem(model)
    path = tmp_path / "preprocessor_config.json"
    path.write_text('{"image_processor_type": "ViTImageProcessor", "do_resize": false}')
    assert problem(model) == ""


def test_coordinates_need_a_network_that_takes_them(tmp_path: Path) -> None:
    bands = [{"name": "red", "mean": 0.1, "std": 0.1}]
    classes = [{"id": number, "name": str(number), "colour": "#000000"} for number in range(2)]
    scenes = {"bands": bands, "classes": classes, "tile_px": 32, "halo_px": 0, "stride_px": 1}
    description = '[inputs.pixels]\nshape = [1, "H", "W"]\n[outputs.probability]'
    model = a_program(tmp_path, description, processor="raster-segmentation", options=scenes)
    assert problem(model) == ""
    dated = {**scenes, "coordinates": {"time": "optional"}}
    assert "it does not take `temporal_coords`" in problem(model.model_copy(update={"options": dated}))


def test_class_ids_are_no_probabilities(tmp_path: Path) -> None:
    bands = [{"name": "red", "mean": 0.1, "std": 0.1}]
    classes = [{"id": number, "name": str(number), "colour": "#000000"} for number in range(2)]
    scenes = {"bands": bands, "classes": classes, "tile_px": 32, "halo_px": 0, "stride_px": 1}
    model = make_model(tmp_path, "raster-segmentation", runner="transformers", options={**scenes, "answer": "classes"})
    assert "it does not give `probability`" in problem(model)
    assert problem(model.model_copy(update={"options": scenes})) == ""


def test_a_post_processor_says_what_it_needs_of_the_network(tmp_path: Path) -> None:
    path = conv(image_directory(tmp_path, {0: "a"}) / "model.onnx", bands=3, names=("pixels", "scores"))
    steps = [{"use": "temperature", "options": {"by": 2}}]
    model = make_model(path.parent, "image-embedding", runner="onnx", post_processors=steps)
    said = problem(model)
    assert "it does not give `logits` (array), `embedding` (array (dimensions))" in said


class Plugin:
    """A processor of somebody else's, which declares nothing."""

    def __init__(self, _model: Model) -> None:
        from penstock.processors.tensors.request import TensorRequest

        self.request, self.outputs = TensorRequest, ()


class Declared(Plugin):
    io_signatures = (IOSignature(prompt={"waves": "float32 (T)"}, output={"notes": "list"}),)


def test_plugins_that_declare_nothing_are_not_refused(tmp_path: Path) -> None:
    registry = REGISTRY.register("plugin", Plugin).register("declared", Declared)
    own = RUNNERS.register("own", RunnerSpec(load_fake))
    assert problem(make_model(tmp_path, "plugin", runner="vllm"), registry) == ""
    assert problem(make_model(tmp_path, "declared", runner="own"), registry, own) == ""
    assert "it does not give `notes` (list)" in problem(make_model(tmp_path, "declared", runner="vllm"), registry)
    assert problem(make_model(tmp_path, "declared", runner="vllm"), registry).count("Runners for 'declared': none") == 1


def test_plugins_that_declare_their_signatures_are_named(tmp_path: Path) -> None:
    listens = {"listening": Declared.io_signatures}
    runners = RUNNERS.register("ear", RunnerSpec(load_fake, io_signatures=listens))
    registry = REGISTRY.register("declared", Declared).register("plugin", Plugin)
    assert runners_for(Declared.io_signatures, runners) == ["ear"]
    assert processors_for("ear", registry, runners) == ["declared"]
    assert problem(make_model(tmp_path, "declared", runner="ear"), registry, runners) == ""


def test_a_runner_that_cannot_be_imported_here_is_left_to_its_own_check(tmp_path: Path) -> None:
    runners = Runners({**RUNNERS.specs, "broken": EntryPoint("broken", "no_such_module:RUNNER", GROUP)})
    registry = REGISTRY.register("declared", Declared)
    assert problem(make_model(tmp_path, "declared", runner="broken"), registry, runners) == ""
    assert "broken" not in runners_for(Declared.io_signatures, runners)


def test_an_error_of_a_plugin_of_its_own_counts_as_nothing_known(tmp_path: Path) -> None:
    def fails(model: Model) -> None:
        raise KeyError(model.name)

    runners = RUNNERS.register("odd", RunnerSpec(load_fake, io_signatures_of=fails))
    registry = REGISTRY.register("declared", Declared)
    assert problem(make_model(tmp_path, "declared", runner="odd"), registry, runners) == ""
