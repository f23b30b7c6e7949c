"""The CRS of a scene as other programs draw it."""

from __future__ import annotations

import pytest
import rasterio
from pyproj import CRS, Transformer

from penstock.processors.geo.write.crs import crs_to_json

PLAN = 'LOCAL_CS["a plan",UNIT["metre",1]]'
OWN = (
    'PROJCS["of nobody else",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],'
    'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Lambert_Azimuthal_Equal_Area"],'
    'PARAMETER["latitude_of_center",45],PARAMETER["longitude_of_center",13],PARAMETER["false_easting",0],'
    'PARAMETER["false_northing",0],UNIT["metre",1]]'
)


@pytest.mark.parametrize("code", [4326, 3857, 32633, 32738, 3035, 2056, 3413, 27700])
def test_the_proj4_text_places_points_where_the_code_does(code: int) -> None:
    area = CRS.from_epsg(code).area_of_use
    assert area is not None
    lon, lat = (area.west + area.east) / 2, (area.south + area.north) / 2
    x, y = Transformer.from_crs(4326, code, always_xy=True).transform(lon, lat)

    found = crs_to_json(rasterio.CRS.from_epsg(code), x, y)

    assert found is not None
    assert found["name"] == f"EPSG:{code}"
    placed = Transformer.from_crs(4326, found["proj4"], always_xy=True).transform(lon, lat)
    assert placed == pytest.approx((x, y), abs=0.1)


def test_a_crs_without_a_code_has_its_name_and_its_text() -> None:
    found = crs_to_json(rasterio.CRS.from_wkt(OWN), 0, 0)
    assert found is not None
    assert found["name"] == "of nobody else"
    assert str(found["proj4"]).startswith("+proj=laea +lat_0=45 +lon_0=13")


def test_a_plan_has_no_text() -> None:
    found = crs_to_json(rasterio.CRS.from_wkt(PLAN), 0, 0)
    assert found is not None
    assert found["proj4"] is None


def test_a_scene_without_a_crs_has_none() -> None:
    assert crs_to_json(None, 0, 0) is None
