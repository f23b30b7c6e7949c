"""From a request to what is read: files opened, bands chosen, numbers explained, grids matched; no pixel is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InputError, InvalidInput
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.bands import SceneBand, bands_in_words, select_bands
from penstock.processors.geo.coordinates import Taken
from penstock.processors.geo.grids import Factor, finest, nesting
from penstock.processors.geo.item import Item, file_name, read_item
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.radiometry import BandRadiometry, Radiometry, Said, Source, asked, resolve_radiometry
from penstock.processors.geo.raster import FileRows, Scene, opened, read_scene
from penstock.processors.geo.request import Acquisition, RadiometryRequest, SceneFile, SceneRequest
from penstock.processors.geo.rows import Layer, Rows, layer_dtype, stream_dtype
from penstock.processors.geo.sidecar import Sidecar, read_sidecar

#: Of higher chunks no more is counted: their blocks are decoded whole, and once for each panel.
_MAX_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class InputFile:
    """One of the scene's files."""

    reference: str
    path: Path
    etag: str | None
    scene: Scene
    #: How errors call it.
    called: str


@dataclass(frozen=True, slots=True)
class InputBand:
    """One of the bands that the network sees."""

    need: Band
    band: SceneBand
    file: InputFile
    #: From 1.
    date: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """A scene as one model reads it."""

    #: The file whose grid is that of the results.
    scene: Scene
    #: In the network's order: the model's bands, date after date.
    bands: tuple[InputBand, ...]
    radiometry: Radiometry
    #: Of each band: how many of the scene's pixels one of its file's covers.
    factors: tuple[Factor, ...]
    #: All that were given, read or not.
    files: tuple[InputFile, ...]
    #: When it was taken, date by date.
    times: tuple[Taken, ...] = ()

    @property
    def needed(self) -> tuple[Band, ...]:
        """The model's bands in the network's order, once a date."""
        return tuple(band.need for band in self.bands)

    @property
    def taken(self) -> datetime | None:
        """When it was taken: the last date."""
        return self.times[-1].at if self.times else None

    @property
    def pixel_bytes(self) -> int:
        """What a pixel takes while it is held: its numbers and whether it is valid."""
        pairs = zip(self.bands, self.factors, strict=True)
        dtype = stream_dtype([layer_dtype(np.dtype(band.file.scene.dtype), factor) for band, factor in pairs])
        return len(self.bands) * dtype.itemsize + 1

    @property
    def column_bytes(self) -> int:
        """What reading takes for each column beside what is held: the chunk that is being used, and the next."""
        chunk_rows = max(band.file.scene.chunk_rows for band in self.bands)
        return 2 * min(chunk_rows, _MAX_CHUNK_ROWS) * self.pixel_bytes

    def bands_json(self) -> list[dict[str, Any]]:
        """Return which of the scene's bands was taken for each of the model's, as the statistics record it."""
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
    """Return what the request's files say of themselves and how they will be read.

    `dates` is how many the model takes. Raises an `InputError` for files that cannot be read, are too large, lack
    bands, do not lie on one grid, or whose numbers nobody explains; with several files it names the one.
    """
    acquisitions = request.acquisitions()
    _check_dates(len(acquisitions), dates)
    opened_dates = [
        _open_date(acquisition, media, limits or Limits(), date, f"Date {date}" if dates > 1 else "")
        for date, acquisition in enumerate(acquisitions, start=1)
    ]
    chosen = [_choose(date, request, needed, defaults) for date in opened_dates]
    bands = tuple(band for bands, _ in chosen for band in bands)
    radiometry = Radiometry(tuple(one for _, each in chosen for one in each))
    scene, factors = _on_one_grid(bands)
    files = tuple(file for date in opened_dates for file in date.files)
    times = [date.taken() for date in opened_dates]
    if request.datetime is not None and times[-1].source != "request":
        times[-1] = Taken(request.datetime, "request")
    return Inputs(scene, bands, radiometry, factors, files, tuple(times))


@contextmanager
def open_rows(inputs: Inputs) -> Iterator[Rows]:
    """Open the scene's pixels; the block stops reading and closes the files."""
    with ExitStack() as stack:
        datasets = {
            file: stack.enter_context(opened(file.path, file.scene.driver))
            for file in dict.fromkeys(band.file for band in inputs.bands)
        }
        layers = [_layer(inputs, places, datasets) for places in _places_by_layer(inputs)]
        rows = Rows(layers, inputs.scene.height, inputs.scene.width)
        stack.callback(rows.close)
        yield rows


@dataclass(frozen=True, slots=True)
class _Date:
    """The opened files of one date, and what comes with them."""

    #: From 1.
    number: int
    #: How errors call it, if there are several.
    called: str
    acquisition: Acquisition
    files: tuple[InputFile, ...]
    present: tuple[SceneBand, ...]
    sidecar: Sidecar | None
    item: Item | None

    def taken(self) -> Taken:
        """Return when the scene was taken, by the first that says so."""
        words: list[tuple[Source, datetime | None]] = [("request", self.acquisition.datetime)]
        words += [("sidecar", self.sidecar.taken)] if self.sidecar else []
        words += [("stac", self.item.taken)] if self.item else []
        words += [("file", file.scene.taken) for file in self.files]
        return next((Taken(at, source) for source, at in words if at is not None), Taken())


