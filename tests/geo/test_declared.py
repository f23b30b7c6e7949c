"""Bands and radiometry are what the request, the file or the model declares; nothing is guessed from the numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from penstock.errors import ConfigError, InvalidInput, MissingBands
from penstock.processors.geo.bands import SceneBand, select_bands
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.radiometry import Declared, resolve_radiometry
from penstock.processors.geo.request import RadiometryRequest, SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from tests.geo.scenes import Network, make_model, one_hot, read, segment, write_scene

NEEDED = [
    Band(name="blue", synonyms=("B02",), mean=0, std=1),
    Band(name="nir", synonyms=("nir_narrow", "B8A", "B08"), mean=0, std=1),
]
TEN_THOUSANDTHS = DefaultRadiometry(dtypes=("uint16",), scale=1e-4, nodata=0)


def scene_bands(*names: str | None) -> list[SceneBand]:
    return [SceneBand(i, name) for i, name in enumerate(names, 1)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("blue", "nir"), [1, 2]),
        (("NIR", "green", "Blue"), [3, 1]),
        (("B02", "B03", "B04", "B08", "B8A"), [1, 5]),
        (("b2", "NIR Narrow"), [1, 2]),
        ((None, None), [1, 2]),
        (("Layer 1", "Layer 2"), [1, 2]),
    ],
)
def test_bands_are_found_by_name_then_by_order(names: tuple[str | None, ...], expected: list[int]) -> None:
    assert [band.index for band in select_bands(NEEDED, scene_bands(*names), None)] == expected


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((None,), r"needs 2 bands \(blue, nir\) and the scene has 1: it has 1 \(unnamed\)"),
        ((), "it has none"),
        ((None, None, None), "blue, nir cannot be found by name. Say which bands"),
        (("blue", "green"), "nir cannot be found by name"),
        (("blue", None), "nir cannot be found by name"),
    ],
)
def test_missing_bands_are_named(names: tuple[str | None, ...], sentence: str) -> None:
    with pytest.raises(MissingBands, match=sentence):
        select_bands(NEEDED, scene_bands(*names), None)


def test_two_bands_of_one_name_are_not_chosen_between() -> None:
    with pytest.raises(InvalidInput, match="2 bands called 'blue'"):
        select_bands(NEEDED, scene_bands("blue", "Blue", "nir"), None)


def test_the_request_names_bands_or_numbers_them() -> None:
    present = scene_bands("a", "b", "nir")
    assert [band.index for band in select_bands(NEEDED, present, ["B", 1])] == [2, 1]
    with pytest.raises(InvalidInput, match="names 1 bands, but the model needs 2: blue, nir"):
        select_bands(NEEDED, present, ["a"])
    with pytest.raises(MissingBands, match="asks for 4, which the scene does not have; it has 1 'a', 2 'b', 3 'nir'"):
        select_bands(NEEDED, present, [1, 4])


def declared(dtype: str = "uint16", **changes: Any) -> Declared:
    values = {"scales": (1.0, 1.0), "offsets": (0.0, 0.0), "nodata": (None, None), "masked": False}
    return Declared(dtype, **{**values, **changes})


@pytest.mark.parametrize(
    ("request_", "file", "scale", "offset", "source"),
    [
        (None, declared(), 1e-4, 0, "model default"),
        (None, declared(scales=(2e-5, 2e-5), offsets=(-0.1, -0.1)), 2e-5, -0.1, "file"),
        ({"scale": 0.5}, declared(scales=(2e-5, 2e-5), offsets=(-0.1, -0.1)), 0.5, 0, "request"),
        ({"scale": 0.5, "offset": 3}, declared(), 0.5, 3, "request"),
        ({"nodata": 5}, declared(scales=(2e-5, 2e-5)), 2e-5, 0, "file"),
        ({"scale": 1}, declared("uint8"), 1, 0, "request"),
    ],
)
def test_the_request_comes_before_the_file_before_the_model(
    request_: dict[str, Any] | None, file: Declared, scale: float, offset: float, source: str
) -> None:
    asked = RadiometryRequest(**request_) if request_ else None
    found = resolve_radiometry(asked, file, [TEN_THOUSANDTHS])
    assert (found.scale, found.offset, found.source) == ((scale,) * 2, (offset,) * 2, source)


@pytest.mark.parametrize(
    ("request_", "file", "nodata", "source"),
    [
        (None, declared(), 0, "model default"),
        (None, declared(masked=True), None, "none"),
        (None, declared(nodata=(9, 9)), 9, "file"),
        ({"nodata": 5}, declared(nodata=(9, 9)), 5, "request"),
        (None, declared("float32", scales=(2, 2)), None, "none"),
    ],
)
def test_nodata_is_looked_for_in_the_same_order(
    request_: dict[str, Any] | None, file: Declared, nodata: float | None, source: str
) -> None:
    asked = RadiometryRequest(**request_) if request_ else None
    found = resolve_radiometry(asked, file, [TEN_THOUSANDTHS])
    assert (found.nodata, found.nodata_source) == ((nodata,) * 2, source)


def test_numbers_that_nobody_explains_are_refused() -> None:
    with pytest.raises(InvalidInput, match="what the scene's uint8 numbers mean"):
        resolve_radiometry(None, declared("uint8"), [TEN_THOUSANDTHS])


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({"scales": (1e-4, 0.0)}, "scale tag is 0, .* Give `radiometry`"),
        ({"scales": (math.nan, 1.0)}, "scale tag is nan"),
        ({"offsets": (0.0, math.inf)}, "offset tag is inf"),
    ],
)
def test_tags_that_make_nothing_of_numbers_are_refused_unless_the_request_replaces_them(
    tags: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        resolve_radiometry(None, declared(**tags), [TEN_THOUSANDTHS])
    found = resolve_radiometry(RadiometryRequest(scale=0.5), declared(**tags), [TEN_THOUSANDTHS])
    assert (found.scale, found.offset) == ((0.5, 0.5), (0.0, 0.0))


def test_a_file_whose_scale_tag_is_0_fails_the_job(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 80, 90), 2734, np.uint16), scales=(0.0,))
    with pytest.raises(InvalidInput, match="scale tag is 0"):
        segment(path, tmp_path / "out")
    sink, _ = segment(path, tmp_path / "good", network=bright(0.2), radiometry={"scale": 1e-4})
    assert (read(sink.artifacts["classes.tif"]) == 1).all()


def bright(limit: float) -> Network:
    """Return a network that calls everything above a reflectance class 1."""
    return lambda pixels: one_hot((pixels[0] > limit).astype(int))


def test_uint16_with_an_offset_and_its_harmonised_twin_give_the_same_map(tmp_path: Path) -> None:
    harmonised = np.random.default_rng(5).integers(1, 9000, (1, 80, 90)).astype(np.uint16)
    shifted = (harmonised + 1000).astype(np.uint16)
    dark = np.random.default_rng(6).random((1, 80, 90)) < 0.2
    shifted[dark] = harmonised[dark] = 0
    maps = []
    for name, numbers, radiometry in (
        ("twin", harmonised, {"scale": 1e-4, "nodata": 0}),
        ("shifted", shifted, {"scale": 1e-4, "offset": -0.1, "nodata": 0}),
    ):
        path = write_scene(tmp_path / f"{name}.tif", numbers)
        sink, _ = segment(path, tmp_path / name, network=bright(0.31), radiometry=radiometry)
        maps.append(read(sink.artifacts["classes.tif"]))
    np.testing.assert_array_equal(*maps)
    assert set(np.unique(maps[0])) == {0, 1, 255}


def test_permuted_bands_are_put_in_the_models_order_by_name(tmp_path: Path) -> None:
    numbers = np.random.default_rng(5).integers(0, 5, (3, 80, 90)).astype(np.uint8)
    bands = [{"name": name, "mean": 0.0, "std": 1.0} for name in ("red", "green", "blue")]

    def weigh(pixels: np.ndarray) -> np.ndarray:
        return one_hot((pixels[0] + 2 * pixels[1] + 3 * pixels[2]).astype(int) % 5)

    maps = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        names = [("red", "green", "blue")[i] for i in order]
        path = write_scene(tmp_path / f"{order}.tif", numbers[list(order)], descriptions=names)
        sink, result = segment(path, tmp_path / str(order), network=weigh, model=make_model(bands=bands))
        maps.append(read(sink.artifacts["classes.tif"]))
        assert result.data is not None
        assert [band["index"] for band in result.data["bands"]] == [order.index(i) + 1 for i in range(3)]
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])


def test_a_scale_that_cannot_be_right_fails_the_job_instead_of_making_a_wrong_map(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 80, 90), 2734, np.float32))
    with pytest.raises(InvalidInput, match=r"Band grey has a mean of 2734 .* by model default: scale 1\.0"):
        segment(path, tmp_path / "out", model=make_model(plausible_mean=5))
    sink, _ = segment(
        path, tmp_path / "good", model=make_model(plausible_mean=5), network=bright(0.2), radiometry={"scale": 1e-4}
    )
    assert (read(sink.artifacts["classes.tif"]) == 1).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": []},
        {"outputs": ["classes", "classes"]},
        {"outputs": ["polygons"]},
        {"radiometry": {"offset": 1}},
        {"radiometry": {"scale": 0}},
        {"radiometry": {"scale": float("nan")}},
        {"bands": []},
        {"bands": [0]},
        {"tile": 3},
    ],
)
def test_requests_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SegmentationRequest.model_validate({"scene": "media://x", **wrong})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"halo_px": 3, "stride_px": 2}, "multiples of stride_px"),
        ({"classes": 1}, "classes"),
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"bands": []}, "bands"),
    ],
)
def test_a_model_whose_options_do_not_fit_stops_the_start(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RasterSegmentation(make_model(**wrong))
