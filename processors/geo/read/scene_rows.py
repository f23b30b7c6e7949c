"""Pixels of a prepared scene: fetch the parts of partial files, open the files, and read rows and masks.

scene of one date:  file -> layer
mosaic:             files of each scene -> (rescaled) -> placed -> merged -> layer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.read.grids import Factor
from penstock.processors.geo.read.input_file import InputFile
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.masks import ClearPixels, ClearRows, MaskRows, SceneMask, mostly_hidden
from penstock.processors.geo.read.merge import MergedRows, MosaicPart
from penstock.processors.geo.read.mosaic import DateScenes, Member, rescaled_dtype
from penstock.processors.geo.read.placement import Placement, Shift, ShiftedRows
from penstock.processors.geo.read.raster import FileRows, open_dataset
from penstock.processors.geo.read.resample import Chunk, coarse_box
from penstock.processors.geo.read.row_stream import FileLayer, RowReader, SceneRows
from penstock.processors.geo.read.stepped_file import SteppedFile
from penstock.processors.geo.read.tiff_ranges import PartialTiff
from penstock.processors.geo.tiling.plan import Box

_SAME = Factor(1, 1)
#: A box without pixels.
NOWHERE = Box(0, 0, 0, 0)
#: Rows of a mask that are counted together.
_COUNTED_ROWS = 256
#: Functions that return an open file with the pixels of a box there; see `FileRows`.
Datasets = Mapping[InputFile, Callable[[Box], Any]]


def fill_files(
    inputs: Inputs, box: Box, masks: Box | None = None, *, later: bool = False, in_steps: bool = False
) -> Inputs:  # fmt: skip
    """Fetch the pixels of a box of the scene, of those files that are partial, and of masks the box `masks`.

    `masks` is `box` by default; `NOWHERE` fetches nothing. `later`: see `Media.fill`. With `in_steps`, `open_rows`
    fetches the pixels while they are read, and only those of masks are fetched now.
    """
    in_masks, any_partial = box if masks is None else masks, False
    for part in _partial_files(inputs, box):
        any_partial = True
        if part.box != NOWHERE and not in_steps:
            part.tiff.fill(part.box, part.bands, later=later)
    for date, member in _members(inputs):
        mask = member.mask
        if mask is not None and mask.file.partial is not None:
            any_partial = True
            in_the_file = _in_the_mask(in_masks, date, member, mask)
            if in_the_file != NOWHERE:
                mask.file.partial.fill(in_the_file, [1], later=later)
    return replace(inputs, filled=box, filled_masks=in_masks, in_steps=in_steps) if any_partial else inputs


@dataclass(frozen=True, slots=True)
class _PartOfFile:
    """The pixels of a partial file that a box of the scene needs."""

    file: InputFile
    tiff: PartialTiff
    box: Box
    bands: tuple[int, ...]


def _partial_files(inputs: Inputs, box: Box) -> Iterator[_PartOfFile]:
    """Yield what a box needs of each partial file, without masks; a file beside the box has `NOWHERE`."""
    for date, member in _members(inputs):
        for file in member.files():
            if file.partial is not None:
                used = [at for at, band in enumerate(member.bands) if band.file is file]
                flags = [file.scene.mask_band] if file.scene.mask_band else []
                bands = [member.bands[at].band.index for at in used] + flags
                within = NOWHERE if box == NOWHERE else _in_the_file(box, date, member, used[0])
                yield _PartOfFile(file, file.partial, within, tuple(bands))


def _members(inputs: Inputs) -> Iterator[tuple[DateScenes, Member]]:
    return ((date, member) for date in inputs.dates for member in date.members)


@contextmanager
def open_rows(inputs: Inputs, *, bottom: int | None = None) -> Iterator[SceneRows]:
    """Open the scene for reading. A context manager that stops reading and closes the files.

    Rows from `bottom` on are not read ahead.
    """
    with ExitStack() as stack:
        files = [file for _, member in _members(inputs) for file in member.files()]
        masks = [mask.file for date in inputs.dates for mask in date.masks]
        stepped = _stepped(stack, inputs)
        datasets = {**stepped, **_open(stack, [file for file in (*files, *masks) if file not in stepped])}
        layers, before = list[FileLayer](), 0
        for date in inputs.dates:
            own = _single_layers(inputs, date, datasets) if date.merge is None else _merged(inputs, date, datasets)
            layers += [replace(layer, places=tuple(before + place for place in layer.places)) for layer in own]
            before += len(date.members[0].bands)
        rows = SceneRows(layers, inputs.scene.height, inputs.scene.width, bottom=bottom)
        stack.callback(rows.close)
        yield rows


@dataclass(frozen=True, slots=True, eq=False)
class WantedPixels:
    """The pixels whose results are wanted: the pixels of the area that are not masked."""

    inputs: Inputs
    #: Pixels that the masks leave, of each date with masks.
    clear: tuple[ClearPixels, ...] = ()

    @property
    def box(self) -> Box:
        """The smallest box that contains the area."""
        return self.inputs.box

    def mask(self, box: Box) -> npt.NDArray[np.bool_]:
        """Return bool (rows, columns): True for the wanted pixels of a box."""
        area = self.inputs.area
        wanted = np.ones((box.height, box.width), bool) if area is None else area.mask(box)
        for clear in self.clear:
            wanted &= clear.read(box)
        return wanted


@contextmanager
def open_wanted(inputs: Inputs) -> Iterator[WantedPixels | None]:
    """Open the masks for reading, and give the wanted pixels; None if all are."""
    if inputs.area is None and not inputs.masked:
        yield None
        return
    with open_clear(inputs) as clear:
        yield WantedPixels(inputs, tuple(clear.values()))


@contextmanager
def open_clear(inputs: Inputs) -> Iterator[dict[int, ClearPixels]]:
    """Open the masks for reading, by date from 1; dates without masks are left out."""
    with ExitStack() as stack:
        datasets = _open(stack, [mask.file for date in inputs.dates for mask in date.masks])
        found = {}
        for number, date in enumerate(inputs.dates, start=1):
            scenes = [_clear(inputs, date, member, datasets) for member in date.members]
            if date.masks:
                found[number] = ClearPixels([scene for scene in scenes if scene is not None])
        yield found


def _open(stack: ExitStack, files: Sequence[InputFile]) -> Datasets:
    found = {file: stack.enter_context(open_dataset(file.path, file.scene)) for file in dict.fromkeys(files)}
    return {file: partial(_same, dataset) for file, dataset in found.items()}


def _same(dataset: Any, _box: Box) -> Any:
    return dataset


def _stepped(stack: ExitStack, inputs: Inputs) -> Datasets:
    """Open the files whose pixels are fetched while they are read."""
    if not inputs.in_steps or inputs.filled is None:
        return {}
    fetching = ThreadPoolExecutor(1, thread_name_prefix="fetch-ahead")
    found = {}
    for part in _partial_files(inputs, inputs.filled):
        if part.box != NOWHERE:
            file = SteppedFile(part.file.path, part.file.scene, part.tiff, part.box, part.bands, fetching)
            stack.callback(file.close)
            found[part.file] = file.at
    stack.callback(fetching.shutdown, wait=True, cancel_futures=True)
    return found


def _in_the_file(box: Box, date: DateScenes, member: Member, place: int) -> Box:
    """Return the pixels of a band's file that a box of the date needs; none if the scene is beside the box."""
    factor, file = member.factors[place], member.bands[place].file.scene
    if date.merges_coarse(factor):
        coarser = _coarser(member.placement, factor)
        return coarser.source(_coarse_box(box, date, factor)) or NOWHERE
    within = member.placement.source(box)
    if within is None:
        return NOWHERE
    return within if factor.same else coarse_box(within, factor, file.height, file.width)


