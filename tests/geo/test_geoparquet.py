"""Polygons as GeoParquet: the same shapes and fields as in the FlatGeobuf."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
from pyproj import CRS

from penstock.processors.geo.read.gdal import pyogrio
from tests.support.geo.scenes import pattern, segment, write_scene

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("crs", ["EPSG:32633", None])
def test_geoparquet_has_the_polygons_of_the_flatgeobuf(crs: str | None, tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(30, 40), crs=crs, nodata=7)
    sink, _ = segment(scene, tmp_path / "out", outputs=("polygons",), polygons={"geoparquet": True})
    table = parquet.read_table(sink.artifacts["polygons.parquet"])
    _, _, shapes, fields = pyogrio.raw.read(sink.artifacts["polygons.fgb"])
    # A FlatGeobuf is sorted by place, so that both are compared as sets.
    ours = {(shapely.from_wkb(shape).normalize().wkt, pixels) for shape, pixels in zip(
        table["geometry"].to_pylist(), table["pixels"].to_pylist(), strict=True)}  # fmt: skip
    theirs = {(shapely.from_wkb(shape).normalize().wkt, int(pixels)) for shape, pixels in zip(
        shapes, fields[2], strict=True)}  # fmt: skip
    assert ours == theirs
    assert len(ours) == table.num_rows > 100
    assert set(table.column_names) == {"geometry", "class", "name", "pixels"} | ({"area_m2"} if crs else set())
    geo = json.loads(table.schema.metadata[b"geo"])
    column = geo["columns"][geo["primary_column"]]
    assert (geo["version"], column["encoding"], column["geometry_types"]) == ("1.1.0", "WKB", ["Polygon"])
    if crs is None:
        assert column["crs"] is None
    else:
        assert CRS.from_json_dict(column["crs"]) == CRS(crs)
    np.testing.assert_allclose(column["bbox"], shapely.total_bounds(shapely.from_wkb(shapes)))


def test_it_is_written_only_on_request(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(30, 40))
    sink, _ = segment(scene, tmp_path / "out", outputs=("polygons",))
    assert "polygons.parquet" not in sink.artifacts
