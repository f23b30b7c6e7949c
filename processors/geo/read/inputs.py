"""Inputs of a scene: open files, select bands, resolve radiometry, match grids. No pixels are read here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InputError, InvalidInput
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.bands import SceneBand, bands_in_words, select_bands
from penstock.processors.geo.read.coordinates import AcquisitionTime, check_order
from penstock.processors.geo.read.grids import Factor, finest, nesting
from penstock.processors.geo.read.radiometry import (
    BandRadiometry,
    Declaration,
    Radiometry,
    Source,
    from_request,
    resolve_radiometry,
)
from penstock.processors.geo.read.raster import FileRows, Scene, check_pixels, opened, read_scene
from penstock.processors.geo.read.resample import coarse_box
from penstock.processors.geo.read.row_stream import FileLayer, SceneRows, layer_dtype, stream_dtype
from penstock.processors.geo.read.scene_area import SceneArea, find_area
from penstock.processors.geo.read.sidecar import Sidecar, read_sidecar
from penstock.processors.geo.read.stac_assets import choose_assets
from penstock.processors.geo.read.stac_item import StacItem, file_name, read_stac_item
from penstock.processors.geo.read.tiff_ranges import PartialTiff, open_partial
from penstock.processors.geo.request import Acquisition, RadiometryRequest, SceneFile, SceneRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.reports import Issue

#: Chooses the files of a STAC item, from the item and its reference.
_Choose = Callable[[StacItem | None, str | Mapping[str, Any] | None], tuple[SceneFile, ...]]
#: Maximum rows of a chunk in the memory estimate; higher blocks are decoded whole, once for each panel.
_MAX_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class InputFile:
    """One of the scene's files."""

    reference: str
    path: Path
    etag: str | None
    scene: Scene
    #: Name of the file in error messages.
    label: str
    #: Source of further ranges, if the file is partial.
    partial: PartialTiff | None = None


@dataclass(frozen=True, slots=True)
class InputBand:
    """One input band of the network."""

    need: Band
    band: SceneBand
    file: InputFile
    #: Number of the date, from 1.
    date: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """A scene, prepared for one model."""

    #: The file whose grid is used for the results.
    scene: Scene
    #: In the network's order: the model's bands, date after date.
    bands: tuple[InputBand, ...]
    radiometry: Radiometry
    #: Scene pixels per file pixel, for each band.
    factors: tuple[Factor, ...]
    #: All files of the request, including unused ones.
    files: tuple[InputFile, ...]
    #: Acquisition time of each date.
    times: tuple[AcquisitionTime, ...] = ()
    #: Warnings in plain text, such as dates whose order is unknown.
    notes: tuple[str, ...] = ()
    #: Part of the scene whose results are wanted; None for the whole scene.
    area: SceneArea | None = None
    #: Part of the scene whose pixels are in the partial files; None if no file is partial.
    filled: Box | None = None

    @property
    def grid(self) -> Scene:
        """The grid of the results: the scene's, cut to the area."""
        return self.scene if self.area is None else self.area.grid(self.scene)

    @property
    def box(self) -> Box:
        """The part of the scene that the results cover."""
        return Box(0, 0, self.scene.height, self.scene.width) if self.area is None else self.area.box

    @property
    def needed(self) -> tuple[Band, ...]:
        """The model's bands in the network's order, repeated for each date."""
        return tuple(band.need for band in self.bands)

    @property
    def acquired(self) -> tuple[datetime, ...]:
        """Acquisition time of each date; none if the time of any date is unknown."""
        known = tuple(time.at for time in self.times if time.at is not None)
        return known if len(known) == len(self.times) else ()

    @property
    def pixel_bytes(self) -> int:
        """Memory of one pixel in bytes: its numbers and the validity flag."""
        pairs = zip(self.bands, self.factors, strict=True)
        dtype = stream_dtype([layer_dtype(np.dtype(band.file.scene.dtype), factor) for band, factor in pairs])
        return len(self.bands) * dtype.itemsize + 1

    @property
    def column_bytes(self) -> int:
        """Additional memory for reading, in bytes per column: the current chunk and the next one."""
        chunk_rows = max(band.file.scene.chunk_rows for band in self.bands)
        return 2 * min(chunk_rows, _MAX_CHUNK_ROWS) * self.pixel_bytes

    def bands_json(self) -> list[dict[str, Any]]:
        """Return the scene's band for each band of the model, as recorded in the statistics."""
        several_files, several_dates = len(self.files) > 1, self.bands[-1].date > 1
        return [
            {"name": used.need.name, "index": used.band.index, "description": used.band.name}
            | ({"file": self.files.index(used.file) + 1} if several_files else {})
            | ({"date": used.date} if several_dates else {})
            for used in self.bands
        ]


