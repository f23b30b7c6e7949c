"""Outputs of a regression: a float raster that is written tile by tile, and the artifacts made from it.

The same three steps as in `class_outputs`: `encode_values`, `write`, `finish`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.options import Quantity
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.radiometry import Radiometry
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.zones import Zone
from penstock.processors.geo.request import RegressionRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import pixel_area
from penstock.processors.geo.write.percentiles import BandStatistics, read_band_statistics
from penstock.processors.geo.write.preview import write_value_preview
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from penstock.processors.geo.write.stac import bands_fields
from penstock.processors.geo.write.uncertainty import UNCERTAINTY
from penstock.processors.geo.write.zone_outputs import ZoneOutputs


def encode_values(numbers: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> RasterArrays:
    """Return float32 (quantities, rows, columns) with NaN for nodata and for non-finite outputs of the network."""
    return {"values": np.where(valid & np.isfinite(numbers), numbers, np.float32(np.nan))}


class ValueOutputs:
    """Writer of a regression's raster and artifacts. A context manager.

    The outputs of the request are some of `values`, `preview`, `stats` and `item`.
    """

    def __init__(
        self,
        model: Model,
        quantities: tuple[Quantity, ...],
        scene: Scene,
        radiometry: Radiometry,
        request: RegressionRequest,
        sink: ArtifactSink,
        zones: Sequence[Zone] = (),
    ) -> None:
        self._quantities, self._wanted, self._zones = quantities, frozenset(request.outputs), zones
        self._request = request
        self._rasters = RasterSet(model, scene, radiometry, sink, described="item" in self._wanted)

    def __enter__(self) -> ValueOutputs:
        units, names = [q.unit for q in self._quantities], [q.description or q.name for q in self._quantities]
        self._rasters.open("values", len(names), "float32").label_bands(names, units=units)
        if self._request.uncertainty is not None:
            spread = [f"standard deviation of {name}" for name in names]
            self._rasters.open(UNCERTAINTY, len(names), "float32").label_bands(spread, units=units)
        return self

    def __exit__(self, *error: object) -> None:
        self._rasters.__exit__(*error)

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write the arrays of a box of the scene."""
        self._rasters.write(rasters, box)

    def finish(self, provenance: Provenance) -> dict[str, Any]:
        """Create all wanted artifacts after the last `write`, and return the statistics."""
        rasters, artifacts = self._rasters, self._rasters.artifacts
        rasters.close()
        bands = self._bands("values")
        stats = rasters.stats(provenance, self._counts(bands))
        if "values" in self._wanted:
            rasters.add_cog("values", "AVERAGE", self._fields(bands))
        if uncertain := self._request.uncertainty is not None:
            spread = self._bands(UNCERTAINTY)
            rasters.add_cog(UNCERTAINTY, "AVERAGE", self._fields(spread, "standard deviation of "))
            stats["uncertainty"] = {
                "method": "flips",
                "passes": self._request.passes,
                "values": [
                    {"name": quantity.name, **found.to_json()}
                    for quantity, found in zip(self._quantities, spread, strict=True)
                ],
            }
        if "preview" in self._wanted:
            path, shown = artifacts.sink.path("preview.png"), bands[0].percentiles
            write_value_preview(rasters.path("values"), path, shown.get(1, 0.0), shown.get(99, 0.0))
            artifacts.add(path.name, path, "image/png", title="preview", roles=("overview",))
        if self._zones:
            scene = rasters.scene
            zones = ZoneOutputs(self._zones, pixel_area(scene.crs, scene.transform, scene.height, scene.width))
            zones.add_values(rasters.path("values"), self._quantities)
            if uncertain:
                zones.add_values(rasters.path(UNCERTAINTY), self._quantities, under="uncertainty")
            zones.finish(stats, artifacts, as_file="stats" in self._wanted)
        if "stats" in self._wanted:
            artifacts.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        if "item" in self._wanted:
            rasters.add_item(provenance)
        return stats

    def _bands(self, name: str) -> list[BandStatistics]:
        return [read_band_statistics(self._rasters.path(name), 1 + at) for at in range(len(self._quantities))]

    def _counts(self, statistics: list[BandStatistics]) -> dict[str, Any]:
        """Return the statistics of the quantities. Every pixel has the same weight, regardless of its area."""
        return {
            "pixels": self._rasters.scene.width * self._rasters.scene.height,
            "values": [
                {**quantity.model_dump(), **found.to_json()}
                for quantity, found in zip(self._quantities, statistics, strict=True)
            ],
        }

    def _fields(self, statistics: list[BandStatistics], of: str = "") -> dict[str, Any]:
        fields = bands_fields([quantity.name for quantity in self._quantities], "float32")
        for band, quantity, found in zip(fields["bands"], self._quantities, statistics, strict=True):
            band |= {"description": f"{of}{quantity.description or quantity.name}"}
            band |= {"unit": quantity.unit} if quantity.unit else {}
            if found.count:
                band["statistics"] = {
                    "minimum": found.minimum, "maximum": found.maximum, "mean": found.mean,
                    "stddev": found.deviation, "count": found.count,
                }  # fmt: skip
        return fields
