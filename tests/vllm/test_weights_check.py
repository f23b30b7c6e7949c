"""The check compares the names and shapes of weights with those of vLLM's network."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.runners import Runners
from tests.vllm import tiny_llama

pytest.importorskip("vllm", reason="needs an environment with vLLM: make test-vllm")

pytestmark = pytest.mark.fast

NAME = "model.layers.1.mlp.down_proj.weight"
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny_llama.write(folder := tmp_path_factory.mktemp("weights") / "llama")
    return folder


def record(source: Path) -> Model:
    engine = {"max_model_len": 256, "gpu_memory_utilization": 0.2}
    return Model(
        name="llama", title="Llama", runner="vllm", processor="openai-chat", source=str(source), revision="1",
        options={"engine": engine},
    )  # fmt: skip


def without_one(weights: Weights) -> None:
    del weights[NAME]


def with_another(weights: Weights) -> None:
    weights["model.layers.1.mlp.nothing.weight"] = weights[NAME].clone()


def smaller(weights: Weights) -> None:
    weights[NAME] = weights[NAME][:, :64].contiguous()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_one, f"lack 1 of the weights of vLLM's network, the first is '{NAME}'"),
        (with_another, "vLLM rejects the weights of model 'llama': .*mlp.nothing"),
        (smaller, "vLLM rejects the weights of model 'llama'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    spoil: Callable[[Weights], None], said: str, llama: Path, tmp_path: Path
) -> None:
    Runners.installed().check(record(llama))
    shutil.copytree(llama, tmp_path / "llama")
    weights = load_file(llama / "model.safetensors")
    spoil(weights)
    save_file(weights, tmp_path / "llama" / "model.safetensors")
    with pytest.raises(ModelUnavailable, match=said):
        Runners.installed().check(record(tmp_path / "llama"))
