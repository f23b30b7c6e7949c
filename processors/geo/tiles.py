"""From rows to prompts: each source row is read once, the rows that the next strip's halo needs are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput
from penstock.processors.base import Array, Prompt
from penstock.processors.geo.fill import Fill, count_fill, looks_like_fill
from penstock.processors.geo.options import Band
from penstock.processors.geo.plan import Box, Plan, Strip, Tile
from penstock.processors.geo.radiometry import Radiometry
from penstock.processors.geo.rows import Rows
from penstock.reports import Issue

#: The network's input: float32 (bands, rows, columns), normalised.
INPUT_NAME = "pixels"

#: No reflectance lies below; atmospheric corrections leave -0.1 at times.
_LEAST_REFLECTANCE = -0.5
#: How much of a tile's data may lie below it, and how low their mean may be.
_MOST_BELOW, _LEAST_MEAN = 0.001, -0.2
#: So few pixels are no fill, whatever their share: tiles at a scene's edge hold little data, and the worst.
_FEW_BELOW = 4
_NODATA_POINTER = "/input/radiometry/nodata"


@dataclass(frozen=True, slots=True)
class Final:
    """A part of the scene that is final once a tile is answered: bool (rows, columns), valid somewhere."""

    box: Box
    valid: npt.NDArray[np.bool_]
    fill: Fill


@dataclass(frozen=True, slots=True)
class Sent:
    """A tile that was sent to the engine."""

    tile: Tile
    strip: Strip
    #: Whether it is the strip's last one: those without data are not sent.
    last: bool
    #: What is final once it is answered.
    final: tuple[Final, ...]


#: The tiles that were sent, in order. Filled by the thread that draws the prompts and emptied by the one that takes the
#: outputs; a deque's two ends are safe for that.
Pending = deque[Sent]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """From the file's numbers to the network's input."""

    bands: tuple[Band, ...]
    radiometry: Radiometry
    plausible_mean: float | None
    #: Whether what lies beyond the scene is its reflection, and not pixels that are not valid.
    reflected: bool = False

    def apply(
        self, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], shape: tuple[int, int]
    ) -> npt.NDArray[np.float32]:
        """Return float32 (bands, *shape): `(number * scale + offset - mean) / std`, computed in float64.

        What is not valid becomes `(0 - mean) / std`: the reflectance 0 that such pixels had in training. So does the
        padding to the right and below, unless it is `reflected`. Raises `InvalidInput` if a band's mean cannot be what
        the model was trained on.
        """
        height, width = valid.shape
        pixels = np.empty((len(self.bands), *shape), dtype=np.float32)
        for i, band in enumerate(self.bands):
            values = numbers[i].astype(np.float64) * self.radiometry.scale[i] + self.radiometry.offset[i]
            if self.plausible_mean is not None and valid.any():
                self._check(i, values, numbers[i], valid)
            fill = -band.mean / band.std
            pixels[i] = fill
            pixels[i, :height, :width] = np.where(valid, (values - band.mean) / band.std, fill)
        if self.reflected and (height, width) != shape:
            beyond = ((0, 0), (0, shape[0] - height), (0, shape[1] - width))
            return np.pad(pixels[:, :height, :width], beyond, mode="reflect")
        return pixels

    def _check(
        self, at: int, values: npt.NDArray[np.float64], numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
    ) -> None:
        """Raise `InvalidInput` if what is valid of a band's `values`, made of its `numbers`, is no reflectance."""
        mean = float(values.mean(where=valid))
        if float(values.min(where=valid, initial=0)) < _LEAST_MEAN:
            self._check_low(at, mean, values[valid], numbers[valid])
        if self.plausible_mean is not None and mean > self.plausible_mean:
            highest = numbers[valid].max().item()
            fill = (
                f' If {highest} is fill, give "radiometry": {{"nodata": {highest}}}.'
                if looks_like_fill(highest)
                else ""
            )
            raise InvalidInput(
                f"Band {self.bands[at].name} has a mean of {mean:.4g} where the model expects reflectance (0 to 1), "
                f"after the radiometry by {self.radiometry.source}: scale {self.radiometry.to_json()['scale']}. Give "
                """the scene's own, e.g. "radiometry": {"scale": 0.0001}."""
                f"{fill}"
            )

    def _check_low(self, at: int, mean: float, values: npt.NDArray[np.float64], numbers: npt.NDArray[Any]) -> None:
        """Raise `InvalidInput`, naming the commonest number, where much is too low: fill that nobody declared."""
        below = values < _LEAST_REFLECTANCE
        if below.sum() <= max(_FEW_BELOW, _MOST_BELOW * below.size) and mean >= _LEAST_MEAN:
            return
        found, counts = np.unique(numbers[below if below.any() else values < 0], return_counts=True)
        number, share = found[counts.argmax()].item(), 100 * counts.max() / values.size
        used = self.radiometry.bands[at]
        why = (
            f"Band {self.bands[at].name} cannot be reflectance: {100 * below.mean():.3g} % of a tile is below "
            f"{_LEAST_REFLECTANCE} and the mean is {mean:.4g}, after the radiometry by {used.source}. {share:.3g} % of "
            f"it has the number {number!r} in the file, which looks like fill that the file does not declare: give "
            f'"radiometry": {{"nodata": {number!r}}}.'
        )
        raise InvalidInput(why, errors=[Issue(_NODATA_POINTER, f"is needed: {number!r} looks like no data")])


#: From a tile's window to what its prompt holds beside the pixels.
Tell = Callable[[Box], Mapping[str, Array]]


def make_prompts(
    rows: Rows,
    plan: Plan,
    norm: Normalisation,
    pending: Pending,
    kept: Collection[int] = (),
    *,
    tell: Tell = lambda _: {},
) -> Iterator[Prompt]:
    """Yield the prompts of all tiles whose core holds any data, in the plan's order; note each in `pending` first.

    Strips that are `kept` from an earlier attempt are not read, but for what the others need of them.
    """
    held = _Held(rows)
    for strip in plan.strips(kept):
        held.move_to(strip)
        sent = [tile for tile in strip.tiles if held.valid(tile.core).any()]
        for tile in sent:
            last, window = tile is sent[-1], tile.window
            # Means are final with the last tile that counts for them; cores that lie side by side one by one.
            boxes = (strip.cells if last else ()) if plan.averaged else (tile.core,)
            pending.append(Sent(tile, strip, last, tuple(held.final(boxes))))
            pixels = norm.apply(held.numbers(window), held.valid(window), (window.height, window.width))
            yield Prompt({INPUT_NAME: pixels, **tell(window)}, cost=window.height * window.width)


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

    def final(self, boxes: Iterable[Box]) -> Iterator[Final]:
        """Yield those boxes that hold any data, with copies of where."""
        for box in boxes:
            valid = self.valid(box)
            if valid.any():
                yield Final(box, valid.copy(), count_fill(self.numbers(box), valid))

    def _keep(self, box: Box) -> int:
        """Move the rows that both strips share to the top and return how many they are."""
        held, numbers, valid = self._box, self._numbers, self._valid
        goes_on = (held.left, held.right) == (box.left, box.right) and held.top <= box.top
        kept, start = max(0, held.bottom - box.top) if goes_on else 0, box.top - held.top
        if valid.shape[1] != box.width or valid.shape[0] < box.height:
            self._numbers = np.empty((numbers.shape[0], box.height, box.width), dtype=numbers.dtype)
            self._valid = np.empty((box.height, box.width), dtype=bool)
        if kept:
            for new, old in zip(self._numbers, numbers, strict=True):  # one by one: numpy copies what it moves within
                new[:kept] = old[start : start + kept]
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