def read_inputs(
    request: SceneRequest,
    media: Media,
    needed: Sequence[Band],
    *,
    dates: int = 1,
    defaults: Sequence[DefaultRadiometry] = (),
    limits: Limits | None = None,
) -> Inputs:
    """Return the opened files of the request, their bands and radiometry.

    `dates` is the number of dates that the model needs. Raises an `InputError` for files that cannot be read, are too
    large, lack bands, have incompatible grids or unknown radiometry, and for dates that are too few, too many or not in
    the order of time. With several files the error names the file.
    """
    acquisitions = request.acquisitions()
    _check_dates(len(acquisitions), dates)
    # Of a scene with an area, only the area counts.
    of_files = (limits or Limits()) if request.area is None else Limits()
    choose = partial(_fetch_assets, request=request, media=media, needed=needed)
    opened_dates = [
        _open_date(acquisition, media, of_files, date, f"Date {date}" if dates > 1 else "", choose)
        for date, acquisition in enumerate(acquisitions, start=1)
    ]
    chosen = [_choose(date, request, needed, defaults) for date in opened_dates]
    bands = tuple(band for bands, _ in chosen for band in bands)
    radiometry = Radiometry(tuple(one for _, each in chosen for one in each))
    scene, factors = _on_one_grid(bands)
    files = tuple(file for date in opened_dates for file in date.files)
    times = [date.acquired() for date in opened_dates]
    if request.datetime is not None and times[-1].source != "request":
        times[-1] = AcquisitionTime(request.datetime, "request")
    area = None if request.area is None else find_area(request.area, scene)
    found = Inputs(scene, bands, radiometry, factors, files, tuple(times), check_order(times), area)
    check_pixels(found.grid, limits or Limits(), what="The scene" if area is None else "The area")
    return found


def fill_files(inputs: Inputs, box: Box) -> Inputs:
    """Fetch the pixels of a box of the scene, of those files that are partial."""
    files = dict.fromkeys(band.file for band in inputs.bands if band.file.partial is not None)
    if not files:
        return inputs
    for file in files:
        used = [(band, factor) for band, factor in zip(inputs.bands, inputs.factors, strict=True) if band.file is file]
        masks = [file.scene.mask_band] if file.scene.mask_band else []
        bands = [band.band.index for band, _ in used] + masks
        if file.partial is not None:
            file.partial.fill(_in_the_file(box, file, used[0][1]), bands)
    return replace(inputs, filled=box)


def _in_the_file(box: Box, file: InputFile, factor: Factor) -> Box:
    """Return the pixels of a file that a box of the scene needs."""
    return box if factor.same else coarse_box(box, factor, file.scene.height, file.scene.width)


@contextmanager
def open_rows(inputs: Inputs, *, bottom: int | None = None) -> Iterator[SceneRows]:
    """Open the scene for reading. A context manager that stops reading and closes the files.

    Rows from `bottom` on are not read ahead.
    """
    with ExitStack() as stack:
        datasets = {
            file: stack.enter_context(opened(file.path, file.scene.driver))
            for file in dict.fromkeys(band.file for band in inputs.bands)
        }
        layers = [_layer(inputs, places, datasets) for places in _places_by_layer(inputs)]
        rows = SceneRows(layers, inputs.scene.height, inputs.scene.width, bottom=bottom)
        stack.callback(rows.close)
        yield rows


