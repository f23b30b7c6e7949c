"""Hub directories that lack a file, are damaged, or are for something else: `ModelUnavailable` that says what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from penstock.errors import ModelUnavailable
from penstock.processors.base import Prompt
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.tasks import Task
from tests.support.hub import (
    STORIES,
    a_bert,
    a_model,
    a_segformer,
    a_vit,
    a_vit_backbone,
    a_wav2vec2,
    an_ast,
    an_image,
    finish,
    load,
    minilm,
    needs_stories,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_vit(tmp_path_factory.mktemp("hub") / "vit")


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """Return a copy of a good directory to spoil."""
    return shutil.copytree(made, tmp_path / "vit")


def configure(directory: Path, **changes: Any) -> None:
    """Change entries of the directory's `config.json`; None takes one away."""
    config = json.loads((directory / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (a_vit, Task.IMAGE_CLASSIFICATION),
        (a_vit_backbone, Task.IMAGE_EMBEDDING),
        (a_segformer, Task.SEMANTIC_SEGMENTATION),
        (a_bert, Task.TEXT_EMBEDDING),
        (a_wav2vec2, Task.AUDIO_CLASSIFICATION),
        (an_ast, Task.AUDIO_CLASSIFICATION),
        (lambda _: minilm(), Task.TEXT_EMBEDDING),
        pytest.param(lambda _: STORIES, Task.TEXT_GENERATION, marks=needs_stories),
    ],
)
def test_the_task_is_what_the_architecture_was_made_for(
    tmp_path: Path, make: Callable[[Path], Path], task: Task
) -> None:
    assert HubDirectory.of(a_model(make(tmp_path))).task == task


def test_a_classifier_may_be_used_without_its_head(directory: Path) -> None:
    prompt = Prompt({"pixels": an_image(3, 32, 32)})
    options = {"task": "image-embedding", "pooling": "cls"}
    with closing(load(directory, options=options)) as runner:
        assert finish(runner, prompt)[0].data["embedding"].shape == (16,)


def spoil_nothing(_: Path) -> None:
    """Leave the directory as it is."""


@pytest.mark.parametrize(
    ("spoil", "fields", "sentence"),
    [
        (lambda d: (d / "config.json").unlink(), {}, "lacks the file config.json: No such file"),
        (lambda d: (d / "model.safetensors").unlink(), {}, "lacks the file model.safetensors"),
        (lambda d: (d / "config.json").write_text("{"), {}, "config.json is not JSON"),
        (lambda d: (d / "config.json").write_text("[]"), {}, "config.json is not a JSON object"),
        (lambda d: configure(d, model_type=None), {}, "config.json has no `model_type`"),
        (lambda d: configure(d, model_type="vitt"), {}, "unknown model_type 'vitt'; near it are: vit"),
        (lambda d: configure(d, model_type="q0q0q0"), {}, r"unknown model_type 'q0q0q0'; this version of .* knows \d+"),
        (
            lambda d: configure(d, architectures=["ViTForMaskedImageModeling"]),
            {},
            "architectures ViTForMaskedImageModeling, without a known task; model_type 'vit' can do: image-class",
        ),
        (lambda d: configure(d, architectures=None), {}, "architectures none, without a known task"),
        (
            spoil_nothing,
            {"options": {"task": "text-generation"}},
            "task 'text-generation' does not fit model_type 'vit', which can do: image-classification, image-embedding",
        ),
        (
            spoil_nothing,
            {"options": {"task": "magic"}},
            "there is no task 'magic'; known tasks: image-classification, ",
        ),
        (
            spoil_nothing,
            {"options": {"task": "image-embedding", "pooling": "best"}},
            "`options.pooling` is one of pooler, cls, mean, patches, not 'best'",
        ),
        (lambda d: (d / "model.safetensors").write_bytes(b"x" * 100), {}, "a safetensors file is damaged"),
        (
            lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-100]),
            {},
            "a safetensors file is damaged",
        ),
        (lambda d: configure(d, hidden_size=32), {}, r"config.json and the weights do not make a network"),
        (
            lambda d: configure(d, intermediate_size=24),
            {},
            r"the first is '.*': \(\d+,.*\) in the file, \(24,.*\) in the network",
        ),
        (lambda d: configure(d, num_hidden_layers=3), {}, r"lacks \d+ of the weights that ViTForImageClassification"),
        (lambda d: configure(d, hidden_size="wide"), {}, "config.json and the weights do not make a network"),
        (spoil_nothing, {"files": {"config.json": "0" * 64}}, "'config.json' of model 'tiny' is not the catalogue's"),
        (spoil_nothing, {"files": {"vocab.txt": "0" * 64}}, "model 'tiny' lacks the file 'vocab.txt'"),
        (spoil_nothing, {"device": "toaster"}, "names the device 'toaster'"),
    ],
)
def test_a_directory_that_cannot_be_loaded_says_why(
    directory: Path, spoil: Callable[[Path], Any], fields: dict[str, Any], sentence: str
) -> None:
    spoil(directory)
    with pytest.raises(ModelUnavailable, match=sentence) as failure:
        load(directory, **fields)
    assert failure.value.detail.count("'tiny'") == 1


def test_pickled_weights_are_refused_and_not_read(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({}, directory / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match=r"pickled weights only \(pytorch_model.bin\), which can run code"):
        load(directory)


def test_weights_in_several_files_are_read_and_a_missing_one_is_named(directory: Path, tmp_path: Path) -> None:
    network: Any = transformers.AutoModelForImageClassification.from_pretrained(directory)
    parts = tmp_path / "parts"
    network.save_pretrained(parts, max_shard_size="8KB")
    assert not (parts / "model.safetensors").exists()
    prompt = Prompt({"pixels": an_image(3, 32, 32)})
    with closing(load(parts)) as split, closing(load(directory)) as whole:
        (one,), (other,) = finish(split, prompt), finish(whole, prompt)
    assert one.data["logits"].tobytes() == other.data["logits"].tobytes()
    missing = sorted(parts.glob("model-00002-*.safetensors"))[0]
    missing.unlink()
    with pytest.raises(ModelUnavailable, match=f"lacks {missing.name}, which model.safetensors.index.json names"):
        load(parts)


def test_code_in_the_directory_is_not_run(directory: Path) -> None:
    (directory / "evil.py").write_text("raise SystemExit('run')\n")
    configure(directory, model_type="evil", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(ModelUnavailable, match="unknown model_type 'evil'"):
        load(directory)
    configure(directory, model_type="vit", auto_map={"AutoModelForImageClassification": "evil.Model"})
    with closing(load(directory)) as runner:
        assert finish(runner, Prompt({"pixels": an_image(3, 32, 32)}))[0].data["logits"].shape == (4,)
