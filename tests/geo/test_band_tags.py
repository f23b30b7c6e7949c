"""Tags of bands and files tell what bands are."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import MissingBands
from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.bands import opened, order, write


def test_tags_of_bands_and_gdals_imagery_domain_say_what_bands_are(tmp_path: Path) -> None:
    microns = ("2.2", "1.61", "0.842", "0.665", "0.56", "0.49")
    gdal = write(tmp_path / "gdal.tif", 6, [{"CENTRAL_WAVELENGTH_UM": um} for um in microns])
    nm = [{"wavelength": f"{float(um) * 1000:g}", "wavelength_units": "Nanometers"} for um in microns]
    envi = write(tmp_path / "envi.tif", 6, nm)
    names = write(tmp_path / "names.tif", 6, [{"BANDNAME": name} for name in ("B12", "B11", "B8A", "B4", "B3", "B2")])
    netcdf = write(tmp_path / "nc.tif", 6, [{"NETCDF_VARNAME": f"SR_B{i}"} for i in (7, 6, 5, 4, 3, 2)])
    for path in (gdal, envi, names, netcdf):
        assert order(opened({"scene": path})) == [6, 5, 4, 3, 2, 1]


def test_a_tag_with_the_platform_makes_codes_clear(tmp_path: Path) -> None:
    codes = [f"B0{i}" for i in (7, 6, 5, 4, 3, 2)]
    path = write(tmp_path / "s.tif", 6, descriptions=codes)
    with pytest.raises(MissingBands, match="mean different bands"):
        opened({"scene": path})
    with rasterio.open(path, "r+") as file:
        file.update_tags(LANDSAT_PRODUCT_ID="LC08_L1TP_042034_20200101_20200113_01_T1")  # as in HLS L30
    assert order(opened({"scene": path})) == [6, 5, 4, 3, 2, 1]
