"""Outputs of a detection: boxes that are collected tile by tile, and the artifacts made from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import shapely
from PIL import Image
from pyproj import CRS

from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.request import ObjectRequest
from penstock.processors.geo.tiling.boxes import (
    BOTTOM,
    LABEL,
    LEFT,
    RIGHT,
    SCORE,
    TOP,
    VALID,
    SceneBoxes,
    Table,
    joined,
    put_together,
)
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import pixel_area
from penstock.processors.geo.write.lonlat import Geometries, NoLonLat, check_crs, in_another_crs, in_the_crs
from penstock.processors.geo.write.quicklook import colour_places, picture
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from penstock.processors.geo.write.vector import GEOJSON_TYPE, lonlat_of, write_features
from penstock.processors.geo.write.zone_outputs import ZoneOutputs
from penstock.processors.vision.annotation import annotate

#: Name of the table in a piece: float64 (1, boxes, `boxes.COLUMNS`).
BOXES = "boxes"
#: Boxes of all tiles, at most (64 bytes each): they are put together in memory.
_MOST = 1_000_000
#: Objects per chunk of the file.
_CHUNK = 10_000
#: Names of longitude and latitude.
_LONLAT = ("WGS84", "EPSG:4326", "OGC:CRS84")
#: Colour of pixels without data in the preview.
_EMPTY = (40, 40, 40, 255)


def check_placement(request: ObjectRequest, inputs: Inputs) -> None:
    """Raise `InvalidInput` for a request whose `crs` cannot be that of objects in this scene."""
    if request.crs != "scene" and request.crs.upper() not in _LONLAT and inputs.scene.crs is not None:
        check_crs(inputs.scene.crs, request.crs)


class ObjectOutputs:
    """Writer of a detection's artifacts. `request.outputs` are some of `objects`, `preview` and `stats`."""

    def __init__(
        self, model: Model, inputs: Inputs, labels: Mapping[int, str], request: ObjectRequest, sink: ArtifactSink
    ) -> None:
        self._inputs, self._labels, self._request = inputs, labels, request
        self._files = RasterSet(model, inputs.grid, inputs.radiometry, sink, described=False)
        self._tables: list[Table] = []
        self._count = 0

    def write(self, rasters: RasterArrays, box: Box) -> None:  # noqa: ARG002  (of a map)
        """Keep the boxes of a tile. Raises `InvalidInput` for too many."""
        self._tables.append(rasters[BOXES][0])
        self._count += len(self._tables[-1])
        if self._count > _MOST:
            raise InvalidInput(f"The network finds more than {_MOST:,} boxes: give a higher `threshold`, or an `area`.")

    def finish(self, provenance: Provenance) -> dict[str, Any]:
        """Create all wanted artifacts after the last `write`, and return the statistics."""
        found = put_together(joined(self._tables), self._request.iou)
        table, artifacts, notes = self._in_the_area(found.table), self._files.artifacts, self._notes(found)
        if "objects" in self._request.outputs:
            notes += self._add_objects(table)
        if "preview" in self._request.outputs:
            path = artifacts.sink.path("preview.png")
            Image.fromarray(self._preview(table)).save(path, format="PNG", optimize=True)
            artifacts.add(path.name, path, "image/png", title="preview", roles=("overview",))
        stats = self._files.stats(provenance, self._counts(table))
        stats["notes"] += notes
        if self._inputs.zones:
            self._add_zones(table, stats)
        if "stats" in self._request.outputs:
            artifacts.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        return stats

    def _in_the_area(self, table: Table) -> Table:
        """Return the objects whose centres are inside the request's area."""
        area = self._inputs.area
        if area is None:
            return table
        return np.asarray(table[shapely.contains_xy(area.shape, *_centres(table))])

    def _notes(self, found: SceneBoxes) -> list[str]:
        if not found.cut_only:
            return []
        note = (
            f"{found.cut_only} object(s) are left out, because every tile cuts them: they are larger than the overlap "
            "of tiles. The model's options tile_px and overlap_px can be larger."
        )
        return [note]

    def _counts(self, table: Table) -> dict[str, Any]:
        counts = Counter(table[:, LABEL].astype(int).tolist())
        labels = [{"label_id": label, "label": self._name(label), "count": n} for label, n in sorted(counts.items())]
        return {"objects": {"count": len(table), "labels": labels}}

    def _add_zones(self, table: Table, stats: dict[str, Any]) -> None:
        """Add the statistics of the zones. Boxes are in pixels of the scene, zones on the grid of the results."""
        box, grid, labels = self._inputs.box, self._files.scene, table[:, LABEL].astype(np.int64)
        x, y = _centres(table)
        zones = ZoneOutputs(self._inputs.zones, pixel_area(grid.crs, grid.transform, grid.height, grid.width))
        names = {label: self._name(label) for label in set(labels.tolist())}
        zones.add_objects(x - box.left, y - box.top, labels, names)
        zones.finish(stats, self._files.artifacts, as_file="stats" in self._request.outputs)

    def _name(self, label: int) -> str:
        return self._labels.get(label, f"LABEL_{label}")

    def _add_objects(self, table: Table) -> list[str]:
        """Add objects.geojson and return notes. Objects of a scene without place have no geometry."""
        path, notes = self._files.artifacts.sink.path("objects.geojson"), list[str]()
        try:
            place, head = self._placement()
            write_features(path, self._features(table, place), head)
        except NoLonLat as error:
            notes.append(f"The objects have no geometry: {error}. `pixels` has their places in the scene.")
            write_features(path, self._features(table, None))
        self._files.artifacts.add(path.name, path, GEOJSON_TYPE, title="objects", roles=("data",))
        return notes

    def _placement(self) -> tuple[Callable[[Geometries], Geometries], str]:
        """Return the function that places boxes, and the file's members beside the features; raise `NoLonLat`."""
        scene = self._inputs.scene
        wanted = self._request.crs
        if wanted.upper() in _LONLAT or scene.transform is None or (scene.crs is None and wanted != "scene"):
            return lonlat_of(scene), ""
        if wanted == "scene":
            return partial(in_the_crs, transform=scene.transform), _crs_member(scene.crs)
        place = partial(in_another_crs, scene_crs=scene.crs, transform=scene.transform, crs=wanted)
        return place, _member(*CRS.from_user_input(wanted).to_authority() or ("", ""))

    def _features(self, table: Table, place: Callable[[Geometries], Geometries] | None) -> Iterator[tuple[str, str]]:
        for start in range(0, len(table), _CHUNK):
            rows = table[start : start + _CHUNK]
            shapes = np.asarray(shapely.box(*rows[:, [LEFT, TOP, RIGHT, BOTTOM]].T))
            geometries = ["null"] * len(rows) if place is None else shapely.to_geojson(place(shapes)).tolist()
            for row, geometry in zip(rows.tolist(), geometries, strict=True):
                yield json.dumps(self._entry(row), ensure_ascii=False), geometry

    def _entry(self, row: list[float]) -> dict[str, Any]:
        label = int(row[LABEL])
        return {
            "label_id": label,
            "label": self._name(label),
            "score": round(row[SCORE], 6),
            "pixels": [round(row[side], 2) for side in (LEFT, TOP, RIGHT, BOTTOM)],
            "valid": round(row[VALID], 4),
        }

    def _preview(self, table: Table) -> Any:
        """Return uint8 (rows, columns, 3): the scene with its boxes."""
        inputs = self._inputs
        shown = picture(inputs, colour_places(inputs) or (0, 0, 0))
        canvas = Image.new("RGBA", shown.image.shape[1::-1], _EMPTY)
        canvas.alpha_composite(Image.fromarray(shown.image))
        objects = [
            {
                "label_id": int(row[LABEL]), "label": self._name(int(row[LABEL])), "score": row[SCORE],
                "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), shown.place(row[:4]), strict=True)),
            }
            for row in table[:_CHUNK].tolist()
        ]  # fmt: skip
        return annotate(np.asarray(canvas.convert("RGB")), objects)


def _centres(table: Table) -> tuple[Any, Any]:
    """Return x and y of the boxes' centres."""
    return (table[:, LEFT] + table[:, RIGHT]) / 2, (table[:, TOP] + table[:, BOTTOM]) / 2


def _crs_member(crs: Any) -> str:
    """Return the member `crs` of GeoJSON 2008, as GDAL writes and reads it; empty for a CRS without a code."""
    authority = None if crs is None else CRS.from_wkt(crs.to_wkt()).to_authority()
    return "" if authority is None else _member(*authority)


def _member(authority: str, code: str) -> str:
    name = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:{authority}::{code}"}}
    return f'"crs": {json.dumps(name)}, '
