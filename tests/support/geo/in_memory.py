"""Plan, prompts and stitching of scenes in memory, without files, so that many scenes can be tested."""

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
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.tiling.plan import Box, Plan, make_plan
from penstock.processors.geo.tiling.stitch import Channels, stitch_tiles
from penstock.processors.geo.tiling.tiles import Area, Normalisation, PendingTiles, make_prompts
from penstock.processors.numbers import as_floats

Numbers = npt.NDArray[Any]
#: Network function from (bands, rows, columns) to (channels, rows, columns).
Network = Callable[[Numbers], Numbers]


@dataclass
class MemoryRows:
    """A double of `SceneRows` on arrays that records the boxes that were read."""

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
            strip_bytes: int = 10**9, area: Box | None = None) -> Plan:  # fmt: skip
    """Return a plan with one byte per pixel."""
    cut = {"tile_px": tile, "halo_px": halo, "stride_px": stride, "overlap_px": overlap}
    return make_plan(*shape, pixel_bytes=1, strip_bytes=strip_bytes, area=area, **cut)


def mapped(
    numbers: Numbers,
    plan: Plan,
    network: Network,
    *,
    known: npt.NDArray[np.bool_] | None = None,
    batch: int = 1,
    restored: Collection[int] = (),
    rows: MemoryRows | None = None,
    area: Area | None = None,
    needed: Box | None = None,
) -> Numbers:
    """Return the result of a scene (bands, rows, columns): float32 (channels, rows, columns), NaN for nodata.

    With `area`, pixels outside are NaN.
    """
    known = np.ones(numbers.shape[1:], dtype=bool) if known is None else known
    rows = rows or MemoryRows(numbers, known)
    bands = tuple(Band(name=str(i), mean=0.0, std=1.0) for i in range(len(numbers)))
    radiometry = Radiometry((BandRadiometry(1.0, 0.0, None, "none", "none"),) * len(numbers))
    norm = Normalisation(bands, radiometry, None, reflected=plan.averaged)
    pending: PendingTiles = deque()
    prompts = make_prompts(rows, plan, norm, pending, restored, area=area, needed=needed)  # type: ignore[arg-type]  # it reads like `SceneRows`
    channels = len(network(np.zeros((len(numbers), 8, 8), np.float32)))
    scene = np.full((channels, *numbers.shape[1:]), np.nan, np.float32)
    for result in stitch_tiles(_answers(prompts, network, batch), pending, plan, Channels("y", channels)):
        for piece in result.pieces:
            box = piece.box
            there = scene[:, box.top : box.bottom, box.left : box.right]
            assert np.isnan(there).all(), "a pixel was final twice"
            there[:] = np.where(piece.valid, piece.numbers, np.nan)
    return scene


def _answers(prompts: Iterator[Prompt], network: Network, batch: int) -> Iterator[Output]:
    """Draw `batch` prompts ahead, compute them in reverse order, and yield the outputs in order."""
    while group := list(islice(prompts, batch)):
        done = [
            Output({"y": network(as_floats(prompt).data["pixels"]).astype(np.float32)}) for prompt in reversed(group)
        ]
        yield from reversed(done)
