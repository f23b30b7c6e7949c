"""`penstock models check`: what it finds of a model without reading its weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from penstock.errors import ModelUnavailable
from penstock.local.inspection import inspect
from penstock.local.library import Engine
from tests.support.hub import a_bert, a_vit
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
    assert (
        "known runners: diffusers, lightgbm, onnx, openai-server, rapidocr, terratorch, torch, transformers, vllm"
        in problems(classifier, "tensorflow", "image-classification")
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("encoder_cache_bytes = -1", "is a number of bytes, 0 for none, not -1"),
    ],
)
def test_options_that_mean_nothing_are_found(classifier: Path, options: str, said: str) -> None:
    assert said in problems(classifier, "transformers", "image-classification", f"options = {{ {options} }}")


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