@dataclass(frozen=True, slots=True)
class _Date:
    """The opened files and metadata of one date."""

    #: Number of the date, from 1.
    number: int
    #: Name of the date in error messages; empty for a single date.
    label: str
    acquisition: Acquisition
    #: Files of the date as requested, or chosen from its STAC item.
    parts: tuple[SceneFile, ...]
    files: tuple[InputFile, ...]
    present: tuple[SceneBand, ...]
    sidecar: Sidecar | None
    item: StacItem | None

    def acquired(self) -> AcquisitionTime:
        """Return the acquisition time from the first source that gives one."""
        declarations: list[tuple[Source, datetime | None]] = [("request", self.acquisition.datetime)]
        declarations += [("sidecar", self.sidecar.acquired)] if self.sidecar else []
        declarations += [("stac", self.item.acquired)] if self.item else []
        declarations += [("file", file.scene.acquired) for file in self.files]
        return next((AcquisitionTime(at, source) for source, at in declarations if at is not None), AcquisitionTime())


def _check_dates(given: int, needed: int) -> None:
    if given != needed:
        wanted = "one date" if needed == 1 else f"{needed} dates, in `dates`"
        raise InvalidInput(
            f"The model needs a scene at {wanted}; the request gives {given}.",
            errors=[Issue("/input/dates", f"must have {needed} dates" if needed > 1 else "must have one date")],
        )


def _open_date(
    acquisition: Acquisition, media: Media, limits: Limits, number: int, date: str, choose: _Choose
) -> _Date:
    with naming(date):
        sidecar = None if acquisition.sidecar is None else read_sidecar(media.path(acquisition.sidecar))
        item = _item(acquisition, media)
        parts = acquisition.parts() or choose(item, acquisition.stac)
        files, present = list[InputFile](), list[SceneBand]()
        for at, part in enumerate(parts):
            label = f"File {at + 1} ({file_name(part.media)})" if len(parts) > 1 else ""
            with naming(label):
                path, ranges = media.path(part.media), open_partial(media, part.media)
                scene = read_scene(path, limits)
                before = sum(file.scene.count for file in files)
                present += _present(part, scene, item, file=at, before=before)
            name = label or date or "The scene"
            files.append(InputFile(part.media, path, media.etag(part.media), scene, name, ranges))
    return _Date(number, date, acquisition, parts, tuple(files), tuple(present), sidecar, item)


def _item(acquisition: Acquisition, media: Media) -> StacItem | None:
    match acquisition.stac:
        case None:
            return None
        case str(reference):
            return read_stac_item(media.path(reference))
        case document:
            return read_stac_item(document)


def _fetch_assets(
    item: StacItem | None, source: str | Mapping[str, Any] | None, *, request: SceneRequest, media: Media,
    needed: Sequence[Band],
) -> tuple[SceneFile, ...]:  # fmt: skip
    """Have the files of a STAC item fetched that hold the needed bands, and return them."""
    if item is None:
        return ()
    base = source if isinstance(source, str) else None
    addresses = choose_assets(item, base, needed, request.bands)
    for address in addresses:
        media.fetch(address, by_range=request.area is not None)
    return tuple(SceneFile(media=address) for address in addresses)


def _present(part: SceneFile, scene: Scene, item: StacItem | None, *, file: int, before: int) -> Iterator[SceneBand]:
    """Yield the bands of a file with their names from all sources."""
    if part.bands is not None and len(part.bands) != len(scene.bands):
        raise InvalidInput(f"`bands` names {bands_in_words(len(part.bands))}, but the file has {len(scene.bands)}.")
    asset = item.of_file(part.media) if item else ()
    for at, band in enumerate(scene.bands):
        aliases = asset[band.index - 1].names if band.index <= len(asset) else ()
        name = part.bands[at] if part.bands is not None else band.name
        yield replace(band, name=name, aliases=aliases, file=file, before=before)


