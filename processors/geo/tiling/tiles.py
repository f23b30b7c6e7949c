"""Tiles as prompts: read each source row once, and keep the rows that the next strip's halo needs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, Issue
from penstock.processors.base import Array, Prompt
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.radiometry import Radiometry
from penstock.processors.geo.read.row_stream import SceneRows
from penstock.processors.geo.read.suspected_nodata import SuspectCounts, is_suspect
from penstock.processors.geo.tiling.flips import mirrored_inputs
from penstock.processors.geo.tiling.plan import Box, Plan, Strip, Tile
from penstock.processors.numbers import is_compact, normalised
from penstock.processors.prompt_names import RADIOMETRY, VALID

#: The network's input: float32 (bands, rows, columns), normalised; or a file's numbers (see `processors.numbers`).
INPUT_NAME = "pixels"

#: Minimum possible reflectance; atmospheric correction can give about -0.1.
_LEAST_REFLECTANCE = -0.5
#: Maximum share of a tile below the minimum, and lowest allowed mean.
_MOST_BELOW, _LEAST_MEAN = 0.001, -0.2
#: This many low pixels are always allowed: tiles at a scene's edge have few and noisy pixels.
_FEW_BELOW = 4
#: Share of the highest allowed mean that no value may reach for a band to be plausible without computing its mean.
_SAFE_SHARE = 0.999
#: Inputs of a prompt that have rows and columns.
_WITH_ROWS = (INPUT_NAME, VALID)
_NODATA_POINTER = "/input/radiometry/nodata"


@dataclass(frozen=True, slots=True)
class FinalBox:
    """A box that is final after a tile output; `valid` is bool (rows, columns) with at least one True."""

    box: Box
    valid: npt.NDArray[np.bool_]
    suspects: SuspectCounts


@dataclass(frozen=True, slots=True)
class SentTile:
    """A tile that was sent to the engine, in one of several passes."""

    tile: Tile
    strip: Strip
    #: True for the strip's last sent tile in its last pass; tiles without data are not sent.
    last: bool
    #: Boxes that are final after this tile's output; none before the last pass.
    final: tuple[FinalBox, ...]
    #: Validity of the window's pixels inside the scene, bool (rows, columns); None unless it is kept.
    valid: npt.NDArray[np.bool_] | None = None
    #: Number of the pass (see `flips`).
    at: int = 0


#: Sent tiles in order. One thread appends while creating prompts, another pops while reading outputs; both ends of a
#: deque are thread-safe.
PendingTiles = deque[SentTile]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Normalisation of a file's numbers to the network's input."""

    bands: tuple[Band, ...]
    radiometry: Radiometry
    plausible_mean: float | None
    #: True to pad beyond the scene by reflection, False to pad like invalid pixels.
    reflected: bool = False

    def inputs(
        self, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], shape: tuple[int, int]
    ) -> dict[str, Array]:
        """Return a prompt's pixels of a shape: compact numbers as they are with their radiometry, others normalised.

        The padding to the right and below is invalid unless `reflected`. Invalid pixels stand for reflectance 0, as
        such pixels had in training. Raises `InvalidInput` for implausible values.
        """
        numbers, valid = numbers.copy(), valid.copy()  # the checks read neighbours faster than rows of a wide strip
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers beyond float32, which are refused
            self._check_numbers(numbers, valid)
            if valid.shape != shape:
                beyond = tuple((0, full - side) for full, side in zip(shape, valid.shape, strict=True))
                mode: Literal["reflect", "constant"] = "reflect" if self.reflected else "constant"
                numbers, valid = np.pad(numbers, ((0, 0), *beyond), mode), np.pad(valid, beyond, mode)
            means, stds = zip(*((band.mean, band.std) for band in self.bands), strict=True)
            radiometry = np.array([self.radiometry.scale, self.radiometry.offset, means, stds], dtype=np.float64)
            if not is_compact(numbers.dtype):
                return {INPUT_NAME: normalised(numbers, valid, radiometry)}
        return {INPUT_NAME: numbers, VALID: valid, RADIOMETRY: radiometry}

    def _check_numbers(self, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        """Raise `InvalidInput` for implausible values; values are computed only where they matter."""
        if self.plausible_mean is None or not valid.any():
            return
        for i in np.flatnonzero(~self._surely_plausible(numbers)).tolist():
            band = numbers[i]
            values = band.astype(np.float64) * self.radiometry.scale[i] + self.radiometry.offset[i]
            self._check(i, values, band, valid)

    def _surely_plausible(self, numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return True for each band in which `_check` accepts every choice of pixels: the extremes are enough to tell.

        Scaling keeps the order of numbers or turns it round, also with rounding.
        """
        flat = numbers.reshape(len(numbers), -1)
        ends = np.stack([flat.min(axis=1), flat.max(axis=1)]).astype(np.float64) * self.radiometry.scale
        ends += self.radiometry.offset
        most = math.inf if self.plausible_mean is None else self.plausible_mean
        return np.asarray((ends.min(axis=0) >= _LEAST_MEAN) & (ends.max(axis=0) < most * _SAFE_SHARE))

    def _check(
        self, at: int, values: npt.NDArray[np.float64], numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
    ) -> None:
        """Raise `InvalidInput` if the valid `values` of a band, computed from `numbers`, cannot be reflectance."""
        mean = float(values.mean(where=valid))
        if float(values.min(where=valid, initial=0)) < _LEAST_MEAN:
            self._check_low(at, mean, values[valid], numbers[valid])
        if self.plausible_mean is not None and mean > self.plausible_mean:
            highest = numbers[valid].max().item()
            hint = (
                f' If {highest} means nodata, give "radiometry": {{"nodata": {highest}}}.'
                if is_suspect(highest)
                else ""
            )
            raise InvalidInput(
                f"Band {self.bands[at].name} has a mean of {mean:.4g}, but the model expects reflectance (0 to 1). "
                f"Radiometry source: {self.radiometry.source}, scale {self.radiometry.to_json()['scale']}. Give "
                f"the product's scale and offset as `radiometry`.{hint}"
            )

    def _check_low(self, at: int, mean: float, values: npt.NDArray[np.float64], numbers: npt.NDArray[Any]) -> None:
        """Raise `InvalidInput` with the most frequent low number if too many values are too low (undeclared nodata)."""
        below = values < _LEAST_REFLECTANCE
        if below.sum() <= max(_FEW_BELOW, _MOST_BELOW * below.size) and mean >= _LEAST_MEAN:
            return
        found, counts = np.unique(numbers[below if below.any() else values < 0], return_counts=True)
        number, share = found[counts.argmax()].item(), 100 * counts.max() / values.size
        used = self.radiometry.bands[at]
        why = (
            f"Band {self.bands[at].name} cannot be reflectance: {100 * below.mean():.3g} % of a tile is below "
            f"{_LEAST_REFLECTANCE} and the mean is {mean:.4g} (radiometry source: {used.source}). {share:.3g} % of the "
            f"tile has the number {number!r} in the file, which looks like undeclared nodata: give "
            f'"radiometry": {{"nodata": {number!r}}}.'
        )
        raise InvalidInput(why, errors=[Issue(_NODATA_POINTER, f"is needed: {number!r} looks like nodata")])


class Area(Protocol):
    """The part of a scene whose results are wanted."""

    @property
    def box(self) -> Box:
        """The smallest box of the scene's pixels that contains the area."""
        ...

    def mask(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return bool (rows, columns): True for the pixels of a box that are inside the area."""
        ...


#: Function from numbers (bands, rows, columns) and validity (rows, columns) to the counts of suspected nodata.
FindSuspects = Callable[[npt.NDArray[Any], npt.NDArray[np.bool_]], SuspectCounts]

#: Function from a tile's window to the prompt's further inputs, beside the pixels.
TileInputs = Callable[[Box], Mapping[str, Array]]


def make_prompts(
    rows: SceneRows,
    plan: Plan,
    norm: Normalisation,
    pending: PendingTiles,
    restored: Collection[int] = (),
    *,
    tile_inputs: TileInputs = lambda _: {},
    find_suspects: FindSuspects = lambda *_: SuspectCounts(),
    area: Area | None = None,
    keeps_valid: bool = False,
    needed: Box | None = None,
    passes: int = 1,
) -> Iterator[Prompt]:
    """Yield the prompts of all tiles whose core has data, in the plan's order; append each tile to `pending` first.

    `restored` strips of an earlier attempt are read only as far as other strips need their rows. Each final box is
    searched for suspected nodata once. With `area`, only tiles whose core has data inside the area are sent, and final
    boxes are cut to the area's box; the network still sees the data outside. With `keeps_valid`, each sent tile has the
    validity of its window's pixels. Pixels outside `needed` are not read; they are as those without data. Each tile is
    sent in so many `passes`, one after the other: as it is, then mirrored.
    """
    buffer = _RowBuffer(rows, area, needed)
    for strip in plan.strips(restored):
        buffer.move_to(strip)
        sent = [tile for tile in strip.tiles if buffer.wanted(tile.core).any()]
        for tile in sent:
            last, window = tile is sent[-1], tile.window
            # Means are final after the last tile of the strip; cores are final one by one.
            boxes = (strip.cells if last else ()) if plan.averaged or plan.whole else (tile.core,)
            inputs = norm.inputs(buffer.numbers(window), buffer.valid(window), (window.height, window.width))
            valid = buffer.valid(window).copy() if keeps_valid else None
            final, beside = tuple(buffer.final(boxes, find_suspects)), tile_inputs(window)
            for at in range(passes):
                is_last = at == passes - 1
                pending.append(SentTile(tile, strip, last and is_last, final if is_last else (), valid, at))
                own = mirrored_inputs(inputs, at, _WITH_ROWS)
                yield Prompt({**own, **beside}, cost=window.height * window.width)


class _RowBuffer:
    """Buffer with the rows of the current strip, in the file's data type."""

    def __init__(self, rows: SceneRows, area: Area | None = None, needed: Box | None = None) -> None:
        self._rows, self._area, self._needed = rows, area, needed
        self._box = Box(0, 0, 0, 0)
        self._numbers: npt.NDArray[Any] = np.empty((rows.count, 0, 0), dtype=rows.dtype)
        self._valid = np.empty((0, 0), dtype=bool)
        #: Valid pixels inside the area.
        self._wanted = self._valid

    def move_to(self, strip: Strip) -> None:
        """Move the buffer to a strip, and read the rows that are missing."""
        box = self._inside(strip.window)
        kept = self._keep(box)
        missing = Box(box.top + kept, box.left, box.bottom, box.right)
        if self._needed is not None:
            self._numbers[:, kept:], self._valid[kept:], self._wanted[kept:] = 0, False, False
            missing = missing.clipped(self._needed) or Box(box.top, box.left, box.top, box.left)
        for top, numbers, valid in self._rows.read(missing) if missing.height else ():
            read = Box(top, missing.left, top + valid.shape[0], missing.right)
            at = slice(read.top - box.top, read.bottom - box.top), slice(read.left - box.left, read.right - box.left)
            self._numbers[:, *at] = numbers
            self._valid[at] = valid
            if self._area is not None:
                self._wanted[at] = valid & self._area.mask(read)
        self._box = box

    def numbers(self, box: Box) -> npt.NDArray[Any]:
        """Return the numbers of a box as a view, cropped to the scene."""
        rows, columns = self._slices(box)
        return self._numbers[:, rows, columns]

    def valid(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return the validity mask of a box as a view, cropped like `numbers`."""
        rows, columns = self._slices(box)
        return self._valid[rows, columns]

    def wanted(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return the mask of the valid pixels inside the area as a view, cropped like `numbers`."""
        rows, columns = self._slices(box)
        return self._wanted[rows, columns]

    def final(self, boxes: Iterable[Box], find_suspects: FindSuspects) -> Iterator[FinalBox]:
        """Yield the boxes that have data, cut to the area's box, with copies of their validity masks."""
        for box in boxes if self._area is None else filter(None, (each.clipped(self._area.box) for each in boxes)):
            valid = self.wanted(box)
            if valid.any():
                yield FinalBox(box, valid.copy(), find_suspects(self.numbers(box), valid))

    def _keep(self, box: Box) -> int:
        """Move the rows that both strips share to the top, and return their number."""
        held, numbers, valid, wanted = self._box, self._numbers, self._valid, self._wanted
        goes_on = (held.left, held.right) == (box.left, box.right) and held.top <= box.top
        kept, start = max(0, held.bottom - box.top) if goes_on else 0, box.top - held.top
        if valid.shape[1] != box.width or valid.shape[0] < box.height:
            self._numbers = np.empty((numbers.shape[0], box.height, box.width), dtype=numbers.dtype)
            self._valid = np.empty((box.height, box.width), dtype=bool)
            self._wanted = self._valid if self._area is None else np.empty_like(self._valid)
        if kept:
            for new, old in zip(self._numbers, numbers, strict=True):  # one by one: numpy copies overlapping moves
                new[:kept] = old[start : start + kept]
            self._valid[:kept] = valid[start : start + kept]
            if self._area is not None:
                self._wanted[:kept] = wanted[start : start + kept]
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
