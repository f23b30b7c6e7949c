"""Outputs of an embedding: rasters of vectors that are written tile by tile, and the artifacts made from them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.inputs import Inputs
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.tiling.cells import Cells
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.area import pixel_area
from penstock.processors.geo.write.geoparquet import GEOPARQUET_TYPE, MISSING, geo_metadata, is_available
from penstock.processors.geo.write.lonlat import in_the_crs
from penstock.processors.geo.write.raster_set import RasterArrays, RasterSet
from penstock.processors.geo.write.zone_outputs import ZoneOutputs

#: Names in a piece: float32 (dimensions, rows, columns), NaN without data; and the share of valid pixels.
VECTORS, SHARES = "embeddings", "shares"
#: Side of a block in cells: a COG's block has all bands, 16 MB of 1024 dimensions.
_BLOCK_PX = 64
#: Numbers of vectors that are in memory while the table is written.
_NUMBERS = 2**24


class VectorOutputs:
    """Writer of an embedding's artifacts. `wanted` are some of `embeddings`, `geoparquet` and `stats`."""

    def __init__(self, model: Model, inputs: Inputs, cells: Cells, wanted: Collection[str], sink: ArtifactSink) -> None:
        self._cells, self._wanted, self._inputs = cells, frozenset(wanted), inputs
        self._rasters = RasterSet(model, cells.grid(inputs.scene), inputs.radiometry, sink, described=False)
        self._dimensions = self._vectors = 0

    def close(self) -> None:
        """Delete the scratch files."""
        self._rasters.__exit__()

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write the vectors and shares of a box of cells."""
        if not self._dimensions:
            self._open(len(rasters[VECTORS]))
        self._vectors += int((rasters[SHARES] > 0).sum())
        self._rasters.write(rasters, box)

    def finish(self, provenance: Provenance) -> dict[str, Any]:
        """Create all wanted artifacts after the last `write`, and return the statistics."""
        rasters, notes = self._rasters, list[str]()
        rasters.close()
        if not self._dimensions:
            notes.append("There are no vectors: the scene has no data.")
        else:
            if "embeddings" in self._wanted:
                rasters.add_cog(VECTORS, "AVERAGE", {}, block_px=_BLOCK_PX)
            if "geoparquet" in self._wanted:
                notes += self._add_table()
        stats = rasters.stats(provenance, self._counts())
        # The scene of the grid is one of vectors: the statistics are of pixels.
        stats["scene"] |= {"width": self._cells.covered.width, "height": self._cells.covered.height}
        stats["notes"] += notes
        if self._inputs.zones:
            grid = self._inputs.grid
            zones = ZoneOutputs(self._inputs.zones, pixel_area(grid.crs, grid.transform, grid.height, grid.width))
            zones.add_vectors(rasters.path(VECTORS) if self._dimensions else None, self._cells)
            zones.finish(stats, rasters.artifacts, as_file="stats" in self._wanted)
        if "stats" in self._wanted:
            rasters.artifacts.add_json("stats.json", stats, title="statistics", roles=("metadata",))
        return stats

    def _open(self, dimensions: int) -> None:
        self._dimensions = dimensions
        scratch = self._rasters.open(VECTORS, dimensions, "float32", block_px=_BLOCK_PX)
        scratch.label_bands([f"dimension {number}" for number in range(dimensions)])
        self._rasters.open(SHARES, 1, "float32", block_px=_BLOCK_PX)

    def _counts(self) -> dict[str, Any]:
        grid, side = self._rasters.scene, self._cells.side_px
        size = {"width": grid.width, "height": grid.height, "pixels_per_side": side}
        return {"embeddings": {"count": self._vectors, "dimensions": self._dimensions, **size}}

    def _add_table(self) -> list[str]:
        """Add the GeoParquet file, or return the reason why there is none."""
        artifacts, grid = self._rasters.artifacts, self._rasters.scene
        missing = "the scene has no geotransform" if grid.transform is None else None if is_available() else MISSING
        if missing is not None:
            return [f"embeddings.parquet was not created: {missing}."]
        path = artifacts.sink.path("embeddings.parquet")
        _write_table(path, self._rasters.path(VECTORS), self._rasters.path(SHARES), grid, self._cells.box)
        artifacts.add(path.name, path, GEOPARQUET_TYPE, title="embeddings", roles=("data",))
        return []


def _write_table(path: Path, vectors: Path, shares: Path, grid: Scene, cells: Box) -> None:
    """Write each cell with data: its square, row and column in the scene's grid, share of data, and vector."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with rasterio.open(vectors) as numbers, rasterio.open(shares) as valid:
        kind = pa.list_(pa.float32(), numbers.count)
        fields = {"geometry": pa.binary(), "row": pa.int32(), "column": pa.int32(), "valid": pa.float32()}
        schema = pa.schema([*((name, of) for name, of in fields.items()), ("embedding", kind)])
        whole = in_the_crs(np.array([shapely.box(0, 0, grid.width, grid.height)]), grid.transform)
        geo = json.dumps(geo_metadata(grid, shapely.total_bounds(whole).tolist()))
        with pq.ParquetWriter(path, schema.with_metadata({"geo": geo}), compression="zstd") as writer:
            step = max(1, _NUMBERS // (numbers.count * grid.width))
            for top in range(0, grid.height, step):
                window = rasterio.windows.Window(0, top, grid.width, min(step, grid.height - top))
                share = valid.read(1, window=window)
                down, across = np.nonzero(share > 0)
                if not len(down):
                    continue
                rows = numbers.read(window=window)[:, down, across].T
                squares = shapely.box(across, down + top, across + 1, down + top + 1)
                columns = [
                    pa.array(shapely.to_wkb(in_the_crs(squares, grid.transform)).tolist(), pa.binary()),
                    pa.array(down + top + cells.top, pa.int32()),
                    pa.array(across + cells.left, pa.int32()),
                    pa.array(share[down, across], pa.float32()),
                    pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), type=kind),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema.with_metadata({"geo": geo})))
