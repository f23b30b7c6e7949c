"""Sums over the class maps of a series: first date, frequency and extent of stated classes, and areas by date.

The sums of a series are three numbers for each pixel, in a scratch file: the next date's map is added to them, so that
neither memory nor disk grows with the number of dates.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.request import PolygonRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.wanted_classes import WantedClasses
from penstock.processors.geo.write.area import pixel_area
from penstock.processors.geo.write.class_files import add_class_raster, add_polygons
from penstock.processors.geo.write.cog import scratch_rows
from penstock.processors.geo.write.preview import ramp
from penstock.processors.geo.write.raster_set import RasterSet
from penstock.processors.geo.write.stac import bands_fields
from penstock.processors.geo.write.stats import ClassCounts

CSV_TYPE = "text/csv"
#: Values of the extent.
NEVER, EVER = range(2)
_COLOURS: Final = ("#f0f0f0", "#2166ac")
#: Pixels whose sums are in memory at once.
_STRIP_PX = 2**22
_COLUMNS = (
    "date", "time", "class_id", "class", "pixels", "area_m2", "percent", "valid_pixels", "nodata_pixels",
)  # fmt: skip

Ids = npt.NDArray[np.uint8]


class Sums(NamedTuple):
    """Sums over dates, uint8 (rows, columns) each."""

    #: Number of the first date that has one of the classes; 0 if none does.
    first: Ids
    #: Number of dates that have one of them.
    seen: Ids
    #: Number of clear dates.
    clear: Ids

    def with_date(self, number: int, classes: Ids, of: Collection[int], ignored: Collection[int]) -> Sums:
        """Return the sums with a later date, whose number is 1 to 254, from its class ids.

        A pixel is clear on a date unless it has no data or an ignored class.
        """
        clear = ~np.isin(classes, [*ignored, NODATA])
        seen = np.isin(classes, [*of]) & clear
        first = np.where((self.first == 0) & seen, number, self.first).astype(np.uint8)
        return Sums(first, self.seen + seen, self.clear + clear)

    def first_seen(self) -> Ids:
        """Return the number of the first date with the classes, 0 for none, `NODATA` where no date is clear."""
        return np.where(self.clear == 0, np.uint8(NODATA), self.first)

    def frequency(self) -> npt.NDArray[np.float32]:
        """Return the share of the clear dates that have the classes; NaN where no date is clear."""
        with np.errstate(invalid="ignore"):
            return np.divide(self.seen, self.clear, dtype=np.float32)

    def extent(self) -> Ids:
        """Return `EVER` where any date has the classes, else `NEVER`; `NODATA` where no date is clear."""
        return np.where(self.clear == 0, NODATA, np.where(self.seen > 0, EVER, NEVER)).astype(np.uint8)


class SumsFile:
    """Sums of a raster in a scratch file, strip by strip. A context manager that deletes the file at its end."""

    def __init__(self, path: Path, height: int, width: int) -> None:
        self._path, self._height, self._width = path, height, width
        self._file: BinaryIO = path.open("w+b")
        self._file.truncate(3 * height * width)

    def __enter__(self) -> SumsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink()

    def add(self, number: int, raster: Path, wanted: WantedClasses) -> None:
        """Add the class map of a date: a closed uint8 raster."""
        for box, [classes] in scratch_rows([raster]):
            sums = self._read(box).with_date(number, classes, wanted.of, wanted.ignored)
            self._file.seek(3 * box.top * self._width)
            self._file.write(np.stack(sums, axis=1).tobytes())

    def strips(self) -> Iterator[tuple[Box, Sums]]:
        """Yield the sums from top to bottom."""
        rows = max(1, _STRIP_PX // self._width)
        for top in range(0, self._height, rows):
            box = Box(top, 0, min(top + rows, self._height), self._width)
            yield box, self._read(box)

    def _read(self, box: Box) -> Sums:
        self._file.seek(3 * box.top * self._width)
        read = self._file.read(3 * box.height * self._width)
        numbers = np.frombuffer(read, np.uint8).reshape(box.height, 3, self._width)
        return Sums(numbers[:, 0], numbers[:, 1], numbers[:, 2])


def extent_labels(what: str) -> tuple[ClassLabel, ...]:
    """Return the labels of the extent of classes that are called `what`."""
    texts = (f"never {what}", what)
    return tuple(ClassLabel(id=i, name=text, colour=_COLOURS[i]) for i, text in enumerate(texts))


def first_seen_labels(what: str, dates: Sequence[str]) -> tuple[ClassLabel, ...]:
    """Return the labels of the first dates, from the names of all dates by number."""
    colours = (f"#{bytes(colour).hex()}" for colour in ramp(len(dates)))
    named = zip(dates, colours, strict=True)
    later = [ClassLabel(id=i, name=date, colour=colour) for i, (date, colour) in enumerate(named, 1)]
    return (ClassLabel(id=0, name=f"never {what}", colour=_COLOURS[NEVER]), *later)


def add_series(
    rasters: RasterSet,
    sums: SumsFile,
    wanted: WantedClasses,
    dates: Sequence[str],
    outputs: Collection[str],
    polygons: PolygonRequest,
) -> dict[str, Any]:
    """Add the rasters of a series to an empty set, and their preview and polygons if the outputs have these.

    `dates` are the names of all dates by number. Return the entry of the statistics.
    """
    scene, labels = rasters.scene, extent_labels(wanted.name)
    firsts = first_seen_labels(wanted.name, dates)
    counts = ClassCounts(pixel_area(scene.crs, scene.transform, scene.height, scene.width))
    rasters.open("extent", 1).label_classes(labels, f"extent of {wanted.name}")
    rasters.open("first-seen", 1).label_classes(firsts, f"first date with {wanted.name}")
    share, number = f"share of the clear dates with {wanted.name}", "number of clear dates"
    rasters.open("frequency", 1, "float32").label_bands([share])
    rasters.open("clear", 1).label_bands([number])
    for box, each in sums.strips():
        extent = each.extent()
        counts.add(counts.of(extent, box))
        arrays: dict[str, npt.NDArray[Any]] = {
            "extent": extent,
            "first-seen": each.first_seen(),
            "frequency": each.frequency(),
            "clear": each.clear,
        }
        for name, array in arrays.items():
            rasters.write_one(name, array[None], box)
    rasters.close()
    preview = "extent.png" if "preview" in outputs else None
    add_class_raster(rasters, "extent", labels, preview=preview, hidden=(NEVER,))
    add_class_raster(rasters, "first-seen", firsts, preview=None, hidden=(0,))
    rasters.add_cog("frequency", "AVERAGE", bands_fields([share], "float32"))
    rasters.add_cog("clear", "AVERAGE", bands_fields([number], "uint8"))
    found: dict[str, Any] = {"extent": counts.to_json(labels, scene.width * scene.height)}
    if "polygons" in outputs:
        found["polygons"] = add_polygons(rasters, "extent", labels, counts.area, polygons, without=NEVER)
    return found


def series_csv(dates: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of a series: a row for each class on each date, with its pixels and area."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for date in dates:
        for each in date["classes"]:
            own = (each["id"], each["name"], each["pixels"], each["area_m2"], each["percent"])
            rows.writerow((date["date"], date["time"], *own, date["valid_pixels"], date["nodata_pixels"]))
    return text.getvalue()
