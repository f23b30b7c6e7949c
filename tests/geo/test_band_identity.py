"""Names of files, products and colours tell what bands without descriptions are."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import MissingBands
from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.bands import SIX, files, opened, order, write


@pytest.mark.parametrize(
    ("pattern", "codes", "expected"),
    [
        ("LC09_L2SP_042034_20230101_20230103_02_T1_SR_B{}.TIF", "765432", [6, 5, 4, 3, 2, 1]),
        ("LT05_L2SP_022039_19840814_20200918_02_T1_SR_B{}.TIF", "754321", [6, 5, 4, 3, 2, 1]),
        ("LE07_L1TP_022039_20010205_20200917_02_T1_B{}.TIF", "754321", [6, 5, 4, 3, 2, 1]),
        ("HLS.L30.T10SEH.2020001T184512.v2.0.B0{}.tif", "765432", [6, 5, 4, 3, 2, 1]),
        ("MCD43A4.061_Nadir_Reflectance_Band{}_doy2020001_aid0001.tif", "1234567", [3, 4, 1, 2, 6, 7]),
        ("2017-01-18_Landsat_8_(USGS_archive)_B0{}_(Raw).tiff", "672345", [3, 4, 5, 6, 1, 2]),
    ],
)
def test_the_names_of_files_without_descriptions_say_their_bands(
    pattern: str, codes: str, expected: list[int], tmp_path: Path
) -> None:
    found = opened({"files": files(tmp_path, *(pattern.format(code) for code in codes))})
    assert (order(found), found.notes) == (expected, ())


def test_files_of_sentinel_2_and_words_in_names_of_files(tmp_path: Path) -> None:
    codes = ("B12_20m", "B11_20m", "B8A_20m", "B04_10m", "B03_10m", "B02_10m")
    found = opened({"files": files(tmp_path / "s2", *(f"T33TUL_20190416T100031_{code}.tif" for code in codes))})
    assert (order(found), found.notes) == ([6, 5, 4, 3, 2, 1], ())
    words = ("red", "green", "blue", "swir1", "swir2", "nir")
    found = opened({"files": files(tmp_path / "words", *(f"Blue_Mountains_{word}_10m.tif" for word in words))})
    assert (order(found), found.notes) == ([3, 2, 1, 6, 4, 5], ())


def test_colours_of_a_picture_are_used_and_noted(tmp_path: Path) -> None:
    bgr = write(tmp_path / "bgr.tif", 3)
    with rasterio.open(bgr, "r+") as file:
        file.colorinterp = [rasterio.enums.ColorInterp[name] for name in ("red", "green", "blue")]
    found = opened({"scene": bgr}, SIX[:3])
    assert order(found) == [3, 2, 1]
    assert "colour interpretation of the file, which programs often set by default, gave blue" in found.notes[0]
    with pytest.raises(MissingBands, match=r"1 \(unnamed, red by its colour interpretation\)"):
        opened({"scene": bgr}, SIX[1:4])


def test_planetscope_has_the_order_of_its_product_and_a_note(tmp_path: Path) -> None:
    # Planet's product specification: blue, green, red, near infrared
    found = opened(
        {"scene": write(tmp_path / "20200101_100000_1_106a_3B_AnalyticMS_SR.tif", 4)}, [SIX[2], SIX[3], SIX[0]]
    )
    assert order(found) == [3, 4, 1]
    assert "By the file's name, their order is that of PlanetScope with 4 bands" in found.notes[0]
    eight = ["coastal_blue", "blue", "green_i", "green", "yellow", "red", "rededge", "nir"]
    found = opened({"scene": write(tmp_path / "8.tif", 8, descriptions=eight)}, SIX[:4])
    assert (order(found), found.notes) == ([2, 4, 6, 8], ())
