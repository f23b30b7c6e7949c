"""`penstock models check`: what it finds of a model without reading its weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from penstock.errors import ModelUnavailable
from penstock.local.inspection import ModelFinding, Sample, inspect
from penstock.local.library import Engine
from penstock.processors.geo.sample import write_sample
from tests.support.hub import a_bert, a_segformer, a_vit
from tests.support.language import a_gpt2
from tests.support.model_directories import bytes_directory

RECORD = """
[models.mine]
title = "Mine"
runner = "{runner}"
processor = "{processor}"
source = "files"
revision = "1"
{more}
"""


def problems(folder: Path, runner: str, processor: str, more: str = "") -> str:
    """Return what is said of a model whose files lie in `folder/files`."""
    (folder / "files").mkdir(exist_ok=True)
    (folder / "models.toml").write_text(RECORD.format(runner=runner, processor=processor, more=more))
    with Engine(catalogue=[folder / "models.toml"]) as engine:
        (found,) = inspect(engine, ["mine"], warm_up=False)
    return "; ".join(found.problems)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """Return a folder that is good as `image-classification`."""
    files = a_vit(tmp_path / "files")
    recipe = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}'
    (files / "preprocessor_config.json").write_text(recipe)
    return tmp_path


def test_a_whole_directory_is_good(classifier: Path) -> None:
    assert problems(classifier, "transformers", "image-classification") == ""


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(classifier: Path, name: str) -> None:
    (classifier / "files" / name).unlink()
    assert f"it lacks the file {name}" in problems(classifier, "transformers", "image-classification")


def test_a_model_type_that_nobody_knows_is_named(classifier: Path) -> None:
    config = classifier / "files" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "vitt"}))
    assert "the unknown model_type 'vitt'; near it are: vit" in problems(
        classifier, "transformers", "image-classification"
    )  # fmt: skip


def test_an_unknown_runner_is_told_of_those_that_there_are(classifier: Path) -> None:
    known = "diffusers, function, lightgbm, olmoearth, onnx, openai-server, rapidocr, terratorch, torch"
    assert f"known runners: {known}, transformers, vllm" in problems(classifier, "tensorflow", "image-classification")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("encoder_cache_bytes = -1", "is a number of bytes, 0 for none, not -1"),
    ],
)
def test_options_that_mean_nothing_are_found(classifier: Path, options: str, said: str) -> None:
    assert said in problems(classifier, "transformers", "image-classification", f"options = {{ {options} }}")


def test_options_of_earlier_versions_are_noted_and_no_problem(tmp_path: Path) -> None:
    a_gpt2(bytes_directory(tmp_path / "files"), vocab_size=257)
    more = 'measure_batch = true\noptions = { batching = "continuous", cache_tokens = 1024, cuda_graphs = true }'
    (tmp_path / "models.toml").write_text(RECORD.format(runner="transformers", processor="text-generation", more=more))
    with Engine(catalogue=[tmp_path / "models.toml"]) as engine:
        (found,) = inspect(engine, ["mine"], warm_up=False)
    assert found.ok, found.problems
    noted = [note.partition(" has no effect any more: ")[0] for note in found.notes]
    assert noted == [
        "no hashes are pinned",
        "measure_batch",
        "options.batching",
        "options.cache_tokens",
        "options.cuda_graphs",
    ]


def test_weights_are_not_read(classifier: Path) -> None:
    (classifier / "files" / "model.safetensors").write_bytes(b"damaged")
    assert problems(classifier, "transformers", "image-classification") == ""


def test_a_model_type_that_does_not_fit_the_task_is_said_first(classifier: Path) -> None:
    said = problems(classifier, "transformers", "text-embedding")
    assert "the task 'text-embedding' does not fit model_type 'vit', which can do: image-classification" in said
    assert said.index("does not fit") < said.index("tokenizer.json")


def test_a_task_that_the_processor_is_not_for_is_said(classifier: Path) -> None:
    said = problems(classifier, "transformers", "image-classification", 'options = { task = "image-embedding" }')
    assert "the processor 'image-classification' is for the task 'image-classification'" in said


def test_texts_need_a_tokenizer(tmp_path: Path) -> None:
    a_bert(tmp_path / "files")
    assert "lacks the file tokenizer.json" in problems(tmp_path, "transformers", "text-embedding")


def test_a_pair_that_cannot_serve_is_refused_by_the_check_and_by_the_engine(tmp_path: Path) -> None:
    a_gpt2(bytes_directory(tmp_path / "files"), vocab_size=257)
    said = "the runner 'vllm' cannot serve the processor 'text-generation': it does not give `token_ids` (list)"
    assert said in problems(tmp_path, "vllm", "text-generation")
    with Engine(catalogue=[tmp_path / "models.toml"]) as engine, pytest.raises(ModelUnavailable, match=re.escape(said)):
        engine.run("mine", prompt="Once")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "lacks the file penstock.toml"),
        ({"penstock.toml": 'network = "unet"'}, "there is no network 'unet'; known networks: csmask-unet"),
        ({"penstock.toml": 'network = "csmask-unet"'}, "lacks the file model.safetensors"),
        ({"penstock.toml": "[inputs.x]\nshape = [1]\n[outputs.y]"}, "lacks the file program.pt2"),
        ({"penstock.toml": "[inputs.x]\nshape = [1]\n[outputs.y]", "program.pt2": "p"}, "reading program.pt2 can run"),
    ],
)
def test_a_directory_for_torch_is_looked_at(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    (tmp_path / "files").mkdir()
    for name, text in files.items():
        (tmp_path / "files" / name).write_text(text)
    assert problem in problems(tmp_path, "torch", "none")


def test_each_problem_is_said_once(classifier: Path) -> None:
    shutil.rmtree(classifier / "files")
    (classifier / "files").mkdir()
    said = problems(classifier, "transformers", "image-classification", f'files = {{ "a.bin" = "{"0" * 64}" }}')
    assert said.count("lacks the file 'a.bin'") == 1


BANDS = ", ".join(f'{{ name = "{name}", mean = 0.1, std = 0.1 }}' for name in ("blue", "green", "red"))
CLASSES = ", ".join(f'{{ id = {number}, name = "{number}", colour = "#00000{number}" }}' for number in range(5))
RASTER = f"""
device = "cpu"
dtype = "%s"

