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
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.recipe import Recipe, read_recipe

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
        ({"architecture": "prithvi_eo_v2_300", "pretrained_cfg": {"img_size": 224}}, "a backbone without a head"),
        (config(task="terratorch.tasks.ClassificationTask"), "task ClassificationTask; known tasks: Semantic"),
        (config(model_factory="os.system"), "factory os.system; known factories: EncoderDecoderFactory"),
        (config(ARGS | {"head_final_act": "os.abort"}), "Python object os.abort in head_final_act"),
        (config(ARGS | {"necks": [{"name": "x", "act": "torch.hub.load"}]}), "torch.hub.load in necks"),
        (config(ARGS | {"decoder_kwargs": {"a": {"b": "sys.exit"}}}), "sys.exit in decoder_kwargs"),
        (config(ARGS | {"num_classes": 13}), "13 classes, options.classes are 2"),
        (config(ARGS | {"backbone_bands": ["RED"]}), "1 bands, options.bands are 6"),
        (config(ARGS | {"backbone_num_frames": 1}), "1 dates, options.dates are 3"),
        (config(task="terratorch.tasks.PixelwiseRegressionTask"), "processor raster-regression serves"),
        (config(task="terratorch.tasks.ObjectDetectionTask"), "task ObjectDetectionTask; known tasks: Semantic"),
        (config({"num_classes": 2}), "config.json names no backbone"),
        ([], "not a JSON object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(content: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Checkpoint.of(record(folder(tmp_path, content)))


TERRAMIND = {"backbone": "terramind_v1_base", "backbone_modalities": ["S2L2A"]}
TWO = TERRAMIND | {"backbone_modalities": ["S2L2A", "S1GRD"]}


def two_bands(name: str) -> dict[str, Any]:
    return {"name": name, "bands": [{}] * 2}


def embedding(path: Path, **options: Any) -> Model:
    return record(path, **options).model_copy(update={"processor": "raster-embedding"})


def test_a_published_backbone_takes_the_dates_of_the_record(tmp_path: Path) -> None:
    path = folder(tmp_path, {"architecture": "prithvi_eo_v2_300", "pretrained_cfg": {"img_size": 224}})
    recipe = Checkpoint.of(embedding(path)).recipe
    assert (recipe.task, recipe.bands, recipe.dates, recipe.stacks_dates) == ("embedding_generation", 6, 3, True)


def test_the_record_has_the_arguments_of_a_network_without_a_config(tmp_path: Path) -> None:
    save_file(WEIGHT, tmp_path / "model.safetensors")
    recipe = Checkpoint.of(embedding(tmp_path, terratorch=TERRAMIND, bands=[{}] * 12, dates=1)).recipe
    assert (recipe.task, recipe.args, recipe.bands) == ("embedding_generation", TERRAMIND, 12)
    listed = TWO | {"backbone_bands": {"S2L2A": ["BLUE", "RED"]}}
    sensors = {"bands": [{}] * 2, "modality": "S2L2A", "modalities": [two_bands("S1GRD")]}
    assert Checkpoint.of(embedding(tmp_path, terratorch=listed, dates=1, **sensors)).recipe.bands == 4
    fine_tune = record(tmp_path, terratorch=ARGS)
    assert Checkpoint.of(fine_tune).recipe == Recipe(
        "segmentation", "EncoderDecoderFactory", ARGS, "options.terratorch"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"terratorch": TERRAMIND, "dates": 1}, "12 bands, options.bands are 6"),
        ({"terratorch": TWO, "dates": 1}, "14 bands, options.bands are 6"),
        (
            {"terratorch": TWO, "dates": 1, "bands": [{}] * 14},
            r"the modalities S2L2A \(12 bands\), S1GRD \(2 bands\), the options have \(no name\) \(14 bands\)",
        ),
        (
            {
                "terratorch": TWO,
                "dates": 1,
                "bands": [{}] * 12,
                "modality": "S2L2A",
                "modalities": [two_bands("S1RTC")],
            },
            r"the options have S2L2A \(12 bands\), S1RTC \(2 bands\)",
        ),
        ({"terratorch": TERRAMIND | {"backbone_modalities": ["captions"]}}, "some of S2L2A, S2L1C"),
        ({"terratorch": {"backbone": "terramind_v1_base"}}, r"has the modalities \[\]"),
        ({"terratorch": {"backbone": "prithvi_eo_v2_300"}}, "1 dates, options.dates are 3"),
        ({"terratorch": {"backbone_act": "os.system"}}, "options.terratorch names no backbone"),
        (
            {"terratorch": TERRAMIND | {"act": "os.system"}},
            "options.terratorch names the Python object os.system",
        ),
        ({"terratorch": {"backbone": "clay_v1_base"}, "dates": 1, "tile_px": 224}, "takes tiles of 256 pixels"),
        ({"pooling": "sum"}, "options.pooling is 'sum'; known poolings: patches, mean"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = folder(tmp_path, {"architecture": "prithvi_eo_v2_300"})
    with pytest.raises(ModelUnavailable, match=sentence):
        Checkpoint.of(embedding(path, **options))


def test_embeddings_are_of_one_layer() -> None:
    task = "terratorch.tasks.EmbeddingGenerationTask"
    assert read_recipe(config(ARGS, task, layers=[-2])).layer == -2
    with pytest.raises(ModelUnavailable, match=r"layers \[0, 1\]: embeddings are made of one layer"):
        read_recipe(config(ARGS, task, layers=[0, 1]))


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


CLAY = {
    "model_factory": "Clay1_5ModelFactory", "platform": "s2", "dim": 24, "depth": 1, "heads": 1, "dim_head": 8,
    "mlp_ratio": 2.0, "metadata": {"s2": {"gsd": 10, "bands": {"wavelength": {"blue": 0.493, "red": 0.665}}}},
}  # fmt: skip


def clay(path: Path, **options: object) -> Model:
    """Return the record of one file of weights, which has no config beside it."""
    torch.save({"state_dict": {"model.encoder.cls_token": torch.ones(1, 1, 24)}}, path / "clay-v1.5.ckpt")
    fields = {"bands": [{"name": "blue"}, {"name": "red"}], "dates": 1, "terratorch": CLAY, "tile_px": 256, **options}
    return record(path / "clay-v1.5.ckpt", **fields).model_copy(update={"processor": "raster-embedding"})


def test_a_file_alone_is_understood_by_the_options_of_its_record(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(clay(tmp_path))
    assert checkpoint.weights == tmp_path / "clay-v1.5.ckpt"
    assert (checkpoint.recipe.bands, checkpoint.recipe.dates, checkpoint.recipe.side_px) == (2, 1, None)
    assert checkpoint.tensors().keys() == {"encoder.cls_token"}
    other = clay(tmp_path).model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ModelUnavailable, match="is not the catalogue's"):
        Checkpoint.of(other)


WAVES = {"metadata": {"s2": {"gsd": 10, "bands": {"wavelength": {"red": 0.665, "blue": 0.493}}}}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"terratorch": {}}, "its source is one file: options.terratorch must have the arguments of the network"),
        ({"terratorch": CLAY | WAVES}, "options.bands are blue, red, and the wavelengths are of red, blue: give both"),
        ({"bands": [{"name": "blue"}]}, "of a network of 2 bands, options.bands are 1"),
        ({"tile_px": 250}, "options.tile_px is 250: Clay takes multiples of 8"),
        (
            {"terratorch": CLAY | {"platform": "s1"}},
            "is not of Clay1_5ModelFactory: Value error, metadata has no platf",
        ),
        ({"terratorch": CLAY | {"heads": "many"}}, "options.terratorch is not of Clay1_5ModelFactory: heads: Input sh"),
        (
            {"terratorch": CLAY | {"model_factory": "Other"}},
            "the factory Other; known factories: .*Clay1_5ModelFactory",
        ),
    ],
)
def test_a_record_of_clay_that_cannot_be_right_is_refused(
    options: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Checkpoint.of(clay(tmp_path, **options))


def test_clay_is_served_for_embeddings_alone(tmp_path: Path) -> None:
    model = clay(tmp_path).model_copy(update={"processor": "raster-segmentation"})
    with pytest.raises(ModelUnavailable, match="Clay1_5ModelFactory, which is served for the task embedding_gener"):
        Checkpoint.of(model)


@pytest.mark.skipif(find_spec("terratorch") is not None, reason="TerraTorch is installed here")
@pytest.mark.parametrize("look", [Runners.installed().check, Runners.installed().load], ids=["check", "load"])
def test_without_terratorch_it_says_what_to_install(look: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"terratorch is not installed: pip install '.\[terratorch\]'"):
        look(record(folder(tmp_path)))