def _in_the_mask(box: Box, date: DateScenes, member: Member, mask: SceneMask) -> Box:
    """Return the pixels of a mask that a box of the date needs; none if the scene is beside the box.

    The merge of coarser bands reads the mask in all of their pixels, also in those beyond the box.
    """
    coarser = [factor for factor in member.factors if date.merges_coarse(factor)]
    boxes = [box, *(_in_fine_pixels(_coarse_box(box, date, factor), factor) for factor in coarser)]
    around = Box(
        min(each.top for each in boxes), min(each.left for each in boxes),
        max(each.bottom for each in boxes), max(each.right for each in boxes),
    )  # fmt: skip
    within = member.placement.source(around)
    return NOWHERE if within is None else mask.in_the_file(within)


def _coarse_box(box: Box, date: DateScenes, factor: Factor) -> Box:
    """Return the pixels of a mosaic's coarser band that a box of the mosaic needs."""
    return coarse_box(box, factor, *_coarse_size(date, factor))


def _coarse_size(date: DateScenes, factor: Factor) -> tuple[int, int]:
    return -(-date.scene.height // factor.rows), -(-date.scene.width // factor.columns)


def _in_coarse_pixels(box: Box, factor: Factor) -> Box:
    rows, columns = factor.rows, factor.columns
    return Box(box.top // rows, box.left // columns, -(-box.bottom // rows), -(-box.right // columns))


def _in_fine_pixels(box: Box, factor: Factor) -> Box:
    rows, columns = factor.rows, factor.columns
    return Box(box.top * rows, box.left * columns, box.bottom * rows, box.right * columns)


def _coarser(placement: Placement, factor: Factor) -> Placement:
    """Return the place of a scene among the pixels of a mosaic's coarser band."""
    coarser = placement.coarser(factor.rows, factor.columns) if isinstance(placement, Shift) else None
    return coarser or placement


def _single_layers(inputs: Inputs, date: DateScenes, datasets: Datasets) -> list[FileLayer]:
    [member] = date.members
    return _layers(inputs, date, member, range(len(member.bands)), datasets)


def _layers(
    inputs: Inputs, date: DateScenes, member: Member, places: Sequence[int], datasets: Datasets
) -> list[FileLayer]:
    """Return layers of some bands of a scene; their places are indexes in `places`.

    Bands of one file are read together, unless they are interpolated: each of these has its own nodata pixels.
    """
    groups: dict[tuple[InputFile, int], list[int]] = {}
    for at, place in enumerate(places):
        group = member.bands[place].file, 0 if member.factors[place].same else at + 1
        groups.setdefault(group, []).append(at)
    layers = []
    for (file, _), used in groups.items():
        factor = member.factors[places[used[0]]]
        rows: RowReader = _file_rows(inputs, date, member, [places[at] for at in used], datasets)
        height, width = file.scene.height, file.scene.width
        if member.window is not None:
            crop = _in_coarse_pixels(member.crop, factor)
            rows = ShiftedRows(rows, Box(0, 0, height, width).within(crop))
            height, width = crop.height, crop.width
        layers.append(FileLayer(rows, tuple(used), height, width, factor))
    return layers


def _file_rows(
    inputs: Inputs, date: DateScenes, member: Member, places: Sequence[int], datasets: Datasets
) -> RowReader:
    """Return the reader of bands of one file, on the file's grid."""
    file = member.bands[places[0]].file
    indexes = [member.bands[place].band.index for place in places]
    nodata = [member.radiometry[place].nodata for place in places]
    filled = None
    if file.partial is not None and inputs.filled is not None:
        filled = _in_the_file(inputs.filled, date, member, places[0])
    rows = FileRows(datasets[file], file.scene, indexes, nodata, label=file.label, filled=filled)
    power = [found for place in places if (found := member.radiometry[place].power) is not None]
    return _DecibelRows(rows, power) if power else rows


def _merged(inputs: Inputs, date: DateScenes, datasets: Datasets) -> list[FileLayer]:
    """Return the layers of a mosaic.

    Bands of the mosaic's resolution are merged together, so that a pixel has the numbers of one scene. Each coarser
    band is merged on its own grid and then interpolated, as if the mosaic were one file: no seam is visible. If a grid
    is stated, each scene is interpolated and reprojected by itself.
    """
    factors = date.members[0].factors
    every = range(len(factors))
    fine = list(every) if date.reprojected else [place for place in every if factors[place].same]
    groups = ([fine] if fine else []) + [[place] for place in every if place not in fine]
    layers = []
    for places in groups:
        factor = _SAME if places == fine else factors[places[0]]
        parts = [_part(inputs, date, member, places, factor, datasets) for member in date.members]
        rows = MergedRows(parts, len(places), date.merge or "first")
        layers.append(FileLayer(rows, tuple(places), *_coarse_size(date, factor), factor))
    return layers


def _part(
    inputs: Inputs, date: DateScenes, member: Member, places: Sequence[int], factor: Factor, datasets: Datasets
) -> MosaicPart:
    """Return some bands of a scene in the mosaic's pixels, or in coarser pixels on the mosaic's grid."""
    placement, box, crop = member.placement, member.box, member.crop
    rows: RowReader
    if factor.same:
        layers = _layers(inputs, date, member, places, datasets)
        rows = ShiftedRows(_LookedRows(SceneRows(layers, crop.height, crop.width)), crop)
    else:
        rows = _file_rows(inputs, date, member, places, datasets)
        placement, box = _coarser(placement, factor), _in_coarse_pixels(box, factor)
    rescaling = date.rescaling(member)
    if rescaling is not None:
        rows = _RescaledRows(rows, [rescaling[place] for place in places])
    clear = _clear(inputs, date, member, datasets)
    clear = None if clear is None else replace(clear, factor=factor)
    return MosaicPart(placement.place(rows, len(places)), box, clear)


def _clear(inputs: Inputs, date: DateScenes, member: Member, datasets: Datasets) -> ClearRows | None:
    mask = member.mask
    if mask is None:
        return None
    filled = None
    if mask.file.partial is not None and inputs.filled_masks is not None:
        filled = _in_the_mask(inputs.filled_masks, date, member, mask)
    rows = FileRows(datasets[mask.file], mask.file.scene, [1], [None], label=mask.file.label, filled=filled)
    return ClearRows(member.placement.place(MaskRows(rows, mask), 1), mask.table, member.placement.box)


class _LookedRows:
    """Rows of a scene of several files, without reading ahead: the mosaic is read ahead as a whole."""

    def __init__(self, rows: SceneRows) -> None:
        self._rows = rows
        self.dtype, self.chunk_rows = rows.dtype, 0

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box in chunks."""
        return self._rows.look(box)


class _RescaledRows:
    """Numbers of a scene, converted to those of the mosaic's first scene, which has another radiometry."""

    def __init__(self, rows: RowReader, rescaling: Sequence[tuple[float, float]]) -> None:
        self._rows = rows
        self._scale, self._offset = (np.array(each)[:, None, None] for each in zip(*rescaling, strict=True))
        self.dtype, self.chunk_rows = rescaled_dtype(rows.dtype, rescaling), rows.chunk_rows

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box in chunks."""
        for top, numbers, valid in self._rows.read(box):
            converted = np.where(valid, numbers, 0) * self._scale + self._offset
            yield top, converted.astype(self.dtype), valid


class _DecibelRows:
    """Decibels of the linear power that a file's numbers stand for; without data where it is not above 0."""

    def __init__(self, rows: RowReader, power: Sequence[tuple[float, float]]) -> None:
        self._rows = rows
        self._scale, self._offset = (np.array(each)[:, None, None] for each in zip(*power, strict=True))
        self.dtype, self.chunk_rows = np.result_type(rows.dtype, np.float32), rows.chunk_rows

    def read(self, box: Box) -> Iterator[Chunk]:
        """Yield a box in chunks."""
        for top, numbers, valid in self._rows.read(box):
            power = np.where(valid, numbers, 0) * self._scale + self._offset
            known = valid & (power > 0).all(axis=0)
            yield top, (10 * np.log10(np.where(known, power, 1))).astype(self.dtype), known


def count_masked(inputs: Inputs) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the masked pixels of the results, for each date with masks, as recorded in the statistics, and notes.

    A pixel can have several classes of Fmask, so that the classes may add up to more than all masked pixels.
    """
    found, notes = [], list[str]()
    with open_clear(inputs) as dates:
        for number, clear in dates.items():
            masks = inputs.dates[number - 1].masks
            counts, total, pixels = _counted(inputs, clear, masks[0].size)
            kind = masks[0].kind
            hidden = [name for name in kind.classes if any(name in mask.hidden for mask in masks)]
            classes = [{"name": name, "pixels": int(counts[masks[0].of(name)].sum())} for name in hidden]
            dated = {"date": number} if len(inputs.dates) > 1 and not inputs.sensors else {}
            found.append({**dated, "kind": masks[0].kind_name, "pixels": total, "classes": classes})
            empty = int(counts[masks[0].of(*kind.empty)].sum())
            notes += mostly_hidden(masks[0].kind_name, total - empty, pixels - empty)
    return found, tuple(notes)


def _counted(inputs: Inputs, clear: ClearPixels, size: int) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return how many masked pixels of the area have each value, how many there are, and the pixels of the area.

    The mask's values are 0 to `size` - 1.
    """
    counts, total, every, area, box = np.zeros(size, np.int64), 0, 0, inputs.area, inputs.box
    for top in range(box.top, box.bottom, _COUNTED_ROWS):
        strip = Box(top, box.left, min(box.bottom, top + _COUNTED_ROWS), box.right)
        among = None if area is None else area.mask(strip)
        some, pixels = clear.count(strip, among, size)
        counts, total = counts + some, total + pixels
        every += strip.height * strip.width if among is None else int(among.sum())
    return counts, total, every
