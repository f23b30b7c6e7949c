"""The runners by name. A runner's libraries are imported when its first model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from penstock.models import Model
from penstock.workers.engine.base import Runner, RunnerCheck, RunnerFactory
from penstock.workers.engine.weights import requires


def _diffusers(model: Model) -> Runner:
    with requires("diffusers"):
        from penstock.workers.engine.diffusers.runner import load_diffusers
    return load_diffusers(model)


def _fake(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.fake import load_fake
    return load_fake(model)


def _lightgbm(model: Model) -> Runner:
    with requires("lightgbm"):
        from penstock.workers.engine.lightgbm_runner import load_lightgbm
    return load_lightgbm(model)


def _onnx(model: Model) -> Runner:
    with requires("onnx"):
        from penstock.workers.engine.onnx.runner import load_onnx
    return load_onnx(model)


def _rapidocr(model: Model) -> Runner:
    with requires("documents"):
        from penstock.workers.engine.onnx.ocr import load_ocr
    return load_ocr(model)


def _terratorch(model: Model) -> Runner:
    _find_terratorch()
    from penstock.workers.engine.terratorch.runner import load_terratorch

    return load_terratorch(model)


def _torch(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.torch_runner import load_torch
    return load_torch(model)


def _transformers(model: Model) -> Runner:
    with requires("transformers"):
        from penstock.workers.engine.transformers.loading import load_transformers
    return load_transformers(model)


def _check_diffusers(model: Model) -> None:
    with requires("diffusers"):
        from penstock.workers.engine.diffusers.runner import check_diffusers
    check_diffusers(model)


def _vllm(model: Model) -> Runner:
    with requires("worker"):
        from penstock.workers.engine.vllm_runner import load_vllm
    return load_vllm(model)


def _check_fake(model: Model) -> None:
    _fake(model)


def _check_lightgbm(model: Model) -> None:
    _lightgbm(model).close()


def _check_onnx(model: Model) -> None:
    with requires("onnx"):
        from penstock.workers.engine.onnx.runner import check_onnx
    check_onnx(model)


def _check_rapidocr(model: Model) -> None:
    with requires("documents"):
        from penstock.workers.engine.onnx.ocr import check_ocr
    check_ocr(model)


def _check_terratorch(model: Model) -> None:
    _find_terratorch()
    from penstock.workers.engine.terratorch.runner import check_terratorch

    check_terratorch(model)


def _find_terratorch() -> None:
    """Look for TerraTorch without importing it, which takes many seconds."""
    with requires("terratorch"):
        if find_spec("terratorch") is None:
            raise ModuleNotFoundError(name="terratorch")


def _check_torch(model: Model) -> None:
    with requires("worker"):
        from penstock.workers.engine.torch_runner import check_torch
    check_torch(model)


def _check_transformers(model: Model) -> None:
    with requires("transformers"):
        from penstock.workers.engine.transformers.loading import check_transformers
    check_transformers(model)


def _check_vllm(model: Model) -> None:
    with requires("worker"):
        from penstock.workers.engine.vllm_runner import check_vllm
    check_vllm(model)


#: What a model's `runner` may name.
FACTORIES: Mapping[str, RunnerFactory] = MappingProxyType(
    {
        "diffusers": _diffusers,
        "fake": _fake,
        "lightgbm": _lightgbm,
        "onnx": _onnx,
        "rapidocr": _rapidocr,
        "terratorch": _terratorch,
        "torch": _torch,
        "transformers": _transformers,
        "vllm": _vllm,
    }
)

#: By the same names: what can be said of a model before its weights are read.
CHECKS: Mapping[str, RunnerCheck] = MappingProxyType(
    {
        "diffusers": _check_diffusers,
        "fake": _check_fake,
        "lightgbm": _check_lightgbm,
        "onnx": _check_onnx,
        "rapidocr": _check_rapidocr,
        "terratorch": _check_terratorch,
        "torch": _check_torch,
        "transformers": _check_transformers,
        "vllm": _check_vllm,
    }
)
