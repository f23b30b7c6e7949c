"""The runner `torch`: one forward pass of a torch network per batch.

On a CPU in float32 a prompt's output is the same bit for bit every time, given its shape, the kind of processor, the
torch version and the number of threads (one thread and two differ by some 1e-8). It would also depend on what shares
its batch (three tiles of 48 x 64 px differ from one), so prompts run one by one there. A GPU and bfloat16 promise less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from penstock.errors import DeviceLost, InvalidInput, ModelUnavailable, OutOfMemory
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done
from penstock.workers.engine.networks import Network
from penstock.workers.engine.weights import read_weights, requires


class TorchRunner:
    """Runs a convolutional network: prompts have `pixels`, float32 (bands, H, W); outputs have `probability`, float32
    (classes, H, W).
    """

    def __init__(self, network: Network, *, device: torch.device, dtype: torch.dtype, max_batch: int) -> None:
        """Move the network to the device. With `dtype` bfloat16 it runs under autocast."""
        self._network = network
        self._device = device
        self._dtype = dtype
        self._max_batch = max_batch
        with _torch_errors():
            network.module.eval().to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def max_batch(self) -> int:
        """One on a CPU, for the same bits; batches are no gain there (four 512 px tiles took 1.8 times as long)."""
        return 1 if self._device.type == "cpu" else self._max_batch

    def admit(self, prompt: Prompt) -> Tensor:
        """Return the prompt as a host tensor (1, bands, H, W), channels last, in pinned memory where that helps."""
        self._check(prompt)
        pixels = np.require(prompt.data["pixels"], requirements=["C", "W"])
        with _torch_errors():
            tensor = torch.from_numpy(pixels)[None].contiguous(memory_format=torch.channels_last)
            return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def step(self, states: Sequence[Tensor]) -> Sequence[Done]:
        """Run the network once."""
        with _torch_errors(), torch.inference_mode(), self._autocast():
            batch = torch.cat([state.to(self._device, non_blocking=True) for state in states])
            probability = self._network.module(batch).float().cpu()
            # Clones, so that one output does not keep its whole batch in memory.
            clones = [sample.clone(memory_format=torch.contiguous_format) for sample in probability]
        return [Done(Output({"probability": clone.numpy()})) for clone in clones]

    def close(self) -> None:
        """Free the device's memory."""
        self._network.module.to(device="meta")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16)

    def _check(self, prompt: Prompt) -> None:
        pixels = prompt.data.get("pixels")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.float32 or pixels.ndim != 3:
            raise InvalidInput("the network takes `pixels`, a float32 array (bands, height, width)")
        bands, height, width = pixels.shape
        stride = self._network.stride_px
        if bands != self._network.bands:
            raise InvalidInput(f"the network takes {self._network.bands} bands, the prompt has {bands}")
        if not height or not width or height % stride or width % stride:
            raise InvalidInput(f"the network takes sides that are multiples of {stride}, not {height} x {width}")


def load_torch(model: Model) -> TorchRunner:
    """Load the network that the model's `options.network` names; raise `ModelUnavailable`."""
    name = model.options.get("network")
    build = NETWORKS.get(str(name))
    if build is None:
        known = ", ".join(sorted(NETWORKS))
        raise ModelUnavailable(f"model {model.name!r} names the network {name!r}; there are: {known}")
    device, dtype = _device(model), getattr(torch, model.dtype)
    return TorchRunner(build(read_weights(model)), device=device, dtype=dtype, max_batch=model.max_batch)


def _csmask(weights: bytes) -> Network:
    with requires("demo"):
        from penstock.workers.engine.csmask import load_csmask
    return load_csmask(weights)


#: What `options.network` may name, and how each is built from the bytes of its weights file.
NETWORKS: Mapping[str, Callable[[bytes], Network]] = MappingProxyType({"csmask-unet": _csmask})


def _device(model: Model) -> torch.device:
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(model.device)
    except RuntimeError as error:
        raise ModelUnavailable(f"model {model.name!r} names the device {model.device!r}, which torch lacks") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelUnavailable(f"model {model.name!r} needs a CUDA device and this machine has none")
    return device


@contextmanager
def _torch_errors() -> Iterator[None]:
    """Translate what torch raises: the only place that knows its words."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        raise OutOfMemory from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise OutOfMemory from error
        if "CUDA error" in str(error):
            raise DeviceLost from error
        raise
