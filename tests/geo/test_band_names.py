"""Words, wavelengths and codes in names of bands and files."""

from __future__ import annotations

import pytest

from penstock.errors import InputError
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import file_kinds, find_code, is_numbering, named_kinds, named_sensor
from penstock.processors.geo.read.bands import select_bands


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("near infra-red", ("nir",)), ("infra red", ()), ("blue-green", ()), ("NDVI red nir", ()),
        ("NIR (865 nm)", ("nir08", "nir")), ("Vegetation red edge 1", ("rededge071",)), ("red (842 nm)", ()),
        ("Blue (0.45-0.51 um)", ("blue",)), ("coastal_blue", ("coastal",)), ("infravermelho próximo", ("nir",)),
        ("SurfaceReflectanceRed", ("red",)), ("water vapour", ("nir09",)), ("aerosol", ("coastal",)),
        ("WVP, Scene-average Water Vapour map", ()), ("Aerosol Optical Thickness", ()), ("red_valid", ()),
        ("red_sd", ()), ("AOT aerosol", ()), ("average red", ()), ("Red classification", ()),
        ("blue^2", ()), ("sqrt(blue)", ()), ("2 * red", ()), ("Red/Rouge", ("red",)), ("near-infrared", ("nir",)),
        ("", ()), ("Reduced", ()), ("0.665 \N{MICRO SIGN}m", ("red",)),
    ],
)  # fmt: skip
def test_words_and_wavelengths(text: str, kinds: tuple[str, ...]) -> None:
    assert named_kinds(text) == kinds


@pytest.mark.parametrize(
    ("name", "code", "sensor"),
    [
        # names as the providers publish them: USGS, ESA, LP DAAC, AppEEARS, Sentinel Hub's EO Browser
        ("LC08_L2SP_042034_20200101_20200114_02_T1_SR_B2.TIF", "b2", "Landsat 8 and 9"),
        ("LE07_L1TP_022039_20010205_20200917_02_T1_B3.TIF", "b3", "Landsat 4 to 7"),
        ("LT05_L2SP_022039_19840814_20200918_02_T1_SR_B7.TIF", "b7", "Landsat 4 to 7"),
        ("LC80420342014123LGN00_B4.TIF", "b4", "Landsat 8 and 9"),
        ("T33TUL_20190416T100031_B02_10m.jp2", "b2", "Sentinel-2"),
        ("HLS.L30.T10SEH.2020001T184512.v2.0.B05.tif", "b5", "Landsat 8 and 9"),
        ("HLS.S30.T10SEH.2020001T184512.v2.0.B8A.tif", "b8a", "Sentinel-2"),
        ("MCD43A4.061_Nadir_Reflectance_Band1_doy2020001_aid0001.tif", "b1", "MODIS"),
        ("2017-01-18-00_00_2017-01-18-23_59_Landsat_8_(USGS_archive)_B02_(Raw).tiff", "b2", "Landsat 8 and 9"),
        ("2019-04-16-00_00_2019-04-16-23_59_Sentinel-2_L2A_B8A_(Raw).tiff", "b8a", "Sentinel-2"),
        ("L08.002_SR_B5_CU_doy2020001_aid0001.tif", "b5", "Landsat 8 and 9"),
        ("S2_2023_B05.tif", "b5", "Sentinel-2"),
        ("scene_s2.tif", None, None),
        ("level_l5.tif", None, None),
        ("stack.tif", None, None),
        ("olives_club4.tif", None, None),
    ],
)
def test_names_of_files(name: str, code: str | None, sensor: str | None) -> None:
    found, of = find_code(name), named_sensor([name])
    assert (found and found.key, of and of.name) == (code, sensor)


def test_numbers_of_places_are_no_codes() -> None:
    assert is_numbering([f"Band {i}" for i in range(1, 14)])
    assert not is_numbering([f"B{i}" for i in range(1, 14)])
    assert not is_numbering([f"Nadir_Reflectance_Band{i}" for i in range(1, 8)])
    assert not is_numbering(["Band 2", "Band 3"])


@pytest.mark.parametrize(
    "names", [["SWIR1"], ["SWIR1", "SWIR2"], ["nir_1"], ["rededge1", "rededge2", "rededge3"], ["Red edge 1"], ["TIRS1"]]
)
def test_names_with_a_word_for_a_band_are_no_numbering(names: list[str]) -> None:
    assert not is_numbering(names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["SWIR1", "SWIR2"], [2, 1]), (["SWIR2", "SWIR1"], [1, 2]), (["nir", "SWIR1", "SWIR2"], [3, 2])],
)
def test_numbered_words_choose_their_bands_and_not_the_order(names: list[str], expected: list[int]) -> None:
    needed = [
        Band(name="B12", synonyms=("swir22",), mean=0, std=1),
        Band(name="B11", synonyms=("swir16",), mean=0, std=1),
    ]
    present = [SceneBand(at, name) for at, name in enumerate(names, 1)]
    assert [band.index for band in select_bands(needed, present, None).bands] == expected


@pytest.mark.parametrize("extra", ["WVP, Scene-average Water Vapour map", "Aerosol Optical Thickness"])
def test_a_product_of_a_scene_is_no_band(extra: str) -> None:
    present = [SceneBand(1, "B4, central wavelength 665 nm"), SceneBand(2, extra)]
    for names in (("B09", "nir09"), ("B01", "coastal")):
        needed = [Band(name="B04", mean=0, std=1), Band(name=names[0], synonyms=names[1:], mean=0, std=1)]
        with pytest.raises(InputError):
            select_bands(needed, present, None)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("map_2024_red.tif", ("red",)), ("average_swir1_20m.tif", ("swir16",)), ("red_valid.tif", ()),
        ("cloud_red.tif", ()), ("sd_red.tif", ()), ("scene_nir.tif", ("nir",)),
    ],
)  # fmt: skip
def test_the_last_words_of_a_file_name_its_band(name: str, kinds: tuple[str, ...]) -> None:
    assert file_kinds(name) == kinds
