"""From the network's answers to final pixels: tiles put side by side, or averaged where they overlap.

Means are of probabilities or quantities, never of classes. A tile counts least at its edges, where a vision transformer
knows least of its surroundings, and yet everywhere something: its weight is a Hann window shifted by half a pixel,
sin²(pi (i + 1/2) / tile) along either axis, which is nowhere 0. Along each axis the weights of all tiles at a pixel are
divided by their sum beforehand. That is possible because every tile that sees a valid pixel is sent, and exact: sums of
float64 make equal answers the same float32 again, at corners too.

Tiles are added in the plan's order, so that the sums are the same whatever the order of the work, the batches, the
panels, and the strips that an earlier attempt had finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ProcessorFailed
from penstock.processors.base import Output
from penstock.processors.geo.fill import Fill
from penstock.processors.geo.plan import Box, Cut, Plan, Strip
from penstock.processors.geo.tiles import Pending, Sent

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Channels:
    """The network's output: float32 (count, rows, columns) of the tile's window, under a name."""

    name: str
    count: int

    def of(self, output: Output, window: Box) -> Numbers:
        """Return a tile's answer; raise `ProcessorFailed` if it is not what the model's record says."""
        numbers: Any = output.data.get(self.name)
        expected = (self.count, window.height, window.width)
        if not isinstance(numbers, np.ndarray):
            raise ProcessorFailed(f"The network answered {', '.join(output.data) or 'nothing'}, not `{self.name}`.")
        if numbers.shape != expected:
            raise ProcessorFailed(f"The network answered {numbers.shape}; expected {expected}.")
        return numbers


@dataclass(frozen=True, slots=True)
class Piece:
    """Final pixels: float32 (channels, rows, columns) of a box, where they are valid, and what may be fill there."""

    box: Box
    numbers: Numbers
    valid: npt.NDArray[np.bool_]
    fill: Fill


@dataclass(frozen=True, slots=True)
class Answered:
    """What an answer made final."""

    strip: Strip
    #: Whether the strip is final now.
    last: bool
    #: Left to right. Their numbers are good until the next answer.
    pieces: Iterator[Piece]


class Stitch(Protocol):
    """How tiles become a scene."""

    def take(self, sent: Sent, numbers: Numbers) -> Iterator[Piece]:
        """Take a tile's answer and yield what is final now."""
        ...


def stitched(outputs: Iterator[Output], pending: Pending, plan: Plan, channels: Channels) -> Iterator[Answered]:
    """Yield what each answer makes final. Take all pieces of one before the next.

    Raises `ProcessorFailed` if there are more or fewer answers than tiles were sent.
    """
    stitch: Stitch = Averaged(plan, channels.count) if plan.averaged else SideBySide()
    for output in outputs:
        if not pending:
            raise ProcessorFailed("The engine answered more tiles than it was sent.")
        sent = pending.popleft()
        numbers = channels.of(output, sent.tile.window)
        yield Answered(sent.strip, sent.last, stitch.take(sent, numbers))
    if pending:
        raise ProcessorFailed(f"The engine left {len(pending)} tiles unanswered.")


class SideBySide:
    """Cores of tiles with a halo."""

    def take(self, sent: Sent, numbers: Numbers) -> Iterator[Piece]:
        """Yield the tile's core, cut out of its window."""
        for final in sent.final:
            yield Piece(final.box, _cut(numbers, final.box.within(sent.tile.window)), final.valid, final.fill)


class Averaged:
    """Weighted means, in a buffer as high as a tile and as wide as a panel that rolls down the scene."""

    def __init__(self, plan: Plan, channels: int) -> None:
        columns = tuple(cut for panel in plan.panels for cut in panel)
        self._down, self._across = shares(plan.rows), shares(columns)
        self._channels = channels
        self._at = Box(0, 0, 0, 0)
        self._sums: npt.NDArray[np.float64] = np.zeros((channels, 0, 0))

    def take(self, sent: Sent, numbers: Numbers) -> Iterator[Piece]:
        """Add the tile to the means, and yield those that no later tile counts for."""
        core, window = sent.tile.core, sent.tile.window
        self._move_to(Box(core.top, sent.strip.tiles[0].core.left, core.bottom, sent.strip.tiles[-1].core.right))
        seen = core.within(window)
        weights = (
            self._down[window.top][seen.top : seen.bottom, None] * self._across[window.left][seen.left : seen.right]
        )
        for sums, values in zip(_cut(self._sums, core.within(self._at)), _cut(numbers, seen), strict=True):
            sums += weights * values
        for final in sent.final:
            means = _cut(self._sums, final.box.within(self._at)).astype(np.float32)
            yield Piece(final.box, means, final.valid, final.fill)

    def _move_to(self, box: Box) -> None:
        """Keep the sums of the rows that both boxes share; the others begin at 0."""
        at, self._at = self._at, box
        if box == at:
            return
        if (at.left, at.right, at.height) != (box.left, box.right, box.height) or box.top < at.top:
            self._sums = np.zeros((self._channels, box.height, box.width))
            return
        shared = max(0, at.bottom - box.top)
        for sums in self._sums:  # one by one: numpy copies what it moves within an array
            sums[:shared] = sums[at.height - shared :]
            sums[shared:] = 0


def shares(cuts: tuple[Cut, ...]) -> dict[int, npt.NDArray[np.float64]]:
    """Return, by the beginning of each window, the share that it has in the mean at each of its pixels.

    All above 0; at every pixel the shares of all windows add up to 1.
    """
    side = cuts[0].window_stop - cuts[0].window_start
    weights = np.sin(np.pi * (np.arange(side) + 0.5) / side) ** 2
    total = np.zeros(cuts[-1].window_stop)
    for cut in cuts:
        total[cut.window_start : cut.window_stop] += weights
    return {cut.window_start: weights / total[cut.window_start : cut.window_stop] for cut in cuts}


def _cut(numbers: npt.NDArray[Any], box: Box) -> npt.NDArray[Any]:
    return numbers[:, box.top : box.bottom, box.left : box.right]
