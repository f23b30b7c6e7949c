"""Outputs of a segmentation: rasters that are written tile by tile, and the artifacts made from them.

encode      probabilities -> compact arrays, one per raster (pure; also the content of a strip's checkpoint)
write       arrays -> scratch rasters and class counts
finish      scratch rasters -> COGs, polygons, preview, statistics, STAC item
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.radiometry import Radiometry
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.zones import Zone
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import pixel_area
from penstock.processors.geo.write.artifacts import SceneArtifact
from penstock.processors.geo.write.change_outputs import ChangeOutputs, change_labels
from penstock.processors.geo.write.class_files import add_class_raster, add_polygons
from penstock.processors.geo.write.cog import Dtype
from penstock.processors.geo.write.quicklook import Quicklook
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from penstock.processors.geo.write.stac import bands_fields
from penstock.processors.geo.write.stats import ClassCounts, Counts
from penstock.processors.geo.write.uncertainty import (
    STABILITIES,
    STABILITY,
    add_class_uncertainty,
    open_class_uncertainty,
)
from penstock.processors.geo.write.zone_outputs import ZoneOutputs
from penstock.processors.reductions import STEPS

#: Outputs that need the class raster.
_FROM_CLASSES = frozenset({"classes", "preview", "polygons"})


def encode(
    probabilities: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], wanted: Collection[str]
) -> RasterArrays:
    """Return the arrays of the wanted outputs from float32 (classes, rows, columns) and a mask (rows, columns).

    `classes` is uint8 (1, rows, columns) and always present. `probability` and `confidence` are uint8 in steps of
    1/254, `probability_float32` is float32; each only if wanted. The class id is the index of the largest probability;
    for equal probabilities the smallest index.
    """
    rasters: dict[str, npt.NDArray[Any]] = {
        "classes": np.where(valid, probabilities.argmax(axis=0), NODATA).astype(np.uint8)[None]
    }
    if "probability" in wanted:
        rasters["probability"] = _steps(probabilities, valid)
    if "probability_float32" in wanted:
        rasters["probability_float32"] = np.where(valid, probabilities, np.float32(np.nan))
    if "confidence" in wanted:
        rasters["confidence"] = _steps(probabilities.max(axis=0, keepdims=True), valid)
    return rasters


def encode_reduced(
    reduced: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_], wanted: Collection[str]
) -> RasterArrays:
    """Return the arrays of `encode` from scores that the device has reduced (see `processors.reductions`)."""
    ids, steps = reduced[:1], reduced[1:]
    rasters = {"classes": _masked(ids, valid)}
    if "probability" in wanted:
        rasters["probability"] = _masked(steps, valid)
    if "confidence" in wanted:
        rasters["confidence"] = _masked(steps.max(axis=0, keepdims=True), valid)
    return rasters


def _masked(numbers: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.where(valid, numbers, np.uint8(NODATA))


def _steps(probabilities: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    steps = np.rint(np.clip(probabilities, 0, 1) * STEPS)
    return np.where(valid, steps, NODATA).astype(np.uint8)


def class_counts(scene: Scene) -> ClassCounts:
    """Return the counts of a scene of which nothing is counted yet."""
    return ClassCounts(pixel_area(scene.crs, scene.transform, scene.height, scene.width))


@dataclass(frozen=True, slots=True)
class ClassTally:
    """Tally of the classes of a segmentation's pieces."""

    counts: ClassCounts

    def of(self, rasters: RasterArrays, box: Box) -> Counts:
        """Return the counts of the arrays of `encode` for a box."""
        return self.counts.of(rasters["classes"][0], box)

    def add(self, counts: Counts) -> None:
        """Add the counts of a piece."""
        self.counts.add(counts)


