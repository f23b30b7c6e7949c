"""How much memory there is for models, and what one will take of it before it is loaded."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil

from penstock.errors import ModelUnavailable
from penstock.models import Model

#: What models may take of a CUDA device; the rest is for the activations of their batches.
CUDA_SHARE = 0.9
#: What models may take of the machine's memory where they run on its processor.
HOST_SHARE = 0.5
#: Of a directory of diffusers, by the ends of their paths.
_NOT_READ = re.compile(r"/safety_checker/[^/]*$|\.(fp16|bf16|non_ema)(-[^/]*)?\.safetensors$")


def budget_bytes() -> int:
    """Return what the models on this process's device may take together.

    Torch is asked only if a runner has brought it: importing it takes seconds.
    """
    if "torch" in sys.modules:
        import torch  # waits where another thread is in the middle of importing it

        if torch.cuda.is_available():
            return int(CUDA_SHARE * torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return int(HOST_SHARE * psutil.virtual_memory().total)


def device_name() -> str:
    """Return the name of this process's accelerator, `cpu` where no model uses one."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return "cpu"


def expected_bytes(model: Model) -> int:
    """Return what the model will take: its weights, and the cache of texts that share passes.

    0 of what its files do not say.
    """
    return _weights_bytes(model) + _cache_bytes(model)


def _weights_bytes(model: Model) -> int:
    """Return what the weights will take by the model's file, safetensors or ONNX files.

    A directory of diffusers has a folder for each part. Of those, the same weights in another precision are not read.
    """
    source = Path(model.source)
    try:
        weights = "*.onnx*" if model.runner in ("onnx", "rapidocr") else "*.safetensors"
        files = [source] if source.is_file() else [*source.glob(weights)]
        if (source / "model_index.json").is_file():
            files = [file for file in source.glob("*/*.safetensors") if not _NOT_READ.search(file.as_posix())]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


def _cache_bytes(model: Model) -> int:
    if model.runner != "transformers" or model.options.get("batching") is None:
        return 0
    try:
        from penstock.workers.engine.transformers.loading import cache_bytes

        return cache_bytes(model)
    except (ImportError, ModelUnavailable):  # loading the model says what is wrong with it
        return 0
