"""Undeclared nodata is refused where it is certain and noted where it may be data, for every model, with the remedy."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry, Source
from penstock.processors.geo.read.suspected_nodata import (
    SceneBands,
    Suspect,
    SuspectCounts,
    add_suspects,
    count_blocks,
    in_words,
)
from penstock.processors.geo.regression import RasterRegression
from tests.support.geo.scenes import GREY, Files, make_model, one_hot, read, segment, write_scene

DATA = Path(__file__).parents[3] / "shared" / "data"
NAMES = ("red", "nir", "swir16")
BANDS = [{**GREY[0], "name": name} for name in NAMES]
DTYPES = ("uint8", "int16", "uint16", "int32", "float32", "float64")
DEFAULTS = [{"dtypes": DTYPES, "scale": 1.0}]
MODEL = make_model(bands=BANDS, tile_px=64, default_radiometry=DEFAULTS)
CORNER = (slice(0, 72), slice(96, 200))
FLOAT32 = np.finfo(np.float32)
#: Numbers that no sensor measures over an area.
FILL: list[tuple[str, float]] = [
    *[("int16", -9999), ("int16", -32_768), ("int32", -(2**31)), ("float32", -9999), ("float32", -32_768)],
    *[("float32", float(FLOAT32.min)), ("float32", 1e20), ("float32", float(np.float32(9.96921e36)))],
    *[("float64", -1e20), ("float64", -1.7976931348623157e308)],
]


def scene(dtype: str = "uint16") -> npt.NDArray[Any]:
    return np.random.default_rng(1).integers(1, 200, (3, 150, 200)).astype(dtype)


def first(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return one_hot(np.zeros(pixels.shape[1:]))


def write(path: Path, numbers: npt.NDArray[Any], **profile: Any) -> Path:
    return write_scene(path, numbers, descriptions=NAMES[: len(numbers)], **profile)


def notes(path: Path, folder: Path, model: Model = MODEL, **request: Any) -> list[str]:
    _, result = segment(path, folder, model=model, network=first, **request)
    assert result.data is not None
    found: list[str] = result.data["notes"]
    return found


def remedy(text: str) -> dict[str, Any]:
    """Return the parameters that a message or note tells the user to give; nodata comes last."""
    found = re.findall(r'"radiometry": \{[^}]*\}', text)[-1]
    given: dict[str, Any] = json.loads(f"{{{found}}}")
    assert list(given["radiometry"]) == ["nodata"]
    return given


def share(note: str) -> float:
    """Return the percentage in a note."""
    return float(note.removeprefix("At least ").split(" %")[0])


def bands_of(count: int, *, dates: tuple[int, ...] | None = None, source: Source = "none") -> SceneBands:
    one = BandRadiometry(1, 0, None, source, source)
    return SceneBands(tuple(f"b{i}" for i in range(count)), dates or (1,) * count, Radiometry((one,) * count))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *[("uint8", 255), ("uint8", 0), ("int16", 32_767), ("int16", 0), ("uint16", 32_767), ("uint16", 65_535)],
        *[("float32", 0), ("float32", 65_535), ("float32", -0.2), ("float64", -0.1), ("float32", -0.9999)],
    ],
)
def test_fill_that_may_be_data_is_noted_with_a_remedy_that_works(dtype: str, number: float, tmp_path: Path) -> None:
    numbers = scene(dtype)
    numbers[:, *CORNER] = number
    path = write(tmp_path / "s.tif", numbers)
    (note,) = notes(path, tmp_path / "out")
    assert 20 < share(note) <= 25
    assert "red, nir, swir16" in note
    assert (read(tmp_path / "out" / "classes.tif") != 255).all()
    assert notes(path, tmp_path / "declared", **remedy(note)) == []
    np.testing.assert_array_equal(read(tmp_path / "declared" / "classes.tif")[0] == 255, (numbers == number).all(0))


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("plausible_mean", [None, 5.0])
@pytest.mark.parametrize("bands", [1, 3])
@pytest.mark.parametrize(("dtype", "number"), FILL)
def test_fill_that_cannot_be_data_is_refused_with_a_remedy_that_works(
    dtype: str, number: float, bands: int, plausible_mean: float | None, tmp_path: Path
) -> None:
    model = make_model(
        bands=BANDS[:bands],
        tile_px=64,
        plausible_mean=plausible_mean,
        default_radiometry=[{"dtypes": DTYPES, "scale": 1e-4}],
    )
    numbers = scene(dtype)[:bands]
    numbers[:, *CORNER] = number
    path = write(tmp_path / "s.tif", numbers)
    with pytest.raises(InvalidInput) as refused:
        notes(path, tmp_path / "out", model)
    assert notes(path, tmp_path / "declared", model, **remedy(str(refused.value))) == []
    empty = read(tmp_path / "declared" / "classes.tif")[0] == 255
    np.testing.assert_array_equal(empty, (numbers == numbers[0, 0, 150]).all(axis=0))


@pytest.mark.parametrize("number", [-9999.0, -32_768.0])
def test_a_model_of_quantities_refuses_it_too(number: float, tmp_path: Path) -> None:
    model = make_model(default_radiometry=DEFAULTS)
    options = {name: value for name, value in model.options.items() if name != "classes"}
    processor = RasterRegression(model.model_copy(update={"options": {**options, "quantities": [{"name": "height"}]}}))
    numbers = scene("float32")[:1]
    numbers[:, *CORNER] = number
    request = processor.request(scene=str(write_scene(tmp_path / "s.tif", numbers)))
    with pytest.raises(InvalidInput, match=f'"nodata": {number:.0f}}}') as refused:
        list(processor.pre_process(request, Files()).prompts)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/radiometry/nodata"]


def test_a_collar_of_a_few_pixels_is_refused_where_chance_is_excluded(tmp_path: Path) -> None:
    for name, dtype, count in (("float", "float32", 1), ("integer", "int16", 3)):
        numbers = scene(dtype)[:count]
        numbers[:, :, :2] = -9999
        with pytest.raises(InvalidInput, match=r'"nodata": -9999\}'):
            notes(write(tmp_path / f"{name}.tif", numbers), tmp_path / name, make_model(bands=BANDS[:count]))


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_fill_in_one_band_alone_is_refused(dtype: str, tmp_path: Path) -> None:
    numbers = scene(dtype)
    numbers[1][CORNER] = -9999
    with pytest.raises(InvalidInput, match="number -9999 in band nir"):
        notes(write(tmp_path / "s.tif", numbers), tmp_path / "out")


def test_a_request_that_names_another_number_makes_fill_data_and_gets_a_note(tmp_path: Path) -> None:
    numbers = scene("int16")
    numbers[:, *CORNER] = -9999
    path = write(tmp_path / "s.tif", numbers)
    (note,) = notes(path, tmp_path / "out", radiometry={"nodata": -1})
    assert "number -9999 in all of" in note
    assert "replaces the nodata number -1 (source: request)" in note
    assert (read(tmp_path / "out" / "classes.tif") == 0).all()


def test_a_declared_number_does_not_hide_another_one(tmp_path: Path) -> None:
    numbers = scene("int16")
    numbers[:, *CORNER] = -9999
    numbers[:, 100:] = 0
    with pytest.raises(InvalidInput, match=r"replaces the nodata number 0 \(source: file\)"):
        notes(write(tmp_path / "s.tif", numbers, nodata=0), tmp_path / "out")


def test_nan_is_nodata_without_a_declaration(tmp_path: Path) -> None:
    numbers = scene("float32")
    numbers[:, *CORNER] = np.nan
    numbers[:, 100:, :50] = np.inf
    assert notes(write(tmp_path / "s.tif", numbers), tmp_path / "out") == []
    empty = read(tmp_path / "out" / "classes.tif")[0] == 255
    np.testing.assert_array_equal(empty, ~np.isfinite(numbers).all(axis=0))


def test_what_is_declared_is_not_noted(tmp_path: Path) -> None:
    numbers = scene()
    numbers[:, *CORNER] = 65_535
    assert notes(write(tmp_path / "a.tif", numbers, nodata=65_535), tmp_path / "a") == []
    path = write(tmp_path / "b.tif", numbers)
    assert notes(path, tmp_path / "b", radiometry={"nodata": 65_535}) == []


@pytest.mark.parametrize("bands", [[0], [0, 1]])
def test_clouds_that_saturate_some_bands_are_not_noted(bands: list[int], tmp_path: Path) -> None:
    numbers = scene()
    for band in bands:
        numbers[band][CORNER] = 65_535
    assert notes(write(tmp_path / "s.tif", numbers), tmp_path / "o") == []


def test_a_date_that_does_not_cover_the_scene_is_noted(tmp_path: Path) -> None:
    paths = [tmp_path / "1.tif", tmp_path / "2.tif"]
    for number, path in enumerate(paths):
        numbers = scene()
        numbers[:, : 72 * number] = 0
        write(path, numbers)
    model = make_model(bands=BANDS, dates=2)
    dates = [{"scene": str(path), "datetime": f"2020-01-0{i}T00:00:00Z"} for i, path in enumerate(paths, start=1)]
    _, result = segment(None, tmp_path / "out", model=model, network=first, dates=dates)
    assert result.data is not None
    (note,) = result.data["notes"]
    assert "% of the scene has the number 0 in all of red, nir, swir16 at date 2." in note
    assert 40 < share(note) <= 48
    write(paths[1], np.where(numbers == 0, -9999, numbers).astype(np.int16))
    with pytest.raises(InvalidInput, match="number -9999 in band red at date 2"):
        segment(None, tmp_path / "other", model=model, network=first, dates=dates)


def test_specks_and_small_patches_are_not_noted() -> None:
    specks = np.full((3, 160, 160), 32_767, np.uint16)
    specks[:, ::7, ::7] = 7
    everywhere = np.ones((160, 160), bool)
    assert not count_blocks(specks, everywhere)
    small = scene()
    small[:, :16, :16] = 32_767
    found = bands_of(3).find_suspects(small, np.ones(small.shape[1:], bool))
    assert found == {(1, 32_767): 256}
    assert list(bands_of(3).notes(found, 150 * 200)) == []


def test_a_single_band_is_noted_for_common_fill_only() -> None:
    everywhere = np.ones((64, 64), bool)
    for dtype, number, noted in (("uint16", 65_535, True), ("float32", 0, True), ("uint16", 17, False)):
        assert bool(count_blocks(np.full((1, 64, 64), number, dtype), everywhere)) == noted


#: Nodata that a file may declare: rioxarray and odc-stac write NaN for float32.
DECLARED = (None, 0.0, -9999.0, 65_535.0, math.nan, math.inf, -math.inf, 1e300)


@given(
    dtype=st.sampled_from(DTYPES),
    nodata=st.sampled_from(DECLARED),
    fill=st.one_of(st.sampled_from([0, 9999, 65_535, -0.2, *DECLARED[4:]]), st.floats(width=32)),
    count=st.integers(1, 3),
)
def test_every_note_on_a_block_has_a_remedy_in_json(dtype: str, nodata: float | None, fill: float, count: int) -> None:
    numbers = scene(dtype)[:count, :72, :72].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        numbers[:, :40, :40] = np.float64(fill).astype(dtype)
    used = BandRadiometry(1, 0, nodata, "file", "file")
    bands = SceneBands(("b",) * count, (1,) * count, Radiometry((used,) * count))
    valid = np.isfinite(numbers).all(axis=0) & (numbers.astype(float) != (np.nan if nodata is None else nodata)).all(
        axis=0
    )
    try:
        said = list(bands.notes(bands.find_suspects(numbers, valid), valid.size))
    except InvalidInput as error:
        said = [str(error)]
    block = numbers[0, 0, 0].item()
    assert [remedy(text)["radiometry"]["nodata"] for text in said] == ([block] if said else [])
    if math.isfinite(block) and block != nodata and count > 1:
        assert said
    assert all(
        ("It replaces the nodata number" in text) == (nodata is not None and math.isfinite(nodata)) for text in said
    )
    json.dumps(bands.radiometry.to_json(), allow_nan=False)


@pytest.mark.parametrize("nodata", [math.nan, math.inf])
def test_a_block_of_zeros_beside_nodata_that_is_no_number_is_noted(nodata: float, tmp_path: Path) -> None:
    numbers = scene("float32")
    numbers[:, *CORNER] = 0
    numbers[:, 100:] = nodata
    path = write(tmp_path / "s.tif", numbers, nodata=nodata)
    (note,) = notes(path, tmp_path / "out")
    assert remedy(note) == {"radiometry": {"nodata": 0}}
    assert note.endswith('"radiometry": {"nodata": 0}.')
    empty = read(tmp_path / "out" / "classes.tif")[0] == 255
    np.testing.assert_array_equal(empty, ~np.isfinite(numbers).all(axis=0))
    json.loads((tmp_path / "out" / "stats.json").read_bytes(), parse_constant=pytest.fail)


def test_pixels_without_data_do_not_count() -> None:
    numbers = np.full((2, 64, 64), 255, np.uint8)
    valid = np.ones((64, 64), bool)
    assert count_blocks(numbers, valid) == {255: 64 * 64}
    valid[:16] = False
    assert count_blocks(numbers, valid) == {255: 48 * 64}


SIDES = st.integers(1, 70)
FILLED = st.sampled_from([0, 9999, 65_535, 1234])


@given(
    count=st.integers(1, 4),
    shape=st.tuples(SIDES, SIDES),
    dtype=st.sampled_from(["uint8", "uint16", "int16", "float32"]),
    seed=st.integers(0, 2**32 - 1),
    bright=st.booleans(),
    dark=st.booleans(),
)
def test_plausible_scenes_are_never_refused(
    count: int, shape: tuple[int, int], dtype: str, seed: int, bright: bool, dark: bool
) -> None:
    random = np.random.default_rng(seed)
    low, high = (0, 255) if dtype == "uint8" else (0, 65_535) if dtype == "uint16" else (-9000, 32_767)
    numbers = random.integers(low, high, (count, *shape), endpoint=True).astype(dtype)
    if bright:  # a saturated cloud
        numbers[:, : shape[0] // 2] = high
    if dark:  # true zeros, and one pixel of noise that looks like fill
        numbers[:, :, : shape[1] // 2] = 0
        numbers[0, 0, 0] = -9999 if dtype in ("int16", "float32") else 1
    found = bands_of(count).find_suspects(numbers, np.ones(shape, bool))
    assert all(pixels <= shape[0] * shape[1] for pixels in found.values())
    if not (bright or dark) and count > 1:
        assert not found


@given(
    count=st.integers(1, 4),
    fill=st.sampled_from(FILL),
    box=st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(15, 40)] * 2),
    data=st.data(),
)
def test_an_area_of_fill_is_refused_wherever_it_lies(
    count: int, fill: tuple[str, float], box: tuple[int, int, int, int], data: st.DataObject
) -> None:
    dtype, number = fill
    band = data.draw(st.integers(0, count - 1))
    numbers = np.random.default_rng(0).integers(-500, 9000, (count, 80, 80)).astype(dtype)
    top, left, height, width = box
    numbers[band, top : top + height, left : left + width] = number
    everywhere = np.ones((80, 80), bool)
    with pytest.raises(InvalidInput, match=rf"in band b{band}, which looks like undeclared nodata"):
        bands_of(count).find_suspects(numbers, everywhere)
    bands_of(count, source="request").find_suspects(numbers, everywhere)
    masked = everywhere.copy()
    masked[top : top + height, left : left + width] = False
    assert not bands_of(count).find_suspects(numbers, masked)


@given(
    dtype=st.sampled_from(["uint8", "uint16", "float32", "float64"]),
    number=st.one_of(st.integers(0, 255), st.floats(-1, 1, width=32)),
    box=st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(15, 40)] * 2),
)
def test_an_area_of_one_number_is_counted_wherever_it_lies(
    dtype: str, number: float, box: tuple[int, int, int, int]
) -> None:
    numbers = np.random.default_rng(0).integers(0, 255, (3, 80, 80)).astype(dtype)
    top, left, height, width = box
    numbers[:, top : top + height, left : left + width] = number if dtype.startswith("float") else int(abs(number))
    (counted,) = count_blocks(numbers, np.ones((80, 80), bool)).items()
    assert counted[0] == numbers[0, top, left]
    assert (height - 14) * (width - 14) <= counted[1] <= height * width


@given(
    count=st.integers(1, 4),
    shape=st.tuples(SIDES, SIDES),
    boxes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 30), FILLED), max_size=3),
    hole=st.tuples(st.integers(0, 70), st.integers(0, 70)),
)
def test_the_blocks_of_one_number_are_those_that_one_finds_by_looking_at_each(
    count: int, shape: tuple[int, int], boxes: list[tuple[int, int, int, int]], hole: tuple[int, int]
) -> None:
    numbers = np.random.default_rng(0).integers(1, 60_000, (count, *shape)).astype(np.uint16)
    for top, left, side, number in boxes:
        numbers[:, top : top + side, left : left + side] = number
    valid = np.ones(shape, bool)
    valid[hole[0] : hole[0] + 3, hole[1] : hole[1] + 3] = False
    seen: Counter[float] = Counter()
    for top, left in product(range(0, shape[0] - 7, 8), range(0, shape[1] - 7, 8)):
        block = np.s_[top : top + 8, left : left + 8]
        found = np.unique(numbers[:, *block])
        if valid[block].all() and len(found) == 1 and (count > 1 or found[0] in (0, 9999, 65_535)):
            seen[found[0].item()] += 64
    if count > 2:
        seen[65_535] = int((valid & (numbers == 65_535).all(axis=0)).sum())
    assert count_blocks(numbers, valid) == +seen


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([np.float32, np.float64]))
def test_a_number_in_a_message_means_the_pixels_number(number: float, dtype: type[np.floating[Any]]) -> None:
    with np.errstate(over="ignore"):
        pixel = dtype(number)
    if np.isfinite(pixel):
        assert dtype(json.loads(in_words(pixel.item()))) == pixel


def test_the_numbers_of_a_patterned_scene_do_not_fill_the_memory() -> None:
    total = SuspectCounts()
    for tile in range(1000):
        add_suspects(total, Counter({Suspect(1, float(1000 + tile * 10 + i)): 64 for i in range(10)}))
        add_suspects(total, Counter({Suspect(1, 0.0): 64}))
    assert len(total) <= 256
    assert total[Suspect(1, 0.0)] == 64_000


#: The numbers that are noted for each file when its nodata is declared, and when the declaration is removed. `None`
#: means refused. The zeros of hls_burnscar_mask.tif are its class 0: a note, not an error.
REAL: dict[str, tuple[list[float], list[float] | None]] = {
    "edge/all_nodata_4band.tif": ([], [0]),
    "edge/extreme_nodata.tif": ([], None),
    "edge/scale_offset_int16.tif": ([], []),
    "edge/south_up.tif": ([], None),
    "geo/dsm_2m.tif": ([], []),
    "geo/hls_burnscar_mask.tif": ([0], [0]),
    "geo/hls_tx_10b_float32.tif": ([], []),
    "geo/l7_olinda_6b_uint8.tif": ([], []),
    "geo/l8_betsiboka_20170118_6b.tif": ([], []),
    "geo/l8_betsiboka_20200127_6b.tif": ([], []),
    "geo/naip_aerial_rgbn.tif": ([], []),
    "geo/s1_gamma0_vv_nodata0.tif": ([], [0]),
    "geo/s2_l2a_aquileia_20190416_6b.tif": ([], [0]),
}


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
@pytest.mark.breadth(every=4)
@pytest.mark.parametrize("name", REAL)
def test_real_scenes_are_noted_or_refused_only_without_their_declaration(name: str, tmp_path: Path) -> None:
    with without_georeference(), rasterio.open(DATA / name) as file:
        numbers = file.read()
    bands = [{**GREY[0], "name": f"band {i}"} for i in range(len(numbers))]
    model = make_model(bands=bands, tile_px=256, default_radiometry=DEFAULTS)
    request: dict[str, Any] = {"bands": list(range(1, len(numbers) + 1)), "outputs": ("stats",)}

    def noted(path: Path, out: str) -> list[float]:
        found = notes(path, tmp_path / out, model, **request)
        empty = "No pixel of the scene has data, so the result is empty."  # the declared nodata of two scenes is all
        return [remedy(note)["radiometry"]["nodata"] for note in found if note != empty]

    declared, bare = REAL[name]
    assert noted(DATA / name, "declared") == declared
    stripped = write_scene(tmp_path / "bare.tif", numbers)
    if bare is None:
        with pytest.raises(InvalidInput, match="looks like undeclared nodata"):
            noted(stripped, "bare")
    else:
        assert noted(stripped, "bare") == bare


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("plausible_mean", [None, 5.0])
@pytest.mark.parametrize(("dtype", "fill"), [("float32", -9999), ("float32", 0), ("int16", -9999), ("uint16", 65_535)])
def test_a_real_scene_whose_border_is_fill_is_never_accepted_in_silence(
    dtype: str, fill: float, plausible_mean: float | None, tmp_path: Path
) -> None:
    with rasterio.open(DATA / "geo" / "s2_l2a_aquileia_20190416_6b.tif") as file:
        reflectance = file.read()[:, 100:400, 100:400] / 65_535
    scale = 1 if dtype == "float32" else 1e-4
    numbers = np.maximum(reflectance / scale, 0.001).astype(dtype)
    numbers[:, :, :60] = fill
    model = make_model(
        bands=[{**GREY[0], "name": f"band {i}"} for i in range(6)], tile_px=512, plausible_mean=plausible_mean
    )
    path, radiometry = write_scene(tmp_path / "s.tif", numbers), {"scale": scale}
    try:
        (said,) = notes(path, tmp_path / "out", model, radiometry=radiometry)
        assert fill in (0, 65_535)
    except InvalidInput as error:
        said = str(error)
        assert fill == -9999
    assert remedy(said) == {"radiometry": {"nodata": fill}}
    assert notes(path, tmp_path / "good", model, radiometry=radiometry | remedy(said)["radiometry"]) == []
    assert (read(tmp_path / "good" / "classes.tif") == 255).sum() == 300 * 60


def test_a_border_thinner_than_a_block_is_counted_where_all_of_several_bands_have_it() -> None:
    bands = np.random.default_rng(1).integers(100, 3000, (6, 256, 256)).astype(np.uint16)
    bands[:, :, :3] = 65_535
    valid = np.ones((256, 256), dtype=bool)
    assert count_blocks(bands, valid)[65_535] == 3 * 256
    bands[0, :, :3] = 100
    assert count_blocks(bands, valid)[65_535] == 0