def _choose(
    date: _Date, request: SceneRequest, needed: Sequence[Band], defaults: Sequence[DefaultRadiometry]
) -> tuple[list[InputBand], list[BandRadiometry]]:
    """Return the bands of a date in the model's order, and their radiometry."""
    with naming(date.label):
        bands = select_bands(needed, date.present, request.bands)
        used = [InputBand(n, b, date.files[b.file], date.number) for n, b in zip(needed, bands, strict=True)]
        return used, [_radiometry(band, used, date, request.radiometry, defaults) for band in used]


def _radiometry(
    band: InputBand,
    used: Sequence[InputBand],
    date: _Date,
    everywhere: RadiometryRequest | None,
    defaults: Sequence[DefaultRadiometry],
) -> BandRadiometry:
    """Return the radiometry of one band. The file's tags are read for all used bands of the file together."""
    part = date.parts[band.band.file]
    requests = (part.radiometry, date.acquisition.radiometry, everywhere)
    found: list[tuple[Source, Declaration]] = [("request", from_request(one)) for one in requests if one is not None]
    if date.sidecar is not None:
        found.append(("sidecar", date.sidecar.of((*band.band.names, band.need.name, *band.need.synonyms))))
    if date.item is not None:
        found.append(("stac", _of_item(date.item, band)))
    of_file, scene = [one for one in used if one.file is band.file], band.file.scene
    found.append(("file", scene.declared([one.band for one in of_file])[of_file.index(band)]))
    trusted = any(one is not None and one.trust for one in requests)
    return replace(resolve_radiometry(found, scene.dtype, defaults, mask=scene.mask), trusted=trusted)


def _of_item(item: StacItem, band: InputBand) -> Declaration:
    asset = item.of_file(band.file.reference)
    if not asset:
        return item.of_band(band.band.names)
    return asset[band.band.index - 1].declared if band.band.index <= len(asset) else Declaration()


def _on_one_grid(bands: Sequence[InputBand]) -> tuple[Scene, tuple[Factor, ...]]:
    """Return the scene of the finest file, and the factor of each band's pixels to its grid."""
    files = list(dict.fromkeys(band.file for band in bands))
    target = files[finest([file.scene for file in files])].scene
    factors = {file: nesting(target, file.scene, label=file.label) for file in files}
    return target, tuple(factors[band.file] for band in bands)


def _places_by_layer(inputs: Inputs) -> list[list[int]]:
    """Group the bands that are read together: bands of one file, unless they are interpolated.

    Interpolated bands are read one by one, because each has its own nodata pixels.
    """
    groups: dict[tuple[InputFile, int], list[int]] = {}
    for place, (band, factor) in enumerate(zip(inputs.bands, inputs.factors, strict=True)):
        groups.setdefault((band.file, 0 if factor.same else place + 1), []).append(place)
    return list(groups.values())


def _layer(inputs: Inputs, places: Sequence[int], datasets: Mapping[InputFile, Any]) -> FileLayer:
    file, factor = inputs.bands[places[0]].file, inputs.factors[places[0]]
    indexes = [inputs.bands[place].band.index for place in places]
    nodata = [inputs.radiometry.nodata[place] for place in places]
    filled = None if file.partial is None or inputs.filled is None else _in_the_file(inputs.filled, file, factor)
    rows = FileRows(datasets[file], file.scene, indexes, nodata, label=file.label, filled=filled)
    return FileLayer(rows, tuple(places), file.scene.height, file.scene.width, factor)


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Prefix the message of an `InputError` with the name of the file or date."""
    try:
        yield
    except InputError as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}: {error.detail}", errors=error.errors) from error
