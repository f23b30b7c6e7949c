"""Statistics of zones: classes, quantities, objects or vectors of each named polygon, and zones.csv with a row of each.

A pixel counts by the share of it that the zone covers. Rasters are read when they are complete, strip by strip and zone
by zone: so the numbers depend on neither tiles nor checkpoints, and memory does not grow with scenes or zones.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely

from penstock.processors.geo.options import NODATA, ClassLabel, Quantity
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.zones import Zone, on_cells, zone_notes
from penstock.processors.geo.tiling.cells import Cells
from penstock.processors.geo.tiling.coverage import STRIP_PX
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import PixelArea
from penstock.processors.geo.write.artifacts import ArtifactWriter
from penstock.processors.geo.write.percentiles import PERCENTILES, Values, Weights, statistics_of

CSV_TYPE = "text/csv"
#: First characters that make a spreadsheet compute a cell.
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
#: Numbers of the mean vectors of all zones, at most: they are text in the statistics.
_MOST_NUMBERS: Final = 1_000_000

Floats = npt.NDArray[np.float64]
Entry = dict[str, Any]


class ZoneOutputs:
    """The zones of one job and their statistics, which the methods `add_...` extend."""

    def __init__(self, zones: Sequence[Zone], area: PixelArea | None) -> None:
        """`area` has the areas of the grid's pixels; None for a grid without a usable georeference."""
        self._zones, self._area = zones, area
        self._entries: list[Entry] = [{"name": zone.name, "whole": zone.whole} for zone in zones]
        self._notes: list[str] = []

    def add_classes(self, raster: Path, labels: Sequence[ClassLabel], under: str | None = None) -> None:
        """Add pixels, m² and percentage of the classes in a closed raster, all below a key if `under` is given."""
        with _opened(raster) as file:
            for zone, entry in zip(self._zones, self._entries, strict=True):
                found = self._classes(zone, file, labels)
                entry |= found if under is None else {under: found}

    def add_values(self, raster: Path, quantities: Sequence[Quantity], under: str | None = None) -> None:
        """Add the statistics of the quantities in a closed raster, a band for each, below a key if `under` is given."""
        with _opened(raster) as file:
            for zone, entry in zip(self._zones, self._entries, strict=True):
                values = [
                    {"name": quantity.name, **_band(zone, file, band).to_json()}
                    for band, quantity in enumerate(quantities, 1)
                ]
                entry |= {**self._extent(zone), "values": values} if under is None else {under: {"values": values}}

    def add_objects(self, x: Floats, y: Floats, labels: npt.NDArray[np.int64], names: Mapping[int, str]) -> None:
        """Add the number of objects of each class: those whose centre, in pixels, lies inside or on an edge."""
        for zone, entry in zip(self._zones, self._entries, strict=True):
            shapely.prepare(zone.shape)
            inside = shapely.intersects_xy(zone.shape, x, y)
            ids, counts = np.unique(labels[inside], return_counts=True)
            entry |= self._extent(zone)
            entry["objects"] = {
                "count": int(inside.sum()),
                "labels": [
                    {"label_id": each, "label": names[each], "count": count}
                    for each, count in zip(ids.tolist(), counts.tolist(), strict=True)
                ],
            }

    def add_vectors(self, raster: Path | None, cells: Cells) -> None:
        """Add the number of vectors and their mean, from a closed raster of cells; None for a scene without vectors."""
        if raster is None:
            for zone, entry in zip(self._zones, self._entries, strict=True):
                entry |= {**self._extent(zone), "embeddings": {"count": 0.0, "mean": None}}
            return
        with _opened(raster) as file:
            told = file.count * len(self._zones) <= _MOST_NUMBERS
            for zone, entry in zip(self._zones, self._entries, strict=True):
                count, total = 0.0, np.zeros(file.count)
                for box, share in on_cells(zone, cells).strips(max(1, STRIP_PX // file.count)):
                    vectors = _read(file, box, None)
                    weights = np.where(np.isnan(vectors[0]), 0, share)
                    count += float(weights.sum())
                    total += np.tensordot(np.where(weights > 0, vectors, 0), weights, axes=([1, 2], [0, 1]))
                mean = [float(f"{each / count:.7g}") for each in total] if count and told else None
                entry |= {**self._extent(zone), "embeddings": {"count": _pixels(count), "mean": mean}}
        if not told:
            self._notes.append(
                f"The zones have no mean vectors: together they would have more than {_MOST_NUMBERS:,} numbers."
            )

    def finish(self, stats: dict[str, Any], artifacts: ArtifactWriter, *, as_file: bool) -> None:
        """Add the zones and their notes to the statistics of a job, and zones.csv if it is wanted."""
        stats["zones"] = self._entries
        stats["notes"] += [*zone_notes(self._zones), *self._notes]
        if as_file:
            add_zones_csv(artifacts, [({}, entry) for entry in self._entries])

    def _classes(self, zone: Zone, file: Any, labels: Sequence[ClassLabel]) -> Entry:
        pixels, m2 = np.zeros(NODATA + 1), np.zeros(NODATA + 1)
        for box, share in zone.strips():
            ids = _read(file, box, 1).ravel().astype(np.intp)
            pixels += np.bincount(ids, share.ravel(), NODATA + 1)
            m2 += np.bincount(ids, self._m2(box, share).ravel(), NODATA + 1)
        valid = float(pixels[:NODATA].sum())
        return {
            "pixels": _pixels(pixels.sum()),
            "valid_pixels": _pixels(valid),
            "area_m2": self._known(m2.sum()),
            "classes": [
                {
                    "id": label.id,
                    "name": label.name,
                    "pixels": _pixels(pixels[label.id]),
                    "area_m2": self._known(m2[label.id]),
                    "percent": round(100 * float(pixels[label.id]) / valid, 4) if valid else None,
                }
                for label in labels
            ],
        }

    def _extent(self, zone: Zone) -> Entry:
        m2 = sum(float(self._m2(box, share).sum()) for box, share in zone.strips()) if self._area else math.nan
        return {"pixels": _pixels(zone.shape.area), "area_m2": self._known(m2)}

    def _m2(self, box: Box, share: Floats) -> Floats:
        """Return the covered area of each pixel; NaN where it is unknown."""
        if self._area is None:
            return np.zeros_like(share)
        return np.where(share > 0, share * self._area.of(box), 0)

    def _known(self, m2: float) -> float | None:
        return round(float(m2), 3) if self._area is not None and math.isfinite(m2) else None


def _pixels(count: float) -> float:
    """Return a number of pixels, of which some count in part."""
    return round(float(count), 4)


@contextmanager
def _opened(raster: Path) -> Iterator[Any]:
    with without_georeference(), rasterio.open(raster, driver="GTiff") as file:
        yield file


def _read(file: Any, box: Box, band: int | None) -> npt.NDArray[Any]:
    return np.asarray(file.read(band, window=rasterio.windows.Window(box.left, box.top, box.width, box.height)))


def _band(zone: Zone, file: Any, band: int) -> Any:
    def chunks() -> Iterator[tuple[Values, Weights]]:
        for box, share in zone.strips():
            values = _read(file, box, band)
            here = (share > 0) & ~np.isnan(values)
            yield values[here], share[here]

    return statistics_of(chunks)


def add_zones_csv(artifacts: ArtifactWriter, entries: Sequence[tuple[Mapping[str, Any], Entry]]) -> None:
    """Add zones.csv: a row for each zone behind what is known of it; no file without zones.

    It has a byte order mark, by which spreadsheets know UTF-8.
    """
    if not entries:
        return
    path = artifacts.sink.path("zones.csv")
    rows = [{**known, **dict(_cells(entry))} for known, entry in entries]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, columns, restval=0)
        writer.writeheader()
        writer.writerows(rows)
    artifacts.add(path.name, path, CSV_TYPE, title="statistics of zones", roles=("metadata",))


def _cells(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a zone. A column that a zone lacks is a class without objects in it."""
    name = entry["name"]
    yield "zone", f"'{name}" if name.startswith(_FORMULAS) else name
    yield from (("whole", "yes" if entry["whole"] else "no"), ("pixels", entry["pixels"]))
    yield from (("pixels with data", entry["valid_pixels"]),) if "valid_pixels" in entry else ()
    yield "m2", entry["area_m2"]
    for of, named in (("", entry), *((f"{key}: ", entry.get(key, {})) for key in ("change", "uncertainty"))):
        for each in named.get("classes", ()):
            yield f"{of}{each['name']} pixels", each["pixels"]
            yield f"{of}{each['name']} m2", each["area_m2"]
            yield f"{of}{each['name']} %", each["percent"]
        for each in named.get("values", ()):
            yield from ((f"{of}{each['name']} {key}", each[key]) for key in ("count", "min", "max", "mean", "std"))
            yield from ((f"{of}{each['name']} p{at}", each["percentiles"].get(str(at))) for at in PERCENTILES)
    if "embeddings" in entry:
        yield "vectors", entry["embeddings"]["count"]
        yield from ((f"dimension {at}", each) for at, each in enumerate(entry["embeddings"]["mean"] or ()))
    if "objects" in entry:
        yield "objects", entry["objects"]["count"]
        yield from ((f"{each['label']} objects", each["count"]) for each in entry["objects"]["labels"])
