"""Bytes and processor time of a tile's way to the device and back: `python -m benchmarks.pixels`.

Beside the way of floats. A tile of csmask: six bands of uint16, 960 x 960 px with its halo, five classes. The shared
memory is an array that is kept. Both ways alternate in one run; medians.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
import torch

from penstock.models import read_catalogue
from penstock.processors.base import Array, Prompt
from penstock.processors.geo.options import SegmentationOptions, read_options
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.tiling.tiles import Normalisation
from penstock.processors.geo.write.class_outputs import encode, encode_reduced
from penstock.processors.numbers import as_floats
from penstock.processors.prompt_names import REDUCED
from penstock.processors.reductions import Reduction
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.scores import answers_of
from penstock.workers.io.values import pack

SIDE_PX, ROUNDS = 960, 9
_SHARED = np.empty(64 * 2**20, np.uint8)


def main() -> None:
    """Measure and print a table in Markdown."""
    options = read_options(read_catalogue()["csmask"], SegmentationOptions)
    radiometry = Radiometry((BandRadiometry(1e-4, 0.0, 0.0, "model default", "model default"),) * len(options.bands))
    norm = Normalisation(options.bands, radiometry, options.plausible_mean)
    rng, shape = np.random.default_rng(1), (SIDE_PX, SIDE_PX)
    numbers = rng.integers(1, 6000, (len(options.bands), *shape), dtype=np.uint16)
    valid, device = np.ones(shape, bool), TorchDevice(torch.device("cpu"))
    scores = torch.rand(1, len(options.classes), *shape).to(memory_format=torch.channels_last)

    def receive(data: Mapping[str, Array]) -> int:
        crossed = _cross(data)
        device.receive(device.send_input(data, "pixels", channels_last=True))
        return crossed

    def reduced(reduction: Reduction | None) -> int:
        (answer,) = answers_of(scores, [reduction])
        crossed = _cross(answer)
        if reduction is None:
            encode(answer["probability"], valid, ())
        else:
            encode_reduced(answer[REDUCED], valid, ())
        return crossed

    ways: list[tuple[str, Callable[[], int], Callable[[], int]]] = [
        (
            "to the device", lambda: receive(as_floats(Prompt(norm.inputs(numbers, valid, shape))).data),
            lambda: receive(norm.inputs(numbers, valid, shape)),
        ),
        ("back, classes only", lambda: reduced(None), lambda: reduced(Reduction.CLASSES)),
    ]  # fmt: skip
    sys.stdout.write("| a tile | MB before | MB now | ratio | ms before | ms now | ratio |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- | --- |\n")
    for what, before, now in ways:
        (old, old_ms), (new, new_ms) = _measured(before, now)
        sizes = f"{old / 1e6:.1f} | {new / 1e6:.1f} | {new / old:.2f}"
        sys.stdout.write(f"| {what} | {sizes} | {old_ms:.0f} | {new_ms:.0f} | {new_ms / old_ms:.2f} |\n")


def _cross(data: Mapping[str, Array]) -> int:
    """Copy a message's arrays as a channel does, and return their bytes."""
    packed, at = pack(data), 0
    for part in packed.parts:
        size = len(part)
        _SHARED[at : at + size] = np.frombuffer(part, np.uint8)
        at += size
    return packed.size_bytes


def _measured(before: Callable[[], int], now: Callable[[], int]) -> list[tuple[int, float]]:
    """Return bytes and milliseconds of processor time of both ways, in turns."""
    sizes = [before(), now()]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for way, spent in zip((before, now), times, strict=True):
            begun = time.process_time()
            way()
            spent.append((time.process_time() - begun) * 1000)
    return [(size, median(spent)) for size, spent in zip(sizes, times, strict=True)]


if __name__ == "__main__":
    main()
