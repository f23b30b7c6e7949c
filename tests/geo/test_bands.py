"""Bands are found by what their names, wavelengths, sensors, files and colours say; order alone is always noted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import InvalidInput, MissingBands
from penstock.local.ready import ready_records
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.band_names import named_sensor
from penstock.processors.geo.read.bands import Selection, select_bands
from tests.support.geo.bands import SIX, files, opened, order, write
from tests.support.geo.metadata import item, landsat

ROUND3 = Path(__file__).parents[2].parent / "shared" / "data" / "round3"


def named(*names: str | None) -> list[SceneBand]:
    return [SceneBand(i, name) for i, name in enumerate(names, 1)]


def selected(names: Sequence[str | None], needed: Sequence[Band] = SIX) -> list[int]:
    return [band.index for band in select_bands(needed, named(*names), None).bands]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # USGS Landsat 8-9 Collection 2 level 2, and the same backwards
        (["SR_B2", "SR_B3", "SR_B4", "SR_B5", "SR_B6", "SR_B7"], [1, 2, 3, 4, 5, 6]),
        (["SR_B7", "SR_B6", "SR_B5", "SR_B4", "SR_B3", "SR_B2"], [6, 5, 4, 3, 2, 1]),
        (["SR_B1", "SR_B2", "SR_B3", "SR_B4", "SR_B5", "SR_B6", "SR_B7"], [2, 3, 4, 5, 6, 7]),
        # Landsat 4-7 Collection 2 level 2 has no SR_B6; Collection 1
        (["SR_B1", "SR_B2", "SR_B3", "SR_B4", "SR_B5", "SR_B7"], [1, 2, 3, 4, 5, 6]),
        (["sr_band7", "sr_band5", "sr_band4", "sr_band3", "sr_band2", "sr_band1"], [6, 5, 4, 3, 2, 1]),
        # MODIS MCD43A4 and MOD09A1, not in the order of wavelengths
        ([f"Nadir_Reflectance_Band{i}" for i in range(1, 8)], [3, 4, 1, 2, 6, 7]),
        ([f"sur_refl_b0{i}" for i in range(1, 8)], [3, 4, 1, 2, 6, 7]),
        # Sentinel-2 with the prefix of Landsat
        ([f"sr_B{code}" for code in ("2", "3", "4", "8", "8A", "11", "12")], [1, 2, 3, 5, 6, 7]),
        ([f"SR_B{code}" for code in ("12", "11", "8", "4", "3", "2")], [6, 5, 4, 3, 2, 1]),
        # languages
        (["swir2", "MIR", "PIR", "rouge", "vert", "bleu"], [6, 5, 4, 3, 2, 1]),
        (["Rouge", "Vert", "Bleu", "Proche infrarouge", "Moyen infrarouge 1", "MIR 2"], [3, 2, 1, 4, 5, 6]),
        (["Rot", "Grün", "Blau", "Nahes Infrarot", "SWIR 1", "SWIR 2"], [3, 2, 1, 4, 5, 6]),
        (["rojo", "verde", "azul", "infrarrojo cercano", "SWIR1", "SWIR2"], [3, 2, 1, 4, 5, 6]),
        # wavelengths; GDAL's Sentinel-2 driver; ENVI
        (["Red (665 nm)", "Green (560 nm)", "Blue (490 nm)", "842 nm", "1610 nm", "2190 nm"], [3, 2, 1, 4, 5, 6]),
        (["B12, central wavelength 2190 nm", "B11, central wavelength 1610 nm", "B8A, central wavelength 865 nm",
          "B4, central wavelength 665 nm", "B3, central wavelength 560 nm", "B2, central wavelength 490 nm"],
         [6, 5, 4, 3, 2, 1]),
        (["Band 1 (0.4850 um)", "Band 2 (0.5600 um)", "Band 3 (0.6600 um)", "Band 4 (0.8400 um)", "Band 5 (1.6500 um)",
          "Band 7 (2.2200 um)"], [1, 2, 3, 4, 5, 6]),
        # words beside codes that mean something else on another sensor
        (["B2 - Blue", "B3 - Green", "B4 - Red", "B5 - NIR", "B6 - SWIR 1", "B7 - SWIR 2"], [1, 2, 3, 4, 5, 6]),
        # Digital Earth Australia: Sentinel-2 has no swir_1 (collection 3, barest earth), Landsat has swir_1 and swir_2
        (["nbart_swir_3", "nbart_swir_2", "nbart_nir_2", "nbart_red", "nbart_green", "nbart_blue"], [6, 5, 4, 3, 2, 1]),
        (["s2be_blue", "s2be_green", "s2be_red", "s2be_nir_2", "s2be_swir_2", "s2be_swir_3"], [1, 2, 3, 4, 5, 6]),
        (["nbart_swir_2", "nbart_swir_1", "nbart_nir", "nbart_red", "nbart_green", "nbart_blue"], [6, 5, 4, 3, 2, 1]),
        # MODIS by words and wavelengths
        (["Red", "NIR", "Blue", "Green", "SWIR1 (1240 nm)", "SWIR2 (1640 nm)", "SWIR3 (2130 nm)"], [3, 4, 1, 2, 6, 7]),
        # Sentinel-2 of Google Earth Engine, all twelve: B8A before B08, as in the record
        (["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B11", "B12"], [2, 3, 4, 9, 11, 12]),
    ],
)  # fmt: skip
def test_what_a_name_says_decides_and_not_the_order(names: list[str], expected: list[int]) -> None:
    assert selected(names) == expected


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ["B2", "B3", "B4", "B5", "B6", "B7"],
            "B2, B3, B4, B5, B6, B7 mean different bands on Sentinel-2, Landsat 8",
        ),
        (["Band 7", "Band 6", "Band 5", "Band 4", "Band 3", "Band 2"], "1 'Band 7', 2 'Band 6'"),
        (["B7", "B6", "B5", "B4", "B3", "B2"], r'if it is of Landsat 8 and 9, "bands": \[6, 5, 4, 3, 2, 1\] \(on the'),
        (["un", "deux", "trois", "quatre", "cinq", "six"], r'such as "bands": \[1, 2, 3, 4, 5, 6\]'),
        (["B1", "B2", "B3", "B4", "B5", "B6"], "No band matches the name of"),
        (["blue", "green", "red", "nir", "QA_swir1", "swir2"], "No band matches the name of swir16"),
        (["Red", "NIR", "Blue", "Green", "SWIR1", "SWIR2", "SWIR3"], "of swir16, swir22. Sensors number short-wave"),
        (["SWIR3", "SWIR2", "NIR", "Red", "Green", "Blue"], "so SWIR3, SWIR2 do not say enough"),
        (["Red", "NIR", "Blue", "Green", "SWIR1 (1240 nm)", "SWIR2"], "No band matches the name of swir16"),
        (["nbart_blue", "nbart_green", "nbart_red", "nir", "swir16", "nbart_swir_2"], "so nbart_swir_2 do"),
        (["Blue", "Green", "Red", "NIR2", "SWIR 1", "SWIR 2"], "No band matches the name of nir."),  # WorldView: 950 nm
        (["blue^2", "green", "red", "nir", "swir1", "swir2"], "No band matches the name of blue."),
        (["B2*2", "B3", "B4", "B8A", "B11", "B12"], "No band matches the name of blue."),
        (["B2", "B3", "B8/B4", "B8A", "B11", "B12"], "No band matches the name of red."),
        (["blue", "green", "red", "nir (665 nm)", "swir1", "swir2"], "No band matches the name of nir"),
        ([None, None, "red", None, None, None], "No band matches the name of blue, green, nir"),
    ],
)
def test_names_that_do_not_say_enough_are_refused_with_what_was_read(names: list[str | None], sentence: str) -> None:
    with pytest.raises(MissingBands, match=sentence):
        selected(names)


def test_order_alone_is_noted() -> None:
    for names in ([None] * 6, [f"Band {i}" for i in range(1, 7)], [f"stack_{i}" for i in range(1, 7)]):
        found = select_bands(SIX, named(*names), None)
        assert [band.index for band in found.bands] == [1, 2, 3, 4, 5, 6]
        (note,) = found.notes
        assert "no names that say what they are. They were used in their order as blue, green" in note
        assert '"bands": [1, 2, 3, 4, 5, 6]' in note


def test_codes_that_only_one_landsat_can_mean_are_noted_and_others_refused() -> None:
    rgb = SIX[:3]
    (note,) = select_bands(rgb, named("SR_B2", "SR_B3", "SR_B4"), None).notes
    assert "SR_B2, SR_B3, SR_B4 are of several Landsats. They were read as those of Landsat 8 and 9" in note
    with pytest.raises(MissingBands, match="mean different bands on Landsat 8 and 9, Landsat 4 to 7"):
        select_bands(rgb, named("SR_B1", "SR_B2", "SR_B3", "SR_B4"), None)


def test_bare_codes_that_several_sensors_have_are_read_as_the_record_names_them_and_noted() -> None:
    found = select_bands(SIX[:3], named("B4", "B3", "B2"), None)
    assert [band.index for band in found.bands] == [3, 2, 1]
    assert "The codes B2, B3, B4 mean different bands on different sensors" in found.notes[0]
    assert select_bands(SIX[:3], named("B04", "B03", "B02"), None).notes == ()
    numbered = [Band(name=f"band {at}", mean=0, std=1) for at in (3, 1)]
    assert select_bands(numbered, named("band 1", "band 3"), None).notes == ()


def test_a_code_of_the_record_is_not_that_of_another_sensor() -> None:
    landsat_7 = named_sensor(["landsat-7"])
    found = select_bands(SIX[:3], named("B1", "B2", "B3"), None, landsat_7)
    assert [band.index for band in found.bands] == [1, 2, 3]
    landsat_9 = named_sensor(["LC09_L2SP_042034_20230101_02_T1_stack.tif"])
    found = select_bands(SIX, named("B02", "B03", "B04", "B05", "B06", "B07", "B10", "B11"), None, landsat_9)
    assert [band.index for band in found.bands] == [1, 2, 3, 4, 5, 6]  # B11 is thermal there


def test_the_prefix_of_landsat_is_no_landsat_in_a_scene_of_sentinel_2() -> None:
    names = ("sr_B5", "sr_B4")
    needed = [SIX[2], Band(name="rededge071", mean=0, std=1)]
    sentinel_2, landsat_9 = named_sensor(["sentinel-2a"]), named_sensor(["landsat-9"])
    assert [band.index for band in select_bands(needed, named(*names), None, sentinel_2).bands] == [2, 1]
    with pytest.raises(MissingBands, match="No band matches the name of rededge071"):
        select_bands(needed, named(*names), None, landsat_9)


def test_one_band_of_one_is_used_and_noted_unless_it_is_another() -> None:
    grey = [Band(name="grey", mean=0, std=1)]
    assert select_bands(grey, named(None), None) == Selection((SceneBand(1, None),))
    assert "only band, 'Gamma0_VV', was used as grey" in select_bands(grey, named("Gamma0_VV"), None).notes[0]
    with pytest.raises(MissingBands, match="needs red; the scene has 1 'nir'"):
        select_bands(SIX[2:3], named("nir"), None)


def test_a_sidecar_of_landsat_7_explains_unnamed_files_by_their_codes(tmp_path: Path) -> None:
    scene = files(tmp_path, *(f"LE07_x_B{code}.TIF" for code in "754321"))
    document = landsat("L2SP", {b: (f"{b}e-05", "0") for b in (1, 2, 3, 4, 5, 7)}, spacecraft="LANDSAT_7")
    (tmp_path / "x_MTL.json").write_text(json.dumps(document))
    found = opened({"files": scene, "sidecar": str(tmp_path / "x_MTL.json")})
    assert [round(scale * 1e5) for scale in found.radiometry.scale] == [1, 2, 3, 4, 5, 7]


@pytest.mark.skipif(not ROUND3.is_dir(), reason="needs the shared data: ../shared/data/round3")
def test_a_file_of_landsat_names_backwards_is_read_as_its_right_order() -> None:
    wrong, right = (opened({"scene": str(ROUND3 / f"{name}.tif")}) for name in ("names_sr_b", "right"))
    assert order(wrong) == [6, 5, 4, 3, 2, 1]
    assert order(right) == [1, 2, 3, 4, 5, 6]
    assert wrong.notes == right.notes == ()


def ready(name: str) -> tuple[Band, ...]:
    return tuple(Band.model_validate(band) for band in ready_records()[name].options["bands"])


SIX_BANDED = ("granite-biomass", "prithvi-burn-scars", "prithvi-crops", "prithvi-embeddings", "prithvi-floods")


@pytest.mark.parametrize("record", SIX_BANDED)
@pytest.mark.parametrize(
    "names",
    [
        ["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"],  # TerraTorch
        ["Blue", "Green", "Red", "NIR", "SWIR1", "SWIR2"],
        ["B02", "B03", "B04", "B8A", "B11", "B12"],  # HLS S30
        ["SR_B2", "SR_B3", "SR_B4", "SR_B5", "SR_B6", "SR_B7"],
        ["SR_B1", "SR_B2", "SR_B3", "SR_B4", "SR_B5", "SR_B7"],
        ["blue", "green", "red", "nir08", "swir16", "swir22"],
    ],
)
def test_prithvi_knows_the_names_of_hls_landsat_and_sentinel_2(record: str, names: list[str]) -> None:
    assert selected(names[::-1], ready(record)) == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("record", SIX_BANDED)
def test_prithvi_takes_bands_of_hls_l30_and_the_narrow_near_infrared(record: str) -> None:
    l30 = named_sensor(["HLSL30_2.0"])
    names = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B09", "B10", "B11"]
    found = select_bands(ready(record), named(*names), None, l30)
    assert [band.name for band in found.bands] == ["B02", "B03", "B04", "B05", "B06", "B07"]
    assert found.notes == ()
    named_twice = {"B02": "blue", "B03": "green", "B04": "red", "B08": "nir", "B8A": "nir08", "B11": "x", "B12": "y"}
    both = [SceneBand(i, name, (common,)) for i, (name, common) in enumerate(named_twice.items(), 1)]
    assert [band.index for band in select_bands(ready(record), both, None).bands] == [1, 2, 3, 5, 6, 7]
    (note,) = select_bands(ready(record), named("B02", "B03", "B04", "B08", "B11", "B12"), None).notes
    assert "The band nir08 is not in the scene; 4 'B08' (nir by its code) was used as nir08" in note


def test_the_red_edges_of_clay_and_terramind_are_those_of_sentinel_2() -> None:
    names = ["B12", "B11", "B09", "B8A", "B08", "B07", "B06", "B05", "B04", "B03", "B02", "B01"]
    assert selected(names, ready("terramind-embeddings")) == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    words = ["blue", "green", "red", "Red edge 1", "Red edge 2", "Red edge 3", "NIR", "Narrow NIR", "SWIR 1", "SWIR 2"]
    assert selected(words[::-1], ready("clay-embeddings")) == list(range(10, 0, -1))


def test_a_note_of_some_scenes_names_them_and_one_of_all_stands_once(tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{name}.tif", 6) for name in ("one", "two"))
    named_too = write(tmp_path / "three.tif", 6, descriptions=["blue", "green", "red", "nir", "swir16", "swir22"])

    def notes(*paths: str) -> list[str]:
        scenes = [{"scene": path} for path in paths]
        return [note[:40] for note in opened({"mosaic": {"scenes": scenes}}).notes]

    assert notes(one, two) == ["The scene's bands have no names that say"]
    assert notes(one, two, named_too) == ["Scene 1, Scene 2: The scene's bands have"]


def test_two_bands_of_one_meaning_are_not_chosen_between() -> None:
    with pytest.raises(InvalidInput, match=r"2 bands named 'blue': 1 'Bleu', 2 'Blau'\. Select"):
        selected(["Bleu", "Blau", "green", "red", "nir", "swir1", "swir2"])


CODES = ("B2", "B3", "B4", "B8", "B8A", "B11", "B12")


@pytest.mark.parametrize("record", ["csmask", *SIX_BANDED])
@pytest.mark.parametrize(
    "names",
    [
        CODES,
        *([form.format(code) for code in CODES] for form in ("0_{}", "{}_median", "S2_{}", "{}_20m", "Band {}")),
        ["Blue", "Green", "Red", "NIR", "Narrow NIR", "SWIR 1", "SWIR 2"],
        ["Blue", "Green", "Red", "NIR (842 nm)", "NIR (865 nm)", "SWIR 1", "SWIR 2"],
        ["blue", "green", "red", "nir", "nir08", "swir16", "swir22"],
    ],
)
def test_the_narrow_near_infrared_is_chosen_however_it_is_written(record: str, names: list[str]) -> None:
    needed = SIX if record == "csmask" else ready(record)
    for given, expected in ((names, [1, 2, 3, 5, 6, 7]), (names[::-1], [7, 6, 5, 3, 2, 1])):
        found = select_bands(needed, named(*given), None)
        assert ([band.index for band in found.bands], found.notes) == (expected, ())


def test_the_codes_of_a_record_say_which_near_infrared_it_prefers() -> None:
    narrow, broad = ([Band(name="nir", synonyms=codes, mean=0, std=1)] for codes in (("B8A", "B08"), ("B08", "B8A")))
    for names in (["0_B8", "0_B8A"], ["NIR", "Narrow NIR"]):
        assert (selected(names, narrow), selected(names, broad)) == ([2], [1])


@pytest.mark.parametrize(
    ("names", "line", "missing"),
    [
        (
            ["Red", "NIR", "Blue", "Green", "SWIR1", "SWIR2", "SWIR3"],
            '[3, 4, 1, 2, "?", "?"]',
            "numbers of swir16, swir22",
        ),
        (["far", "swir16", "nir", "red", "green", "blue"], '[6, 5, 4, 3, 2, "?"]', "number of swir22"),
        (
            ["swir22/swir16", "nir-red", "x", "z", "y", "blue^2"],
            '["?", "?", "?", "?", "?", "?"]',
            "numbers of blue, green",
        ),
        (["B7", "B5", "x", "z", "y", "q"], '["?", "?", "?", "?", "?", "?"]', "numbers of blue, green, red, nir"),
    ],
)
def test_the_line_to_add_has_the_bands_that_were_found(names: list[str], line: str, missing: str) -> None:
    with pytest.raises(MissingBands) as refused:
        selected(names)
    assert f'"bands": {line} (on the command line' in refused.value.detail
    assert refused.value.detail.partition("), with the ")[2].startswith(missing)
    with pytest.raises(MissingBands, match=r"names '\?', which is not in the scene"):
        select_bands(SIX, named(*names), json.loads(line))


def test_a_record_that_numbers_three_bands_finds_them_by_its_own_names() -> None:
    needed = [Band(name=f"SWIR{number}", mean=0, std=1) for number in (1, 2, 3)]
    assert selected(["SWIR3", "SWIR1", "NIR", "SWIR2"], needed) == [2, 4, 1]


def test_numbered_files_of_short_wave_infrared_are_read_like_bands(tmp_path: Path) -> None:
    words = ("blue", "green", "red", "nir", "swir1", "swir2", "swir3")
    with pytest.raises(MissingBands, match="No band matches the name of swir16, swir22"):
        opened({"files": files(tmp_path, *(f"modis_scene_{word}.tif" for word in words))})
    words = ("swir_3", "swir_2", "nir_2", "red", "green", "blue")
    found = opened({"files": files(tmp_path / "dea", *(f"mosaic_nbart_{word}.tif" for word in words))})
    assert order(found) == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("words", [False, True])
def test_an_item_with_the_bands_in_another_order_than_the_file_is_refused(tmp_path: Path, words: bool) -> None:
    common = ["blue", "green", "red", "nir08", "swir16", "swir22"]
    names = common if words else ["B02", "B03", "B04", "B8A", "B11", "B12"]
    scene = write(tmp_path / "stack.tif", 6, descriptions=names)
    bands = [{"name": name, "eo:common_name": name, "raster:scale": 1e-4} for name in common]
    document = item({"data": {"href": "https://e.example/stack.tif", "bands": bands}})
    assert order(opened({"scene": scene, "stac": document})) == [1, 2, 3, 4, 5, 6]
    document["assets"]["data"]["bands"] = bands[::-1]
    with pytest.raises(InvalidInput) as refused:
        opened({"scene": scene, "stac": document})
    said = f"The STAC item contradicts the file: band 1 '{names[0]}' is blue in the file, and swir22 in the item"
    assert refused.value.detail.startswith(said)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/stac"]


def test_a_common_name_of_an_item_that_the_file_does_not_have_is_no_contradiction(tmp_path: Path) -> None:
    # Planetary Computer calls B8A `rededge`
    scene = write(tmp_path / "stack.tif", 6, descriptions=["B02", "B03", "B04", "B8A", "B11", "B12"])
    bands = [
        {"name": code, "common_name": kind}
        for code, kind in zip(
            ["B02", "B03", "B04", "B8A", "B11", "B12"],
            ["blue", "green", "red", "rededge", "swir16", "swir22"],
            strict=True,
        )
    ]
    document = item({"data": {"href": "https://e.example/stack.tif", "eo:bands": bands}})
    assert order(opened({"scene": scene, "stac": document})) == [1, 2, 3, 4, 5, 6]


def test_long_names_are_cut_in_sentences() -> None:
    with pytest.raises(MissingBands) as refused:
        selected(["x" * 100_000, "y\x1b[2J" * 30_000])
    assert len(refused.value.detail) < 600
    assert "\x1b" not in refused.value.detail
