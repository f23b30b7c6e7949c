"""Polygons as GeoParquet 1.1, in the scene's CRS, where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from pyproj import CRS

from penstock.processors.geo.options import ClassLabel
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.write.lonlat import in_the_crs
from penstock.processors.geo.write.vector import Polygons

GEOPARQUET_TYPE = "application/vnd.apache.parquet"
MISSING = "the worker has no pyarrow; its operator can install it: pip install '.[tables]' in a clone of Penstock"
_VERSION = "1.1.0"


def is_available() -> bool:
    """Return True if pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def write_geoparquet(path: Path, polygons: Polygons, scene: Scene, labels: Sequence[ClassLabel]) -> None:
    """Write the polygons with class, name, pixels and area. The scene must have a transform."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shapes = in_the_crs(polygons.shapes, scene.transform)
    columns: dict[str, Any] = {
        "geometry": pa.array(shapely.to_wkb(shapes).tolist(), pa.binary()),
        "class": pa.array(polygons.classes, pa.int32()),
        "name": pa.array([labels[class_id].name for class_id in polygons.classes.tolist()], pa.string()),
        "pixels": pa.array(polygons.pixels, pa.int64()),
    }
    if not np.isnan(polygons.area_m2).any():
        columns["area_m2"] = pa.array(np.round(polygons.area_m2, 3), pa.float64())
    bounds = shapely.total_bounds(shapes).tolist() if len(shapes) else None
    table = pa.table(columns).replace_schema_metadata({"geo": json.dumps(geo_metadata(scene, bounds))})
    pq.write_table(table, path, compression="zstd")


def geo_metadata(scene: Scene, bounds: list[float] | None) -> dict[str, Any]:
    """Return a file's metadata for polygons with these bounds. A scene without a CRS has the CRS null: unknown."""
    crs = CRS.from_wkt(scene.crs.to_wkt()).to_json_dict() if scene.crs is not None else None
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": ["Polygon"], "crs": crs}
    if bounds is not None:
        column["bbox"] = bounds
    return {"version": _VERSION, "primary_column": "geometry", "columns": {"geometry": column}}
