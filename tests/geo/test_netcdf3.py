"""Classic NetCDF files, read by SciPy: numbers, attributes and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.products.netcdf3 import open_netcdf3
from penstock.processors.geo.read.products.product_files import read_product
from tests.geo.test_product_files import UTM, mapped, square
from tests.support.geo.products import NAMES, source, write_netcdf
from tests.support.geo.scenes import write_scene


@pytest.mark.parametrize("version", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"])
def test_variables_have_the_attributes_that_cf_needs(version: str, tmp_path: Path) -> None:
    variables = open_netcdf3(write_netcdf(tmp_path / "a.nc", square(), version=version, of_bands={"_FillValue": -1}))
    blue = variables.each["blue"]
    assert (blue.dimensions, blue.shape, blue.text("grid_mapping")) == (("y", "x"), (40, 50), "crs")
    assert (blue.text("_Unsigned"), blue.numbers("_FillValue")) == ("true", [-1.0])
    assert variables.each["crs"].text("crs_wkt").startswith("PROJCS")
    variables.close()


def test_unsigned_numbers_beyond_the_signed_ones_are_the_geotiffs(tmp_path: Path) -> None:
    numbers = np.random.default_rng(2).integers(30_000, 65_535, (6, 50, 60)).astype(np.uint16)
    numbers[:, 3:6, 3:6] = 65_535
    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM, nodata=65_535)
    path = write_netcdf(tmp_path / "a.nc", source(tif), version="NETCDF3_CLASSIC", of_bands={"_FillValue": -1})
    expected, _ = mapped(tif, tmp_path / "tif")
    classes, stats = mapped(path, tmp_path / "nc")
    np.testing.assert_array_equal(classes, expected)
    assert stats["radiometry"]["nodata"] == 65_535


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.95])
def test_a_cut_off_file_is_damaged(keep: float, tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "a.nc", square(), version="NETCDF3_CLASSIC")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(MediaUnreadable, match="The scene cannot be opened; it is damaged or incomplete"):
        read_product(path, Limits())


@pytest.mark.parametrize("name", ["mode", "close", "flush", "filename", "maskandscale"])
def test_an_attribute_with_the_name_of_one_of_scipys_is_only_an_attribute(name: str, tmp_path: Path) -> None:
    def more(file: Any) -> None:
        file.setncattr(name, "Nominal")

    product = read_product(write_netcdf(tmp_path / "a.nc", square(), version="NETCDF3_CLASSIC", edit=more), Limits())
    assert product is not None
    assert {raster.name for raster in product.rasters} == {*NAMES}


@pytest.mark.parametrize("value", ["y x", np.array([1.0, 2.0])])
def test_a_variable_whose_attribute_hides_its_dimensions_is_left_out(value: Any, tmp_path: Path) -> None:
    def more(file: Any) -> None:
        file["blue"].setncattr("dimensions", value)

    product = read_product(write_netcdf(tmp_path / "a.nc", square(), version="NETCDF3_CLASSIC", edit=more), Limits())
    assert product is not None
    assert {raster.name for raster in product.rasters} == {*NAMES} - {"blue"}
    [sentence] = product.unread
    assert sentence.startswith("blue has an attribute `dimensions` or `data`, which is not read")
