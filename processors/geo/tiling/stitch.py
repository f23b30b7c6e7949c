"""Stitching of tile outputs: cores side by side (`halo`), or weighted means of overlapping tiles (`hann`).

Means are computed over probabilities or quantities, never over classes. The weight of a tile is lowest at its edges,
where a vision transformer has the least context. It is a Hann window shifted by half a pixel,
sin²(pi (i + 1/2) / tile) along each axis, which is never 0. Along each axis the weights of all tiles at a pixel are
normalised to sum 1 in advance. This is possible because every tile that covers a valid pixel is sent. It is also exact:
sums in float64 of equal outputs give the same float32 again, also at corners.

Tiles are added in the plan's order. Therefore the sums do not depend on batches, panels, or strips that were restored
from an earlier attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.processors.base import Output
from penstock.processors.geo.read.suspected_nodata import SuspectCounts
from penstock.processors.geo.tiling.flips import mirror
from penstock.processors.geo.tiling.plan import Box, Cut, Plan, Strip
from penstock.processors.geo.tiling.tiles import PendingTiles, SentTile
from penstock.processors.prompt_names import REDUCED
from penstock.processors.reductions import Reduction

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Channels:
    """Name and channel count of the network's output: float32 (count, rows, columns) of the tile's window.

    With a `reduction` the runner may give the reduced output instead. Each tile has an output in each of the `passes`.
    """

    name: str
    count: int
    reduction: Reduction | None = None
    passes: int = 1

    def is_reduced(self, output: Output) -> bool:
        """Return True if the runner has reduced a tile's output as it was asked to."""
        return self.reduction is not None and self.name not in output.data and REDUCED in output.data

    def of(self, output: Output, window: Box) -> Numbers:
        """Return a tile's output. Raise `ProcessorFailed` if name or shape differ from the model's record."""
        name, count = self.name, self.count
        if self.reduction is not None and self.is_reduced(output):
            name, count = REDUCED, self.reduction.channels(self.count)
        numbers: Any = output.data.get(name)
        expected = (count, window.height, window.width)
        if not isinstance(numbers, np.ndarray):
            raise ProcessorFailed(f"The network returned {', '.join(output.data) or 'nothing'}, not `{self.name}`.")
        if numbers.shape != expected:
            raise ProcessorFailed(f"The network returned shape {numbers.shape}; expected {expected}.")
        return numbers

    def by_pass(self, piece: FinalPixels) -> FinalPixels:
        """Return final pixels of all passes with the numbers of each."""
        every = piece.numbers.reshape(self.passes, self.count, *piece.valid.shape)
        return replace(piece, numbers=every[0], passes=every)


@dataclass(frozen=True, slots=True)
class FinalPixels:
    """Final values of a box: float32 (channels, rows, columns), validity mask, and suspected nodata counts."""

    box: Box
    numbers: Numbers
    valid: npt.NDArray[np.bool_]
    suspects: SuspectCounts
    #: True for uint8 numbers that a runner made of its scores (see `processors.reductions`).
    reduced: bool = False
    #: With several passes, the values of each, turned back: float32 (passes, channels, rows, columns). `numbers` are
    #: those of the first pass.
    passes: Numbers | None = None


@dataclass(frozen=True, slots=True)
class TileResult:
    """Final pixels after one tile output."""

    strip: Strip
    #: True if the whole strip is final now.
    last: bool
    #: Final pixels, left to right. The arrays are valid until the next tile output.
    pieces: Iterator[FinalPixels]


class Stitcher(Protocol):
    """Method that combines tiles to a scene. Final pixels have the channels of all passes, one after the other."""

    def add(self, sent: SentTile, numbers: Numbers) -> Iterator[FinalPixels]:
        """Add a tile's output, turned back, and yield the pixels that are final now."""
        ...


def stitch_tiles(
    outputs: Iterator[Output], pending: PendingTiles, plan: Plan, channels: Channels
) -> Iterator[TileResult]:
    """Yield the final pixels after each tile output. Consume all pieces of one result before the next.

    Raises `ProcessorFailed` if the number of outputs differs from the number of tiles that were sent.
    """
    passes = channels.passes
    stitcher: Stitcher = HannStitcher(plan, channels.count, passes) if plan.averaged else CoreStitcher(passes)
    for sent, output in with_tiles(outputs, pending):
        pieces = stitcher.add(sent, mirror(channels.of(output, sent.tile.window), sent.at))
        if channels.is_reduced(output):
            pieces = (replace(piece, reduced=True) for piece in pieces)
        yield TileResult(sent.strip, sent.last, pieces if passes == 1 else map(channels.by_pass, pieces))


