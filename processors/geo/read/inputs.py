"""Inputs of a scene: open files, select bands, resolve radiometry, match grids. No pixels are read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from penstock.errors import InvalidInput, Issue
from penstock.models import Limits
from penstock.processors.base import Media
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.coordinates import AcquisitionTime, check_order
from penstock.processors.geo.read.grids import Factor, nesting
from penstock.processors.geo.read.input_file import InputBand, InputFile
from penstock.processors.geo.read.mosaic import (
    ChosenScene,
    DateScenes,
    merge_scenes,
    on_one_grid,
    on_other_grid,
    single_scene,
)
from penstock.processors.geo.read.opened_scene import OpenedScene, SceneOpener
from penstock.processors.geo.read.radiometry import Radiometry, Source
from penstock.processors.geo.read.raster import Scene, check_pixels
from penstock.processors.geo.read.row_stream import stream_dtype
from penstock.processors.geo.read.scene_area import SceneArea, area_notes, find_area
from penstock.processors.geo.read.stac_collection import with_items
from penstock.processors.geo.read.zones import Zone, read_zones
from penstock.processors.geo.request import SceneRequest
from penstock.processors.geo.scene_request import Acquisition, SingleScene
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.links import item_address

#: Files of a request at most, masks included: those of all dates are open together.
_MAX_FILES = 400
#: Maximum rows of a chunk in the memory estimate; higher blocks are decoded whole, once for each panel.
_MAX_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class SensorInputs:
    """A sensor of a model of several, as it was brought onto the scene's grid."""

    name: str
    time: datetime | None = None
    resampling: Literal["none", "bilinear", "nearest"] = "none"

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the statistics."""
        time = None if self.time is None else self.time.isoformat()
        return {"name": self.name, "time": time, "resampling": self.resampling}


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
    #: All files of the request, including unused ones, without masks.
    files: tuple[InputFile, ...]
    #: The scenes of each date; of a model of several sensors, those of each sensor.
    dates: tuple[DateScenes, ...]
    #: The sensors of `dates`, if they are sensors.
    sensors: tuple[SensorInputs, ...] = ()
    #: Acquisition time of each date.
    times: tuple[AcquisitionTime, ...] = ()
    #: Warnings in plain text, such as dates whose order is unknown.
    notes: tuple[str, ...] = ()
    #: References or addresses of the scenes' STAC items.
    items: tuple[str, ...] = ()
    #: Part of the scene whose results are wanted; None for the whole scene.
    area: SceneArea | None = None
    #: Zones whose statistics are wanted, on the grid of the results.
    zones: tuple[Zone, ...] = ()
    #: Part of the scene whose pixels are in the partial files; None if no file is partial, or nothing was fetched yet.
    filled: Box | None = None
    #: True if these pixels are fetched while they are read.
    in_steps: bool = False
    #: The same of the masks.
    filled_masks: Box | None = None

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
        """Acquisition time of each date, or both ends of its interval; none if the time of any date is unknown."""
        spans = [time.span for time in self.times]
        return tuple(at for span in spans for at in span) if all(spans) else ()

    @property
    def sources(self) -> tuple[InputFile, ...]:
        """All files: those of the scenes, then the masks. A file of several rasters is named once."""
        return _each_once((*self.files, *(mask.file for date in self.dates for mask in date.masks)))

    @property
    def masked(self) -> bool:
        """True if providers' masks hide pixels of the results."""
        return any(date.masks for date in self.dates)

    @property
    def pixel_bytes(self) -> int:
        """Memory of one pixel in bytes: its numbers and the validity flag."""
        dtype = stream_dtype([dtype for date in self.dates for dtype in date.dtypes()])
        return len(self.bands) * dtype.itemsize + 1

    @property
    def column_bytes(self) -> int:
        """Additional memory for reading, in bytes per column: the current chunk and the next one."""
        members = [member for date in self.dates for member in date.members]
        chunk_rows = max(band.file.scene.chunk_rows for member in members for band in member.bands)
        overlaps = max(date.overlaps for date in self.dates)
        return (1 + overlaps) * min(chunk_rows, _MAX_CHUNK_ROWS) * self.pixel_bytes

    @property
    def places(self) -> list[list[int]]:
        """The place of each scene that is read like another: top, left, bottom, right; usually empty."""
        boxes = [member.box for date in self.dates for member in date.members if member.window is not None]
        return [[box.top, box.left, box.bottom, box.right] for box in boxes]

    def edge_notes(self, read: Box) -> Iterator[str]:
        """Yield a note if pixels of the scene in or at a box that is read count as without data, see `alike`."""
        around, members = read.grown(1), [member for date in self.dates for member in date.members]
        if any((own := one.placement.box.clipped(around)) and own.clipped(one.box) != own for one in members):
            yield (
                "Near the edge of the other date's scene, the classes may differ from those of this scene alone: what "
                "only one date has counts as without data, so that both are seen alike."
            )

    def of(self, number: int) -> Inputs:
        """Return the inputs of one date, or of one sensor, alone; numbers begin at 1."""
        at = [place for place, band in enumerate(self.bands) if band.date == number]
        return replace(
            self,
            bands=tuple(self.bands[place] for place in at),
            radiometry=Radiometry(tuple(self.radiometry.bands[place] for place in at)),
            factors=tuple(self.factors[place] for place in at),
            dates=(self.dates[number - 1],),
            sensors=(),
        )

    def mosaics_json(self) -> list[Any]:
        """Return the mosaic of each date as recorded in the statistics; empty if no date is one."""
        found = [date.to_json() for date in self.dates]
        return found if any(found) else []

    def masks_json(self) -> list[Any]:
        """Return the masks of all scenes, as recorded; empty if there are none."""
        return [mask.to_json() for date in self.dates for mask in date.masks]

    def bands_json(self) -> list[dict[str, Any]]:
        """Return the scene's band for each band of the model, as recorded in the statistics."""
        places = _places(self.files)
        several_dates = self.bands[-1].date > 1 and not self.sensors
        return [
            {"name": used.need.name, "index": used.band.index, "description": used.band.name}
            | ({"file": places[used.file] + 1} if max(places.values()) > 0 else {})
            | ({"date": used.date} if several_dates else {})
            | ({"modality": self.sensors[used.date - 1].name} if self.sensors else {})
            for used in self.bands
        ]


