"""Providers' masks: the pixels that clouds or shadows hide, on the scene's grid.

A mask does not change the network's input. It hides pixels of the results, and it makes a mosaic prefer other scenes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.mask_kinds import MASK_KINDS, MaskClass, MaskKind
from penstock.processors.geo.read.grids import Factor, nesting
from penstock.processors.geo.read.input_file import InputFile
from penstock.processors.geo.read.opened_scene import OpenedMask, naming
from penstock.processors.geo.read.placement import whole
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.resample import Chunk
from penstock.processors.geo.read.row_stream import RowReader
from penstock.processors.geo.tiling.plan import Box

#: Rows per chunk.
_CHUNK_ROWS: Final = 256

_SAME: Final = Factor(1, 1)
#: Share of the observed pixels that a mask hides at most without a note.
_MOST_HIDDEN: Final = 0.95

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SceneMask:
    """A provider's mask that fits the grid of its scene."""

    file: InputFile
    kind_name: str
    #: The classes of the mask.
    kind: MaskKind
    #: Names of the masked classes, in the order of the kind.
    hidden: tuple[str, ...]
    #: Scene pixels per pixel of the mask.
    factor: Factor
    #: JSON pointer to the mask in the request.
    place: str = "/input/mask"
    #: Probability in percent above which a pixel is cloud, for such a mask.
    threshold: float | None = None

    @property
    def size(self) -> int:
        """Number of values that the file's pixels can have: 256 for uint8, 65536 for uint16."""
        return int(np.iinfo(self.file.scene.dtype).max) + 1

    def of(self, *names: str, among: npt.NDArray[Any] | None = None) -> Flags:
        """Return bool: True for those of all values, or `among` those given, that have one of the classes."""
        every = np.arange(self.size) if among is None else among
        found = np.zeros(every.shape, bool)
        for one in (self.kind.classes[name] for name in names):
            bits = every >> one.offset & ((1 << one.length) - 1)
            found |= np.isin(bits, one.values) & ~np.isin(every, one.never)
        return found

    @property
    def table(self) -> Flags:
        """Return bool (size): True for the values that are masked."""
        return self.of(*self.hidden)

    def checked(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values, with the kind's "no data" where the file has a nodata number that the kind does not know.

        Raises `InvalidInput` for any other value that the kind does not have: the mask is of another kind.
        """
        kind, empty = self.kind, np.asarray(values == self.file.scene.nodata[0])
        seen = values[~empty]
        if seen.size and (seen > kind.highest).any():
            raise _wrong(
                f"{self.file.label} has the value {seen.max()}, but {self.kind_name} has only 0 to {kind.highest}. "
                f"Give the mask's `kind`: {' or '.join(MASK_KINDS)}.",
                self.place,
            )
        if kind.empty and empty.any() and not self.of(*kind.classes, among=values[empty][:1].astype(int)).any():
            return np.where(empty, values.dtype.type(self.of(kind.empty[0]).argmax()), values)
        return values

    def in_the_file(self, box: Box) -> Box:
        """Return the mask's pixels of a box of the scene."""
        rows, columns = self.factor.rows, self.factor.columns
        return Box(box.top // rows, box.left // columns, -(-box.bottom // rows), -(-box.right // columns))

    def to_json(self) -> dict[str, Any]:
        """Return the mask as recorded in the statistics."""
        limit = {} if self.threshold is None else {"threshold": self.threshold}
        return {"kind": self.kind_name, "masked": list(self.hidden), **limit}


def fit_mask(opened: OpenedMask, scene: Scene) -> SceneMask:
    """Return a mask on its scene's grid.

    Raises `InvalidInput` for a file that is no mask, another grid, finer pixels, and unknown classes.
    """
    file, place = opened.file, opened.place
    kind = _with_nodata(opened.kind, file.scene)
    if file.scene.dtype not in kind.dtypes or len(file.scene.bands) != 1:
        found = f"{len(file.scene.bands)} of {file.scene.dtype}"
        raise _wrong(f"{file.label} must be one band of {' or '.join(kind.dtypes)}, not {found}.", place)
    wanted = opened.request.classes if opened.request.classes is not None else kind.hidden
    names = ", ".join(kind.classes)
    if wanted is None:
        raise _wrong(f"Name the classes that hide the ground in `classes`: the mask has {names}.", place)
    unknown = [name for name in wanted if name not in kind.classes]
    if unknown:
        raise _wrong(f"{opened.kind_name} has no class {unknown[0]!r}; it has {names}.", place)
    try:
        factor = nesting(scene, file.scene, label=file.label, target_label="the scene")
    except InvalidInput as error:
        raise _wrong(error.detail, place, "is on another grid") from error
    hidden = tuple(name for name in kind.classes if name in kind.empty or name in wanted)
    return SceneMask(file, opened.kind_name, kind, hidden, factor, place, opened.request.threshold)


def _with_nodata(kind: MaskKind, scene: Scene) -> MaskKind:
    """Return a kind that has the file's nodata number as a class, if it has no class without an observation."""
    nodata = scene.nodata[0]
    if kind.empty or nodata is None or not 0 <= nodata <= kind.highest or nodata != int(nodata):
        return kind
    return replace(kind, classes={**kind.classes, "no data": MaskClass((int(nodata),))}, empty=("no data",))


def fitted(opened: OpenedMask | None, scene: Scene) -> SceneMask | None:
    """Return the mask of a scene, if it has one; see `fit_mask`."""
    if opened is None:
        return None
    with naming(opened.scene_label):
        return fit_mask(opened, scene)


def _wrong(sentence: str, place: str, issue: str = "is not usable") -> InvalidInput:
    return InvalidInput(sentence, errors=[Issue(place, issue)])


def mostly_hidden(kind_name: str, hidden: int, seen: int) -> Iterator[str]:
    """Yield a note on a mask that hides nearly all of the pixels that it has an observation of."""
    if seen and hidden > _MOST_HIDDEN * seen:
        yield (
            f"The mask ({kind_name}) hides {100 * hidden / seen:.1f} % of the {seen:,} pixels with data. If the ground "
            "is not so hidden, check the `kind` and the `classes` of the mask."
        )


class MaskRows:
    """Reader of a mask's values on the scene's grid: each pixel has the value of the mask's pixel around it."""

    def __init__(self, rows: RowReader, mask: SceneMask) -> None:
        self._rows, self._mask = rows, mask
        self.dtype, self.chunk_rows = rows.dtype, _CHUNK_ROWS

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield uint8 or uint16 (1, rows, columns) of the scene; every pixel is valid."""
        factor = self._mask.factor
        for top in range(box.top, box.bottom, _CHUNK_ROWS):
            part = Box(top, box.left, min(box.bottom, top + _CHUNK_ROWS), box.right)
            coarse = self._mask.in_the_file(part)
            values = self._mask.checked(whole(self._rows.read(coarse))[0])
            rows = np.arange(part.top, part.bottom) // factor.rows - coarse.top
            columns = np.arange(part.left, part.right) // factor.columns - coarse.left
            yield top, values[:, rows][:, :, columns], np.ones((part.height, part.width), bool)


@dataclass(frozen=True, slots=True, eq=False)
class ClearRows:
    """Pixels of one scene that its mask leaves, in the pixels of a mosaic, or of coarser pixels on it."""

    #: The mask's values in the mosaic's pixels.
    rows: RowReader
    table: Flags
    #: The part of the mosaic that the scene may cover.
    box: Box
    factor: Factor = _SAME

    def read(self, box: Box) -> Flags:
        """Return bool (rows, columns) for a box inside the scene; a coarse pixel is clear if all pixels in it are."""
        down, across = self.factor.rows, self.factor.columns
        fine = Box(box.top * down, box.left * across, box.bottom * down, box.right * across).clipped(self.box)
        if fine is None:
            return np.zeros((box.height, box.width), bool)
        values, known = whole(self.rows.read(fine))
        clear: Flags = known & ~self.table[values[0]]
        if self.factor.same:
            return clear
        padded = np.ones((box.height * down, box.width * across), bool)
        padded[: fine.height, : fine.width] = clear
        return np.asarray(padded.reshape(box.height, down, box.width, across).all(axis=(1, 3)))

    def values(self, box: Box) -> tuple[npt.NDArray[Any], Flags]:
        """Return the mask's values (rows, columns) in a box inside the scene, and the pixels that have one."""
        values, known = whole(self.rows.read(box))
        return values[0], known


class ClearPixels:
    """Pixels of one date that the masks of its scenes leave."""

    def __init__(self, scenes: Sequence[ClearRows]) -> None:
        self._scenes = tuple(scenes)

    def read(self, box: Box) -> Flags:
        """Return bool (rows, columns) of a box: True where the mask of some scene leaves the pixel."""
        clear = np.zeros((box.height, box.width), bool)
        for scene, inside in self._meeting(box):
            at = inside.within(box)
            clear[at.top : at.bottom, at.left : at.right] |= scene.read(inside)
        return clear

    def count(self, box: Box, among: Flags | None, size: int) -> tuple[npt.NDArray[np.int64], int]:
        """Return how many masked pixels of a box have each value below `size`, and the number of all masked pixels.

        Only pixels `among` these are counted; None for all. In a mosaic, a masked pixel has the value of the first
        scene there; a pixel beside all scenes is not masked.
        """
        left, counts = ~self.read(box), np.zeros(size, np.int64)
        if among is not None:
            left &= among
        for scene, inside in self._meeting(box):
            at = inside.within(box)
            values, known = scene.values(inside)
            here = left[at.top : at.bottom, at.left : at.right]
            counts += np.bincount(values[here & known], minlength=size)
            here &= ~known
        return counts, int(counts.sum())

    def _meeting(self, box: Box) -> Iterator[tuple[ClearRows, Box]]:
        for scene in self._scenes:
            inside = box.clipped(scene.box)
            if inside is not None:
                yield scene, inside
