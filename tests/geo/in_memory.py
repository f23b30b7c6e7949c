"""Scenes in memory through the plan, the prompts and the stitching: no file, so that many can be tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.base import Output, Prompt
from penstock.processors.geo.options import Band
from penstock.processors.geo.plan import Box, Plan, make_plan
from penstock.processors.geo.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.resample import Chunk
from penstock.processors.geo.stitch import Channels, stitched
from penstock.processors.geo.tiles import Normalisation, Pending, make_prompts

Numbers = npt.NDArray[Any]
#: From (bands, rows, columns) to (channels, rows, columns).
Network = Callable[[Numbers], Numbers]


@dataclass
class MemoryRows:
    """What `Rows` are, of arrays. Notes the boxes that were read."""

    numbers: Numbers
    known: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        self.count, self.height, self.width = self.numbers.shape
        self.dtype = self.numbers.dtype
        self.boxes: list[Box] = []

    def read(self, box: Box) -> Iterator[Chunk]:
        self.boxes.append(box)
        if box.height > 0:
            rows, columns = slice(box.top, box.bottom), slice(box.left, box.right)
            yield box.top, self.numbers[:, rows, columns], self.known[rows, columns]


def plan_of(shape: tuple[int, int], tile: int, *, halo: int = 0, stride: int = 1, overlap: int | None = None,
            strip_bytes: int = 10**9) -> Plan:  # fmt: skip
    """Return a plan for one byte a pixel."""
    cut = {"tile_px": tile, "halo_px": halo, "stride_px": stride, "overlap_px": overlap}
    return make_plan(*shape, pixel_bytes=1, strip_bytes=strip_bytes, **cut)


def mapped(
    numbers: Numbers,
    plan: Plan,
    network: Network,
    *,
    known: npt.NDArray[np.bool_] | None = None,
    batch: int = 1,
    kept: Collection[int] = (),
    rows: MemoryRows | None = None,
) -> Numbers:
    """Return what becomes of a scene (bands, rows, columns): float32 (channels, rows, columns), NaN where nothing."""
    known = np.ones(numbers.shape[1:], dtype=bool) if known is None else known
    rows = rows or MemoryRows(numbers, known)
    bands = tuple(Band(name=str(i), mean=0.0, std=1.0) for i in range(len(numbers)))
    radiometry = Radiometry((BandRadiometry(1.0, 0.0, None, "none", "none"),) * len(numbers))
    norm = Normalisation(bands, radiometry, None, reflected=plan.averaged)
    pending: Pending = deque()
    prompts = make_prompts(rows, plan, norm, pending, kept)  # type: ignore[arg-type]  # it reads as `Rows` do
    channels = len(network(np.zeros((len(numbers), 8, 8), np.float32)))
    scene = np.full((channels, *numbers.shape[1:]), np.nan, np.float32)
    for answered in stitched(_answers(prompts, network, batch), pending, plan, Channels("y", channels)):
        for piece in answered.pieces:
            box = piece.box
            there = scene[:, box.top : box.bottom, box.left : box.right]
            assert np.isnan(there).all(), "a pixel was final twice"
            there[:] = np.where(piece.valid, piece.numbers, np.nan)
    return scene


def _answers(prompts: Iterator[Prompt], network: Network, batch: int) -> Iterator[Output]:
    """Draw `batch` prompts ahead, compute the last first, and answer in order."""
    while group := list(islice(prompts, batch)):
        done = [Output({"y": network(prompt.data["pixels"]).astype(np.float32)}) for prompt in reversed(group)]
        yield from reversed(done)