def _each_once(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """Return the files, of the rasters in one file only the first."""
    found = dict[object, InputFile]()
    for file in files:
        found.setdefault(_file_of(file), file)
    return tuple(found.values())


def _file_of(file: InputFile) -> object:
    """Return what all rasters of a file have in common."""
    return file if file.scene.part is None else file.reference


def _places(files: Sequence[InputFile]) -> dict[InputFile, int]:
    """Return the place of each file among the request's, from 0; all rasters of a file have the same."""
    once = list(map(_file_of, _each_once(files)))
    return {file: once.index(_file_of(file)) for file in files}


def alike(before: Inputs, after: Inputs) -> tuple[Inputs, Inputs]:
    """Return scenes of the same area and the same pixels on the later one's grid, without the pixels of only one.

    Then both have the same tiles and the same edges, so that a network computes equal pixels from equal numbers.
    Without an area the two grids are one.
    """
    if before.area is None or after.area is None:
        return before, after
    [earlier], [later] = before.dates, after.dates
    here, there, grid = before.area.box, after.area.box, after.scene
    rows, columns = there.top - here.top, there.left - here.left
    whole = Box(0, 0, grid.height, grid.width)
    own = Box(0, 0, before.scene.height, before.scene.width).moved(rows, columns)
    window = own.clipped(whole)
    if own == whole or window is None:
        return before, after
    moved = on_other_grid(earlier, grid, rows, columns, window)
    if moved is earlier:
        return before, after
    cut = later if window == whole else on_other_grid(later, grid, 0, 0, window)
    return (
        replace(before, scene=moved.scene, dates=(moved,), area=after.area),
        replace(after, scene=cut.scene, dates=(cut,)),
    )


def read_inputs(
    request: SceneRequest,
    media: Media,
    needed: Sequence[Band],
    *,
    dates: int = 1,
    defaults: Sequence[DefaultRadiometry] = (),
    reflectance: float | None = None,
    limits: Limits | None = None,
) -> Inputs:
    """Return the opened files of the request, their bands and radiometry.

    `dates` is the number of dates that the model needs, `reflectance` its number for reflectance 1. Raises an
    `InputError` for files that cannot be read, are too large, lack bands, have incompatible grids or unknown
    radiometry, and for dates that are too few, too many or not in the order of time. With several files the error
    names the file.
    """
    requested = request.acquisitions()
    _check_dates(len(requested), dates)
    acquisitions = [with_items(one, media, _label(at, dates)) for at, one in enumerate(requested, 1)]
    # Of a scene with an area, only the area counts.
    opener = SceneOpener(request, media, needed, (limits or Limits()) if request.area is None else Limits())
    opened_dates = _open_dates(opener, acquisitions, dates, _mask_places(request, acquisitions))
    chosen = [
        [_choose(scene, request, needed, defaults, acquisition, reflectance or 1.0) for scene in scenes]
        for acquisition, scenes in zip(acquisitions, opened_dates, strict=True)
    ]
    scenes = _on_one_grid(acquisitions, chosen)
    firsts = [date.members[0] for date in scenes]
    times = [_acquired(acquisition, each) for acquisition, each in zip(acquisitions, opened_dates, strict=True)]
    if request.datetime is not None and times[-1].source != "request":
        times[-1] = AcquisitionTime(request.datetime, "request")
    area = None if request.area is None else find_area(request.area, scenes[0].scene)
    found = Inputs(
        scene=scenes[0].scene,
        bands=tuple(band for member in firsts for band in member.bands),
        radiometry=Radiometry(tuple(one for member in firsts for one in member.radiometry)),
        factors=tuple(factor for member in firsts for factor in member.factors),
        files=tuple(file for each in opened_dates for opened in each for file in opened.files),
        dates=scenes,
        times=tuple(times),
        notes=(
            *_band_notes([one for each in chosen for one in each]),
            *check_order(times),
            *_time_notes(times, opened_dates),
            *_file_notes(opened_dates),
            *(note for each in chosen for one in each for note in one.item_notes),
            *(() if request.area is None else area_notes(request.area, scenes[0].scene)),
        ),
        area=area,
        items=tuple(item for one in acquisitions for single in one.singles() if (item := _item_address(single))),
    )
    check_pixels(found.grid, limits or Limits(), what="The scene" if area is None else "The area")
    return found


def with_zones(inputs: Inputs, request: SceneRequest, media: Media) -> Inputs:
    """Return the inputs with the request's zones; see `read_zones`."""
    return inputs if request.zones is None else replace(inputs, zones=read_zones(request, media, inputs.grid))


def _check_dates(given: int, needed: int) -> None:
    if given != needed:
        wanted = "one date" if needed == 1 else f"{needed} dates, in `dates`"
        raise InvalidInput(
            f"The model needs a scene at {wanted}; the request gives {given}.",
            errors=[Issue("/input/dates", f"must have {needed} dates" if needed > 1 else "must have one date")],
        )


def _open_dates(
    opener: SceneOpener, acquisitions: Sequence[Acquisition], dates: int, mask_places: Sequence[Sequence[str]]
) -> list[list[OpenedScene]]:
    """Open the scenes of all dates. Raises `InvalidInput` for too many files."""
    found, files = list[list[OpenedScene]](), 0
    for date, acquisition in enumerate(acquisitions, 1):
        scenes = _open_date(opener, acquisition, date, dates, mask_places[date - 1])
        files += sum(len(_each_once(scene.files)) + (scene.mask is not None) for scene in scenes)
        if files > _MAX_FILES:
            raise InvalidInput(f"The scenes and their masks have {files} files; at most {_MAX_FILES} are allowed.")
        found.append(scenes)
    return found


def _mask_places(request: SceneRequest, acquisitions: Sequence[Acquisition]) -> list[list[str]]:
    """Return the JSON pointer to the mask of each scene, by date. The items of a collection share its mask."""
    found = []
    for at, (requested, acquisition) in enumerate(zip(request.acquisitions(), acquisitions, strict=True)):
        base = "/input" if request.dates is None else f"/input/dates/{at}"
        count, mosaic = len(acquisition.singles()), requested.mosaic
        if mosaic is None:
            found.append([f"{base}/mask"] * count)
        elif len(mosaic.scenes) == count:
            found.append([f"{base}/mosaic/scenes/{number}/mask" for number in range(count)])
        else:
            found.append([f"{base}/mosaic/scenes"] * count)
    return found


def _open_date(
    opener: SceneOpener, acquisition: Acquisition, date: int, dates: int, mask_places: Sequence[str]
) -> list[OpenedScene]:
    """Open the scenes of a date."""
    singles = acquisition.singles()
    names = [_scene_name(at, single) if len(singles) > 1 else "" for at, single in enumerate(singles, 1)]
    labels = [", ".join(filter(None, (_label(date, dates), name))) for name in names]
    return [opener.open(single, date, *named) for single, *named in zip(singles, labels, mask_places, strict=True)]


def _label(date: int, dates: int) -> str:
    return f"Date {date}" if dates > 1 else ""


def _scene_name(at: int, single: SingleScene) -> str:
    """Return the name of a scene of a mosaic in error messages."""
    name = single.stac.get("id") if isinstance(single.stac, Mapping) else None
    return f"Scene {at} ({name[:100]})" if isinstance(name, str) and name else f"Scene {at}"


def _item_address(single: SingleScene) -> str | None:
    """Return the reference of a scene's STAC item, or its link `self`; None without an item or an address."""
    return item_address(single.stac) if isinstance(single.stac, Mapping) else single.stac


def _choose(
    opened: OpenedScene,
    request: SceneRequest,
    needed: Sequence[Band],
    defaults: Sequence[DefaultRadiometry],
    acquisition: Acquisition,
    unit: float,
) -> ChosenScene:
    bands, radiometry, notes = opened.bands(request, needed, defaults, acquisition.radiometry, unit)
    item_notes = tuple(opened.item_notes(bands, radiometry))
    return ChosenScene(opened.label or "The scene", bands, radiometry, opened.mask, notes, item_notes)


def _acquired(acquisition: Acquisition, scenes: Sequence[OpenedScene]) -> AcquisitionTime:
    """Return the time of a date from the first source that gives one; of a mosaic, the earliest time of its scenes."""
    if acquisition.datetime is not None:
        return AcquisitionTime(acquisition.datetime, "request")
    known = [(at, source) for scene in scenes for source, at in _first_time(scene) if at is not None]
    if known:
        return AcquisitionTime(*min(known, key=lambda each: each[0]))
    ends = [end for scene in scenes if scene.item is not None for end in scene.item.interval]
    return AcquisitionTime(interval=(min(ends), max(ends)) if ends else ())


def _band_notes(scenes: Sequence[ChosenScene]) -> Iterator[str]:
    """Yield the notes on bands, each once; a note that is not of all scenes names its scenes."""
    for note in dict.fromkeys(note for scene in scenes for note in scene.notes):
        labels = [scene.label for scene in scenes if note in scene.notes]
        yield note if len(labels) == len(scenes) else f"{', '.join(labels)}: {note}"


def _time_notes(times: Sequence[AcquisitionTime], dates: Sequence[Sequence[OpenedScene]]) -> Iterator[str]:
    """Yield notes on times in STAC items that cannot be read, unless the request gives the time."""
    for time, scenes in zip(times, dates, strict=True):
        if time.source != "request":
            for scene in scenes:
                yield from scene.time_notes()


def _file_notes(dates: Sequence[Sequence[OpenedScene]]) -> Iterator[str]:
    """Yield notes on the files beside the scenes' files, each with the name of its file."""
    for file in (file for scenes in dates for scene in scenes for file in scene.files):
        yield from (note if file.label == "The scene" else f"{file.label}: {note}" for note in file.notes)


def _first_time(scene: OpenedScene) -> list[tuple[Source, datetime | None]]:
    return [found for found in scene.times() if found[1] is not None][:1]


def _on_one_grid(
    acquisitions: Sequence[Acquisition], chosen: Sequence[Sequence[ChosenScene]]
) -> tuple[DateScenes, ...]:
    """Return the scenes of all dates on one grid. Raises `InvalidInput` for dates on different grids."""
    if all(acquisition.mosaic is None for acquisition in acquisitions):
        target, factors = on_one_grid([band for [one] in chosen for band in one.bands])
        size = len(factors) // len(chosen)
        return tuple(single_scene(one, target, factors[at * size : (at + 1) * size]) for at, [one] in enumerate(chosen))
    found = []
    for acquisition, scenes in zip(acquisitions, chosen, strict=True):
        request = acquisition.mosaic
        own = (
            single_scene(scenes[0], *on_one_grid(scenes[0].bands)) if request is None else merge_scenes(scenes, request)
        )
        found.append(own)
        if not nesting(found[0].scene, own.scene, label=f"Date {len(found)}").same:
            raise InvalidInput(f"Date {len(found)} has other pixels than date 1: with a mosaic, all must be the same.")
    return tuple(found)
