"""Helpers of the tests on a GPU: the device, networks that are made for them, and runs of prompts on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Runner, RunnerFactory
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.networks import Network
from penstock.workers.engine.torch.runner import TorchRunner

DEVICE = "cuda"
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Pixels = npt.NDArray[np.float32]


def a_model(name: str = "made", **fields: Any) -> Model:
    common = {"title": name, "processor": "none", "source": "none", "revision": "1", "device": DEVICE, "max_batch": 8}
    return Model(name=name, **{"runner": name, **common, **fields})


def runs(module: Callable[[], nn.Module]) -> RunnerFactory:
    """Return the factory of a network of one band, made anew for each model."""

    def load(model: Model) -> Runner:
        network = Network(module(), bands=1, classes=1, stride_px=1)
        return TorchRunner(network, TorchDevice.of(model), max_batch=model.max_batch)

    return load


class Doubled(nn.Module):
    """Doubles its pixels, and has the device take its time for it."""

    def __init__(self, cycles: int = 0) -> None:
        super().__init__()
        self.cycles = cycles

    def forward(self, pixels: Tensor) -> Tensor:
        if self.cycles:
            torch.cuda._sleep(self.cycles)  # type: ignore[no-untyped-call]
        return pixels * 2


def squares(values: Sequence[float], *, side: int = 64) -> Iterator[Prompt]:
    """Yield a prompt of one number for each value."""
    yield from (Prompt({"pixels": np.full((1, side, side), value, np.float32)}, cost=side * side) for value in values)


def probability(output: Output) -> Pixels:
    array: Pixels = output.data["probability"]
    return array


@contextmanager
def at_most(share: float) -> Iterator[None]:
    """Have this process take no more than a share of the device's memory."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def farthest(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Return the largest difference of two outputs' arrays, as a share of the largest number; plain data are equal."""
    assert ours.keys() == theirs.keys()
    found = 0.0
    for name, expected in theirs.items():
        if isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
            assert ours[name].dtype == expected.dtype
            differ = np.abs(ours[name] - expected).max(initial=0)
            found = max(found, float(differ / max(1e-6, np.abs(expected).max(initial=0))))
        elif isinstance(expected, np.ndarray):
            assert (ours[name].dtype, ours[name].shape) == (expected.dtype, expected.shape)
            found = max(found, float(np.mean(ours[name] != expected)))
        else:
            assert ours[name] == expected, name
    return found
