"""From rows to prompts: each source row is read once, the rows that the next strip's halo needs are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput
from penstock.processors.base import Prompt
from penstock.processors.geo.options import Band
from penstock.processors.geo.plan import Box, Plan, Strip, Tile
from penstock.processors.geo.radiometry import Radiometry
from penstock.processors.geo.raster import Rows

#: The network's input: float32 (bands, rows, columns), normalised.
INPUT_NAME = "pixels"

#: The tiles that were sent to the engine, in order, each with where its core is valid. Filled by the thread that draws
#: the prompts and emptied by the one that takes the outputs; a deque's two ends are safe for that.
Pending = deque[tuple[Tile, npt.NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """From the file's numbers to the network's input."""

    bands: tuple[Band, ...]
    radiometry: Radiometry
    plausible_mean: float | None

    def apply(
        self, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], shape: tuple[int, int]
    ) -> npt.NDArray[np.float32]:
        """Return float32 (bands, *shape): `(number * scale + offset - mean) / std`, computed in float64.

        What is not valid, or padding to the right and below, becomes `(0 - mean) / std`: the reflectance 0 that such
        pixels had in training. Raises `InvalidInput` if a band's mean cannot be what the model was trained on.
        """
        height, width = valid.shape
        pixels = np.empty((len(self.bands), *shape), dtype=np.float32)
        for i, band in enumerate(self.bands):
            values = numbers[i].astype(np.float64) * self.radiometry.scale[i] + self.radiometry.offset[i]
            self._check(band, values, valid)
            fill = -band.mean / band.std
            pixels[i] = fill
            pixels[i, :height, :width] = np.where(valid, (values - band.mean) / band.std, fill)
        return pixels

    def _check(self, band: Band, values: npt.NDArray[np.float64], valid: npt.NDArray[np.bool_]) -> None:
        if self.plausible_mean is None or not valid.any():
            return
        mean = float(values.mean(where=valid))
        if abs(mean) > self.plausible_mean:
            raise InvalidInput(
                f"Band {band.name} has a mean of {mean:.4g} where the model expects reflectance (0 to 1), after the "
                f"radiometry by {self.radiometry.source}: scale {self.radiometry.to_json()['scale']}. Give the scene's "
                'own, e.g. "radiometry": {"scale": 0.0001}.'
            )


def make_prompts(rows: Rows, plan: Plan, norm: Normalisation, pending: Pending) -> Iterator[Prompt]:
    """Yield the prompts of all tiles whose core holds any data, in the plan's order; note each in `pending` first."""
    held = _Held(rows)
    for strip in plan.strips():
        held.move_to(strip)
        for tile in strip.tiles:
            core = held.valid(tile.core)
            if not core.any():
                continue
            pending.append((tile, core.copy()))
            window = tile.window
            pixels = norm.apply(held.numbers(window), held.valid(window), (window.height, window.width))
            yield Prompt({INPUT_NAME: pixels}, cost=window.height * window.width)


class _Held:
    """The rows of the current strip, in the file's own data type."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._box = Box(0, 0, 0, 0)
        self._numbers: npt.NDArray[Any] = np.empty((rows.count, 0, 0), dtype=rows.dtype)
        self._valid = np.empty((0, 0), dtype=bool)

    def move_to(self, strip: Strip) -> None:
        """Hold the strip's rows, reading those that are not held yet."""
        box = self._inside(strip.window)
        kept = self._keep(box)
        for top, numbers, valid in self._rows.read(Box(box.top + kept, box.left, box.bottom, box.right)):
            at = slice(top - box.top, top - box.top + valid.shape[0])
            self._numbers[:, at] = numbers
            self._valid[at] = valid
        self._box = box

    def numbers(self, box: Box) -> npt.NDArray[Any]:
        """Return the numbers of a box as a view; what lies outside the scene is not there."""
        rows, columns = self._slices(box)
        return self._numbers[:, rows, columns]

    def valid(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return where a box holds data, as a view of the same extent as `numbers`."""
        rows, columns = self._slices(box)
        return self._valid[rows, columns]

    def _keep(self, box: Box) -> int:
        """Move the rows that both strips share to the top and return how many they are."""
        held, numbers, valid = self._box, self._numbers, self._valid
        goes_on = (held.left, held.right) == (box.left, box.right) and held.top <= box.top
        kept, start = max(0, held.bottom - box.top) if goes_on else 0, box.top - held.top
        if valid.shape[1] != box.width or valid.shape[0] < box.height:
            self._numbers = np.empty((numbers.shape[0], box.height, box.width), dtype=numbers.dtype)
            self._valid = np.empty((box.height, box.width), dtype=bool)
        if kept:
            self._numbers[:, :kept] = numbers[:, start : start + kept]
            self._valid[:kept] = valid[start : start + kept]
        return kept

    def _inside(self, box: Box) -> Box:
        return Box(box.top, box.left, min(box.bottom, self._rows.height), min(box.right, self._rows.width))

    def _slices(self, box: Box) -> tuple[slice, slice]:
        inside = self._inside(box)
        held = self._box
        return (
            slice(inside.top - held.top, inside.bottom - held.top),
            slice(inside.left - held.left, inside.right - held.left),
        )
