"""A TerraTorch checkpoint's directory is understood, or refused with what is wrong, before TerraTorch is imported."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import sha256_of
from penstock.workers.engine.terratorch.checkpoint import Checkpoint, Recipe, read_recipe

ARGS = {
    "backbone": "prithvi_eo_v2_300_tl",
    "backbone_bands": ["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"],
    "backbone_num_frames": 3,
    "decoder": "UNetDecoder",
    "num_classes": 2,
}
WEIGHT = {"encoder.cls_token": torch.ones(2)}


def config(
    args: dict[str, Any] | None = None, task: str = "terratorch.tasks.SemanticSegmentationTask", **more: Any
) -> dict[str, Any]:
    init = {"model_factory": "EncoderDecoderFactory", "model_args": ARGS if args is None else args, **more}
    return {"pretrained_cfg": {"model": {"class_path": task, "init_args": init}}}


def folder(path: Path, content: object = None) -> Path:
    (path / "config.json").write_text(json.dumps(config() if content is None else content))
    save_file(WEIGHT, path / "model.safetensors")
    return path


def record(path: Path, **options: Any) -> Model:
    fields = {"bands": [{}] * 6, "dates": 3, "classes": [{}, {}], **options}
    return Model(
        name="flood", title="", runner="terratorch", processor="raster-segmentation", source=str(path), revision="1",
        options=fields,
    )  # fmt: skip


def test_a_published_fine_tune_is_understood(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(record(folder(tmp_path)))
    recipe = checkpoint.recipe
    assert recipe == Recipe("segmentation", "EncoderDecoderFactory", ARGS)
    assert (recipe.channels, recipe.bands, recipe.dates, recipe.stacks_dates) == (2, 6, 3, True)
    assert checkpoint.weights == tmp_path / "model.safetensors"
    assert checkpoint.tensors().keys() == WEIGHT.keys()


def as_yaml(path: Path, content: object, name: str = "flood_config.yaml") -> Path:
    folder(path)
    (path / "config.json").unlink()
    (path / name).write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("beside", [None, {"architecture": "prithvi_eo_v2_300"}, {}])
def test_the_config_of_the_command_line_is_understood(beside: object, tmp_path: Path) -> None:
    as_yaml(tmp_path, {"trainer": {"max_epochs": 3}, **config()["pretrained_cfg"]})
    (tmp_path / "conda.yml").write_text("dependencies: [terratorch]")
    if beside is not None:
        (tmp_path / "config.json").write_text(json.dumps(beside))
    assert Checkpoint.of(record(tmp_path)).recipe == Recipe(
        "segmentation", "EncoderDecoderFactory", ARGS, "flood_config.yaml"
    )


def test_the_json_of_a_directory_comes_before_its_yaml(tmp_path: Path) -> None:
    as_yaml(tmp_path, config({"backbone": "other"})["pretrained_cfg"])
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert Checkpoint.of(record(tmp_path)).recipe == Recipe("segmentation", "EncoderDecoderFactory", ARGS)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (config(ARGS | {"act": "os.abort"})["pretrained_cfg"], r"flood_config\.yaml names the Python object os.abort"),
        (config(ARGS | {"num_classes": 13})["pretrained_cfg"], r"flood_config\.yaml is of a network of 13 classes"),
        ({"model": {"init_args": {}}}, r"flood_config\.yaml has no model\.init_args\.model_args"),
        ({"data": {}}, r"config\.json has no pretrained_cfg\.model"),
    ],
)
def test_what_does_not_fit_in_yaml_is_named(content: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Checkpoint.of(record(as_yaml(tmp_path, content)))


def test_yaml_that_would_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    as_yaml(tmp_path, {})
    text = f"model: !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']"
    (tmp_path / "flood_config.yaml").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"flood_config\.yaml is not plain YAML: could not determine"):
        Checkpoint.of(record(tmp_path))
    assert not (tmp_path / "ran").exists()
    yaml.unsafe_load(text)  # the attack is one
    assert (tmp_path / "ran").exists()


def test_two_configs_of_the_command_line_are_too_many(tmp_path: Path) -> None:
    as_yaml(tmp_path, config()["pretrained_cfg"], "a.yaml")
    (tmp_path / "b.yml").write_text(yaml.safe_dump(config()["pretrained_cfg"]))
    with pytest.raises(ModelUnavailable, match=r"several of its files are configs of a network: a\.yaml, b\.yml"):
        Checkpoint.of(record(tmp_path))


def test_a_regression_answers_one_quantity_unless_it_says_more() -> None:
    of_task = {"task": "terratorch.tasks.PixelwiseRegressionTask"}
    assert read_recipe(config({"backbone": "b"}, **of_task)).channels == 1
    assert read_recipe(config({"backbone": "b", "num_outputs": 3}, **of_task)).channels == 3


def test_arguments_of_the_backbone_may_stand_together() -> None:
    kwargs = {"num_frames": 4, "bands": ["RED"], "use_temporal": True}
    recipe = read_recipe(config({"backbone": "b", "backbone_kwargs": kwargs}))
    assert (recipe.dates, recipe.bands, recipe.stacks_dates) == (4, 1, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "no pretrained_cfg.model.init_args.model_args"),
        ({"pretrained_cfg": {"model": {"init_args": {}}}}, "no pretrained_cfg.model.init_args.model_args"),
        ({"architecture": "prithvi_eo_v2_300", "pretrained_cfg": {"img_size": 224}}, "prithvi_eo_v2_300 alone"),
        (config(task="terratorch.tasks.ClassificationTask"), "task ClassificationTask; known tasks: Semantic"),
        (config(model_factory="os.system"), "factory os.system; known factories: EncoderDecoderFactory"),
        (config(ARGS | {"head_final_act": "os.abort"}), "Python object os.abort in head_final_act"),
        (config(ARGS | {"necks": [{"name": "x", "act": "torch.hub.load"}]}), "torch.hub.load in necks"),
        (config(ARGS | {"decoder_kwargs": {"a": {"b": "sys.exit"}}}), "sys.exit in decoder_kwargs"),
        (config(ARGS | {"num_classes": 13}), "13 classes, options.classes are 2"),
        (config(ARGS | {"backbone_bands": ["RED"]}), "1 bands, options.bands are 6"),
        (config(ARGS | {"backbone_num_frames": 1}), "1 dates, options.dates are 3"),
        (config(task="terratorch.tasks.PixelwiseRegressionTask"), "processor raster-regression serves"),
        ([], "not a JSON object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(content: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Checkpoint.of(record(folder(tmp_path, content)))


def test_layers_of_torch_and_names_of_timm_are_no_code() -> None:
    harmless = {
        "backbone": "resnet18.a1_in1k",
        "head_final_act": "torch.nn.Sigmoid",
        "act": "torch.nn.modules.activation.ReLU",
    }
    assert read_recipe(config(harmless)).args == harmless


def test_of_a_pickle_nothing_but_tensors_is_read(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    training = {
        "state_dict": {"model.encoder._timm_module.cls_token": torch.ones(2), "model.encoder.pos_embed": torch.ones(1),
                       "model.aux_heads.a.weight": torch.ones(1), "criterion.weight": torch.ones(1)},
        "epoch": 3,
    }  # fmt: skip
    torch.save(training, tmp_path / "Flood.pt")
    assert Checkpoint.of(record(tmp_path)).tensors().keys() == {"encoder.cls_token"}


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_does_not(zipped: bool, tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    content = {"state_dict": WEIGHT, "callback": Attack(tmp_path / "ran")}
    torch.save(content, tmp_path / "Flood.ckpt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelUnavailable, match="holds more than tensors"):
        Checkpoint.of(record(tmp_path)).tensors()
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(content["callback"]))  # the attack is one
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("junk", [b"", b"junk", b"PK\x03\x04 no archive"])
@pytest.mark.parametrize("name", ["model.safetensors", "Flood.pt"])
def test_damaged_weights_are_named(name: str, junk: bytes, tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(ModelUnavailable, match=name):
        Checkpoint.of(record(tmp_path)).tensors()


def test_of_several_files_the_one_with_a_hash_is_taken(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match=r"lacks the weights: model\.safetensors, or"):
        Checkpoint.of(record(tmp_path))
    for name in ("best.ckpt", "last.ckpt"):
        torch.save(WEIGHT, tmp_path / name)
    with pytest.raises(ModelUnavailable, match=r"several files of weights \(best.ckpt, last.ckpt\)"):
        Checkpoint.of(record(tmp_path))
    pinned = {"files": {"last.ckpt": sha256_of(tmp_path / "last.ckpt")}}
    assert Checkpoint.of(record(tmp_path).model_copy(update=pinned)).weights.name == "last.ckpt"


@pytest.mark.skipif(find_spec("terratorch") is not None, reason="TerraTorch is installed here")
@pytest.mark.parametrize("look", [Runners.installed().check, Runners.installed().load], ids=["check", "load"])
def test_without_terratorch_it_says_what_to_install(look: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"terratorch is not installed: pip install '.\[terratorch\]'"):
        look(record(folder(tmp_path)))
