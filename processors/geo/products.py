"""What is made of a segmentation's probabilities: rasters while tiles come, then everything that is handed over.

encode      probabilities -> small arrays, one per raster (pure; what a checkpoint of a strip holds)
write       those arrays -> the scratch rasters and the counts
hand_over   scratch rasters -> COGs, polygons, preview, statistics, STAC item
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.area import pixel_area
from penstock.processors.geo.cog import STEPS, Dtype, write_category_names
from penstock.processors.geo.lonlat import Unplaceable
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.outlines import TooRagged
from penstock.processors.geo.plan import Box
from penstock.processors.geo.preview import write_preview
from penstock.processors.geo.provenance import Provenance
from penstock.processors.geo.radiometry import Radiometry
from penstock.processors.geo.raster import Scene
from penstock.processors.geo.rasters import Rasters, RasterSet
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.stac import bands_fields, classes_fields
from penstock.processors.geo.stats import Tally
from penstock.processors.geo.vector import (
    FLATGEOBUF_TYPE,
    GEOJSON_TYPE,
    find_polygons,
    write_flatgeobuf,
    write_geojson,
)

#: What is made of the class raster.
_OF_CLASSES = frozenset({"classes", "preview", "polygons"})


def encode(chances: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], wanted: Collection[str]) -> Rasters:
    """Return what the outputs need of float32 (classes, rows, columns), masked by bool (rows, columns).

    `classes` is uint8 (1, rows, columns) and always there. `probability` and `confidence` are uint8 steps of 1/254,
    `probability_float32` is what it says; each only if wanted. Class ids are those of the largest probability, the
    first of equals.
    """
    rasters: dict[str, npt.NDArray[Any]] = {
        "classes": np.where(valid, chances.argmax(axis=0), NODATA).astype(np.uint8)[None]
    }
    if "probability" in wanted:
        rasters["probability"] = _steps(chances, valid)
    if "probability_float32" in wanted:
        rasters["probability_float32"] = np.where(valid, chances, np.float32(np.nan))
    if "confidence" in wanted:
        rasters["confidence"] = _steps(chances.max(axis=0, keepdims=True), valid)
    return rasters


def _steps(chances: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    steps = np.rint(np.clip(chances, 0, 1) * STEPS)
    return np.where(valid, steps, NODATA).astype(np.uint8)


class ClassProducts:
    """The rasters of a segmentation while they are written, and afterwards what is handed over. A context manager."""

    def __init__(
        self,
        model: Model,
        labels: tuple[ClassLabel, ...],
        scene: Scene,
        radiometry: Radiometry,
        request: SegmentationRequest,
        sink: ArtifactSink,
    ) -> None:
        self._labels, self._request = labels, request
        self._wanted: Final = frozenset(request.outputs)
        self._rasters = RasterSet(model, scene, radiometry, sink, hashed="item" in self._wanted)
        every = [f"probability of {label.name}" for label in labels]
        averaged: dict[str, tuple[Dtype, float, list[str]]] = {
            "probability": ("uint8", 1 / STEPS, every),
            "probability_float32": ("float32", 1, every),
            "confidence": ("uint8", 1 / STEPS, ["probability of the class"]),
        }
        self._averaged: Final = {name: made for name, made in averaged.items() if name in self._wanted}
        self.tally = Tally(pixel_area(scene.crs, scene.transform, scene.height, scene.width))

    def __enter__(self) -> ClassProducts:
        if _OF_CLASSES & self._wanted:
            self._rasters.open("classes", 1).label_classes(self._labels, self._rasters.model.title)
        for name, (dtype, scale, bands) in self._averaged.items():
            self._rasters.open(name, len(bands), dtype).label_bands(bands, scale=scale)
        return self

    def __exit__(self, *error: object) -> None:
        self._rasters.__exit__(*error)

    def write(self, rasters: Rasters, box: Box) -> None:
        """Write and count what `encode` made of a box of the scene. Boxes do not overlap."""
        self.tally.add(rasters["classes"][0], box)
        self._rasters.write(rasters, box)

    def hand_over(self, provenance: Provenance) -> dict[str, Any]:
        """Make and hand over everything that is wanted, after the last `write`; return the statistics."""
        rasters = self._rasters
        rasters.close()
        stats = rasters.stats(provenance, self.tally.to_json(self._labels, rasters.scene.width * rasters.scene.height))
        self._hand_over_classes()
        if "polygons" in self._wanted:
            stats["polygons"] = self._hand_over_polygons()
        for name, (dtype, scale, bands) in self._averaged.items():
            rasters.hand_over_cog(name, "AVERAGE", bands_fields(bands, dtype, scale=scale))
        if "stats" in self._wanted:
            rasters.handover.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        if "item" in self._wanted:
            rasters.hand_over_item(provenance)
        return stats

    def _hand_over_classes(self) -> None:
        rasters, handover = self._rasters, self._rasters.handover
        if "classes" in self._wanted:
            rasters.hand_over_cog("classes", "MODE", classes_fields(self._labels))
            write_category_names(path := handover.sink.path("classes.tif.aux.xml"), self._labels)
            handover.add(path.name, path, "application/xml", title="class names", roles=("metadata",))
        if "preview" in self._wanted:
            write_preview(rasters.path("classes"), path := handover.sink.path("preview.png"), self._labels)
            handover.add(path.name, path, "image/png", title="preview", roles=("overview",))

    def _hand_over_polygons(self) -> dict[str, Any]:
        """Return what the statistics say of the polygons: how many there are, and why a file was not made."""
        handover, scene, labels = self._rasters.handover, self._rasters.scene, self._labels
        if scene.transform is None:
            return _no_polygons("The scene has no geotransform: nobody knows where its pixels lie.")
        try:
            polygons = find_polygons(self._rasters.path("classes"), self.tally.area, self._request.polygons)
        except TooRagged as error:
            return _no_polygons(str(error))
        write_flatgeobuf(path := handover.sink.path("polygons.fgb"), polygons, scene, labels)
        handover.add(path.name, path, FLATGEOBUF_TYPE, title="polygons", roles=("data",))
        path, notes = handover.sink.path("polygons.geojson"), []
        try:
            write_geojson(path, polygons, scene, labels)
        except Unplaceable as error:
            path.unlink(missing_ok=True)
            notes.append(f"polygons.geojson was not made: {error}.")
        else:
            handover.add(path.name, path, GEOJSON_TYPE, title="polygons, EPSG:4326", roles=("data",))
        return {"count": len(polygons.classes), "left_out": polygons.dropped, "connectedness": 4, "notes": notes}


def _no_polygons(why: str) -> dict[str, Any]:
    return {"count": None, "left_out": None, "connectedness": 4, "notes": [f"Polygons were not made. {why}"]}