def _check_dates(given: int, needed: int) -> None:
    if given != needed:
        takes = "one date" if needed == 1 else f"{needed} dates, in `dates`"
        raise InvalidInput(f"The model takes a scene at {takes}; the request gives {given}.")


def _open_date(acquisition: Acquisition, media: Media, limits: Limits, number: int, date: str) -> _Date:
    with _naming(date):
        sidecar = None if acquisition.sidecar is None else read_sidecar(media.path(acquisition.sidecar))
        item = None if acquisition.stac is None else read_item(media.path(acquisition.stac))
        parts = acquisition.parts()
        files, present = list[InputFile](), list[SceneBand]()
        for at, part in enumerate(parts):
            called = f"File {at + 1} ({file_name(part.media)})" if len(parts) > 1 else ""
            with _naming(called):
                path = media.path(part.media)
                scene = read_scene(path, limits)
                before = sum(file.scene.count for file in files)
                present += _present(part, scene, item, file=at, before=before)
            files.append(InputFile(part.media, path, media.etag(part.media), scene, called or date or "The scene"))
    return _Date(number, date, acquisition, tuple(files), tuple(present), sidecar, item)


def _present(part: SceneFile, scene: Scene, item: Item | None, *, file: int, before: int) -> Iterator[SceneBand]:
    """Yield a file's bands with all the names that anybody gives them."""
    if part.bands is not None and len(part.bands) != len(scene.bands):
        raise InvalidInput(
            f"`bands` names {bands_in_words(len(part.bands))} of the file, which has {len(scene.bands)}."
        )
    asset = item.of_file(part.media) if item else ()
    for at, band in enumerate(scene.bands):
        aliases = asset[band.index - 1].names if band.index <= len(asset) else ()
        name = part.bands[at] if part.bands is not None else band.name
        yield replace(band, name=name, aliases=aliases, file=file, before=before)


def _choose(
    date: _Date, request: SceneRequest, needed: Sequence[Band], defaults: Sequence[DefaultRadiometry]
) -> tuple[list[InputBand], list[BandRadiometry]]:
    """Return a date's bands in the model's order, and what their numbers mean."""
    with _naming(date.called):
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
    """Return what one band's numbers mean. The file's tags speak for all the bands that are used of it."""
    part = date.acquisition.parts()[band.band.file]
    requests = (part.radiometry, date.acquisition.radiometry, everywhere)
    words: list[tuple[Source, Said]] = [("request", asked(one)) for one in requests if one is not None]
    if date.sidecar is not None:
        words.append(("sidecar", date.sidecar.of((*band.band.names, band.need.name, *band.need.synonyms))))
    if date.item is not None:
        words.append(("stac", _of_item(date.item, band)))
    of_file, scene = [one for one in used if one.file is band.file], band.file.scene
    words.append(("file", scene.said([one.band for one in of_file])[of_file.index(band)]))
    return resolve_radiometry(words, scene.dtype, defaults, mask=scene.mask)


def _of_item(item: Item, band: InputBand) -> Said:
    asset = item.of_file(band.file.reference)
    if not asset:
        return item.of_band(band.band.names)
    return asset[band.band.index - 1].said if band.band.index <= len(asset) else Said()


def _on_one_grid(bands: Sequence[InputBand]) -> tuple[Scene, tuple[Factor, ...]]:
    """Return the finest file's scene, and how each band's pixels lie on it."""
    files = list(dict.fromkeys(band.file for band in bands))
    target = files[finest([file.scene for file in files])].scene
    factors = {file: nesting(target, file.scene, called=file.called) for file in files}
    return target, tuple(factors[band.file] for band in bands)


def _places_by_layer(inputs: Inputs) -> list[list[int]]:
    """Group the bands that are read together: those of one file, unless they are interpolated.

    Interpolated ones are read one by one, because each has its own holes.
    """
    groups: dict[tuple[InputFile, int], list[int]] = {}
    for place, (band, factor) in enumerate(zip(inputs.bands, inputs.factors, strict=True)):
        groups.setdefault((band.file, 0 if factor.same else place + 1), []).append(place)
    return list(groups.values())


def _layer(inputs: Inputs, places: Sequence[int], datasets: Mapping[InputFile, Any]) -> Layer:
    file, factor = inputs.bands[places[0]].file, inputs.factors[places[0]]
    indexes = [inputs.bands[place].band.index for place in places]
    nodata = [inputs.radiometry.nodata[place] for place in places]
    rows = FileRows(datasets[file], file.scene, indexes, nodata, called=file.called)
    return Layer(rows, tuple(places), file.scene.height, file.scene.width, factor)


@contextmanager
def _naming(prefix: str) -> Iterator[None]:
    """Put whose fault it is before an error's sentence."""
    try:
        yield
    except InputError as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}: {error.detail}", errors=error.errors) from error