class ClassOutputs:
    """Writer of a segmentation's rasters and artifacts. A context manager."""

    def __init__(
        self,
        model: Model,
        labels: tuple[ClassLabel, ...],
        scene: Scene,
        radiometry: Radiometry,
        request: SegmentationRequest,
        sink: ArtifactSink,
        *,
        described: bool,
        zones: Sequence[Zone] = (),
    ) -> None:
        """Write the outputs of a request; `described` is True if a STAC item will list them."""
        self._labels, self._request, self._zones = labels, request, zones
        self._wanted: Final = frozenset(request.outputs)
        self._rasters = RasterSet(model, scene, radiometry, sink, described=described)
        every = [f"probability of {label.name}" for label in labels]
        averaged: dict[str, tuple[Dtype, float, list[str]]] = {
            "probability": ("uint8", 1 / STEPS, every),
            "probability_float32": ("float32", 1, every),
            "confidence": ("uint8", 1 / STEPS, ["probability of the class"]),
        }
        self._averaged: Final = {name: made for name, made in averaged.items() if name in self._wanted}
        self.counts = class_counts(scene)

    def __enter__(self) -> ClassOutputs:
        request = self._request
        summed = request.change is not None or request.series is not None or request.uncertainty is not None
        if _FROM_CLASSES & self._wanted or summed or self._zones:
            self._rasters.open("classes", 1).label_classes(self._labels, self._rasters.model.title)
        for name, (dtype, scale, bands) in self._averaged.items():
            self._rasters.open(name, len(bands), dtype).label_bands(bands, scale=scale)
        if request.uncertainty is not None:
            open_class_uncertainty(self._rasters)
        return self

    def __exit__(self, *error: object) -> None:
        self._rasters.__exit__(*error)

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write the arrays of `encode` for a box of the scene. Boxes do not overlap."""
        self._rasters.write(rasters, box)

    @property
    def artifacts(self) -> Sequence[SceneArtifact]:
        """The artifacts that were created so far."""
        return tuple(self._rasters.artifacts.done)

    def close(self) -> Path:
        """Close the rasters after the last `write`, and return the class raster."""
        self._rasters.close()
        return self._rasters.path("classes")

    def finish(
        self,
        provenance: Provenance,
        change: ChangeOutputs | None = None,
        *,
        quicklook: Quicklook | None = None,
        earlier: Sequence[SceneArtifact] = (),
    ) -> dict[str, Any]:
        """Create all wanted artifacts after the last `write`, and return the statistics.

        The STAC item also lists the artifacts of the `earlier` date.
        """
        rasters = self._rasters
        rasters.close()
        stats = rasters.stats(provenance, self.counts.to_json(self._labels, rasters.scene.width * rasters.scene.height))
        if self._wanted & {"classes", "preview"}:
            self._add_classes()
        if "polygons" in self._wanted:
            stats["polygons"] = self._add_polygons()
            stats["notes"] += stats["polygons"]["notes"]
        if "quicklook" in self._wanted and quicklook is not None:
            stats["notes"] += quicklook.add(rasters.artifacts)
        if change is not None:
            stats["change"], notes = change.add(rasters)
            stats["notes"] += notes
        if self._request.uncertainty is not None:
            stats["uncertainty"] = add_class_uncertainty(rasters, self._labels, self.counts.area, self._request.passes)
        if self._zones:
            self._add_zones(stats, change)
        rasters.artifacts.done += [replace(each, title=f"before: {each.title}") for each in earlier]
        for name, (dtype, scale, bands) in self._averaged.items():
            rasters.add_cog(name, "AVERAGE", bands_fields(bands, dtype, scale=scale))
        if "stats" in self._wanted:
            rasters.artifacts.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        if "item" in self._wanted:
            rasters.add_item(provenance)
        return stats

    def _add_classes(self) -> None:
        preview = "preview.png" if "preview" in self._wanted else None
        add_class_raster(self._rasters, "classes", self._labels, preview=preview, cog="classes" in self._wanted)

    def _add_zones(self, stats: dict[str, Any], change: ChangeOutputs | None) -> None:
        rasters, zones = self._rasters, ZoneOutputs(self._zones, self.counts.area)
        zones.add_classes(rasters.path("classes"), self._labels)
        if change is not None:
            zones.add_classes(rasters.path("change"), change_labels(change.classes.name), under="change")
        if self._request.uncertainty is not None:
            zones.add_classes(rasters.path(STABILITY), STABILITIES, under="uncertainty")
        zones.finish(stats, rasters.artifacts, as_file="stats" in self._wanted)

    def _add_polygons(self) -> dict[str, Any]:
        area, request = self.counts.area, self._request.polygons
        return add_polygons(self._rasters, "classes", self._labels, area, request, stem="polygons")