def with_tiles(outputs: Iterator[Output], pending: PendingTiles) -> Iterator[tuple[SentTile, Output]]:
    """Yield each output with its tile. Raises `ProcessorFailed` for more or fewer outputs than tiles were sent."""
    for output in outputs:
        if not pending:
            raise ProcessorFailed("The engine returned more outputs than tiles were sent.")
        yield pending.popleft(), output
    if pending:
        raise ProcessorFailed(f"The engine returned no output for {len(pending)} tiles.")


class CoreStitcher:
    """Stitching of tiles with a halo: cores side by side."""

    def __init__(self, passes: int = 1) -> None:
        self._passes = passes
        #: Cores of the passes before, of the tile in progress.
        self._earlier: list[Numbers] = []

    def add(self, sent: SentTile, numbers: Numbers) -> Iterator[FinalPixels]:
        """Yield the tile's core, cropped from its window, after its last pass."""
        core = _cut(numbers, sent.tile.core.within(sent.tile.window))
        if sent.at < self._passes - 1:
            self._earlier.append(core.copy())
            return
        if self._earlier:
            core = np.concatenate([*self._earlier, core])
            self._earlier.clear()
        for final in sent.final:
            yield FinalPixels(final.box, _cut(core, final.box.within(sent.tile.core)), final.valid, final.suspects)


class HannStitcher:
    """Stitching by weighted means, in a rolling buffer as high as a tile and as wide as a panel."""

    def __init__(self, plan: Plan, channels: int, passes: int = 1) -> None:
        columns = tuple(cut for panel in plan.panels for cut in panel)
        self._down, self._across = window_weights(plan.rows), window_weights(columns)
        self._count, self._channels = channels, channels * passes
        self._at = Box(0, 0, 0, 0)
        self._sums: npt.NDArray[np.float64] = np.zeros((self._channels, 0, 0))

    def add(self, sent: SentTile, numbers: Numbers) -> Iterator[FinalPixels]:
        """Add the tile to the weighted sums, and yield the pixels that no later tile covers."""
        core, window = sent.tile.core, sent.tile.window
        self._move_to(Box(core.top, sent.strip.tiles[0].core.left, core.bottom, sent.strip.tiles[-1].core.right))
        seen = core.within(window)
        weights = (
            self._down[window.top][seen.top : seen.bottom, None] * self._across[window.left][seen.left : seen.right]
        )
        own = self._sums[sent.at * self._count : (sent.at + 1) * self._count]
        for sums, values in zip(_cut(own, core.within(self._at)), _cut(numbers, seen), strict=True):
            sums += weights * values
        for final in sent.final:
            means = _cut(self._sums, final.box.within(self._at)).astype(np.float32)
            yield FinalPixels(final.box, means, final.valid, final.suspects)

    def _move_to(self, box: Box) -> None:
        """Move the buffer to a box: keep the sums of shared rows, set the others to 0."""
        at, self._at = self._at, box
        if box == at:
            return
        if (at.left, at.right, at.height) != (box.left, box.right, box.height) or box.top < at.top:
            self._sums = np.zeros((self._channels, box.height, box.width))
            return
        shared = max(0, at.bottom - box.top)
        for sums in self._sums:  # one by one: numpy makes a temporary copy for overlapping moves
            sums[:shared] = sums[at.height - shared :]
            sums[shared:] = 0


def window_weights(cuts: tuple[Cut, ...]) -> dict[int, npt.NDArray[np.float64]]:
    """Return the normalised weights of each window's pixels along one axis, by the start of the window.

    All above 0; at every pixel the window_weights of all windows add up to 1.
    """
    side = cuts[0].window_stop - cuts[0].window_start
    weights = np.sin(np.pi * (np.arange(side) + 0.5) / side) ** 2
    total = np.zeros(cuts[-1].window_stop)
    for cut in cuts:
        total[cut.window_start : cut.window_stop] += weights
    return {cut.window_start: weights / total[cut.window_start : cut.window_stop] for cut in cuts}


def _cut(numbers: npt.NDArray[Any], box: Box) -> npt.NDArray[Any]:
    return numbers[:, box.top : box.bottom, box.left : box.right]