[models.mine.options]
tile_px = 64
halo_px = 32
stride_px = 32
bands = [{BANDS}]
classes = [{CLASSES}]
"""


def compared(folder: Path, processor: str, more: str, sample: Path | None = None) -> ModelFinding:
    """Return the finding of a warm-up of the model whose files lie in `folder/files`."""
    (folder / "models.toml").write_text(RECORD.format(runner="transformers", processor=processor, more=more))
    with Engine(catalogue=[folder / "models.toml"]) as engine:
        files = None if sample is None else Sample(sample.name, lambda _: {"scene": str(sample)})
        (found,) = inspect(engine, ["mine"], warm_up=True, sample=files)
    return found


def test_a_model_in_bfloat16_is_compared_with_float32_on_noise_and_on_a_scene(tmp_path: Path) -> None:
    a_segformer(tmp_path / "files")
    write_sample(tmp_path / "scene.tif", size_px=192)
    more = RASTER % "bfloat16"
    noise = compared(tmp_path, "raster-segmentation", more)
    scene = compared(tmp_path, "raster-segmentation", more, tmp_path / "scene.tif")
    for found, sample, least in ((noise, "noise", 64 * 64), (scene, "scene.tif", 192 * 192 // 2)):
        assert found.problems == ()
        assert found.float32 is not None
        assert found.float32.labels >= least
        assert found.float32.sample == sample
        assert found.float32.share == found.float32.differing / found.float32.labels
        assert f"of the labels of {sample} differ from float32" in found.notes[-1]
    assert noise.float32 is not None
    assert 0 < noise.float32.differing < noise.float32.labels / 2, "random weights are near to many borders"


def test_of_a_model_in_float32_no_difference_is_said(tmp_path: Path) -> None:
    a_segformer(tmp_path / "files")
    found = compared(tmp_path, "raster-segmentation", RASTER % "float32")
    assert (found.ok, found.float32) == (True, None)
    assert "differ" not in str(found.notes)


def test_a_sample_that_does_not_fit_is_a_problem(tmp_path: Path) -> None:
    a_segformer(tmp_path / "files")
    (tmp_path / "scene.tif").write_text("no scene")
    more = RASTER % "bfloat16"
    (said,) = compared(tmp_path, "raster-segmentation", more, tmp_path / "scene.tif").problems
    assert said.startswith("not compared with float32: media_unreadable")


def test_a_classifier_in_bfloat16_is_compared_by_its_best_class(classifier: Path) -> None:
    found = compared(classifier, "image-classification", 'device = "cpu"\ndtype = "bfloat16"')
    assert found.problems == ()
    assert found.float32 is not None
    assert found.float32.labels == 1
