"""What is made of a regression's numbers: a float raster while tiles come, then everything that is handed over.

The same three steps as in `products`: `encode_values`, `write`, `hand_over`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.options import Quantity
from penstock.processors.geo.plan import Box
from penstock.processors.geo.preview import write_value_preview
from penstock.processors.geo.provenance import Provenance
from penstock.processors.geo.radiometry import Radiometry
from penstock.processors.geo.raster import Scene
from penstock.processors.geo.rasters import Rasters, RasterSet
from penstock.processors.geo.spread import Spread, read_spread
from penstock.processors.geo.stac import bands_fields


def encode_values(numbers: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> Rasters:
    """Return float32 (quantities, rows, columns) with NaN where there is no data, or the network gave no number."""
    return {"values": np.where(valid & np.isfinite(numbers), numbers, np.float32(np.nan))}


class ValueProducts:
    """The raster of a regression while it is written, and afterwards what is handed over. A context manager.

    `wanted` are names of `values`, `preview`, `stats` and `item`.
    """

    def __init__(
        self,
        model: Model,
        quantities: tuple[Quantity, ...],
        scene: Scene,
        radiometry: Radiometry,
        wanted: Collection[str],
        sink: ArtifactSink,
    ) -> None:
        self._quantities, self._wanted = quantities, frozenset(wanted)
        self._rasters = RasterSet(model, scene, radiometry, sink, hashed="item" in self._wanted)

    def __enter__(self) -> ValueProducts:
        quantities = self._quantities
        scratch = self._rasters.open("values", len(quantities), "float32")
        scratch.label_bands([q.description or q.name for q in quantities], units=[q.unit for q in quantities])
        return self

    def __exit__(self, *error: object) -> None:
        self._rasters.__exit__(*error)

    def write(self, rasters: Rasters, box: Box) -> None:
        """Write what `encode_values` made of a box of the scene."""
        self._rasters.write(rasters, box)

    def hand_over(self, provenance: Provenance) -> dict[str, Any]:
        """Make and hand over everything that is wanted, after the last `write`; return the statistics."""
        rasters, handover = self._rasters, self._rasters.handover
        rasters.close()
        spreads = [read_spread(rasters.path("values"), band) for band in range(1, len(self._quantities) + 1)]
        stats = rasters.stats(provenance, self._counts(spreads))
        if "values" in self._wanted:
            rasters.hand_over_cog("values", "AVERAGE", self._fields(spreads))
        if "preview" in self._wanted:
            path, shown = handover.sink.path("preview.png"), spreads[0].percentiles
            write_value_preview(rasters.path("values"), path, shown.get(1, 0.0), shown.get(99, 0.0))
            handover.add(path.name, path, "image/png", title="preview", roles=("overview",))
        if "stats" in self._wanted:
            handover.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        if "item" in self._wanted:
            rasters.hand_over_item(provenance)
        return stats

    def _counts(self, spreads: list[Spread]) -> dict[str, Any]:
        """Return the counts. Means and percentiles are of pixels: each counts the same, whatever its area."""
        return {
            "pixels": self._rasters.scene.width * self._rasters.scene.height,
            "values": [
                {**quantity.model_dump(), **spread.to_json()}
                for quantity, spread in zip(self._quantities, spreads, strict=True)
            ],
        }

    def _fields(self, spreads: list[Spread]) -> dict[str, Any]:
        fields = bands_fields([quantity.name for quantity in self._quantities], "float32")
        for band, quantity, spread in zip(fields["bands"], self._quantities, spreads, strict=True):
            band |= {"description": quantity.description or quantity.name}
            band |= {"unit": quantity.unit} if quantity.unit else {}
            if spread.count:
                band["statistics"] = {
                    "minimum": spread.minimum, "maximum": spread.maximum, "mean": spread.mean,
                    "stddev": spread.deviation, "count": spread.count,
                }  # fmt: skip
        return fields
