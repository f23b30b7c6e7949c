"""Bands and radiometry come from declarations of request, metadata, file or model; numbers are never used to guess."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from penstock.errors import ConfigError, InvalidInput, MissingBands
from penstock.processors.geo.options import Band, DefaultRadiometry
from penstock.processors.geo.read.band_identity import SceneBand
from penstock.processors.geo.read.bands import select_bands
from penstock.processors.geo.read.radiometry import (
    BandRadiometry,
    Declaration,
    Source,
    from_request,
    from_tags,
    resolve_radiometry,
)
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.scene_request import RadiometryRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from tests.support.geo.scenes import Network, make_model, one_hot, read, segment, write_scene

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
    assert [band.index for band in select_bands(NEEDED, scene_bands(*names), None).bands] == expected


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((None,), r"needs 2 bands \(blue, nir\), but the scene has 1: 1 \(unnamed\)"),
        ((), "the scene has 0: none"),
        ((None, None, None), "No band matches the name of blue, nir. Give the bands"),
        (("blue", "green"), "No band matches the name of nir"),
        (("blue", None), "No band matches the name of nir"),
    ],
)
def test_missing_bands_are_named(names: tuple[str | None, ...], sentence: str) -> None:
    with pytest.raises(MissingBands, match=sentence):
        select_bands(NEEDED, scene_bands(*names), None)


def test_two_bands_of_one_name_are_not_chosen_between() -> None:
    with pytest.raises(InvalidInput, match="2 bands named 'blue'"):
        select_bands(NEEDED, scene_bands("blue", "Blue", "nir"), None)


def test_the_request_names_bands_or_numbers_them() -> None:
    present = scene_bands("a", "b", "nir")
    assert [band.index for band in select_bands(NEEDED, present, ["B", 1]).bands] == [2, 1]
    with pytest.raises(InvalidInput, match="names 1 band, but the model needs 2: blue, nir"):
        select_bands(NEEDED, present, ["a"])
    with pytest.raises(MissingBands, match="names 4, which is not in the scene; the scene has 1 'a', 2 'b', 3 'nir'"):
        select_bands(NEEDED, present, [1, 4])


def resolve(
    request: dict[str, Any] | None,
    *declarations: tuple[Source, Declaration],
    dtype: str = "uint16",
    masked: bool = False,
) -> BandRadiometry:
    everyone = [("request", from_request(RadiometryRequest(**request)))] if request else []
    return resolve_radiometry([*everyone, *declarations], dtype, [TEN_THOUSANDTHS], mask="alpha" if masked else None)


SIDECAR: tuple[Source, Declaration] = ("sidecar", Declaration(1e-4, -0.1, 0))
ITEM: tuple[Source, Declaration] = ("stac", Declaration(1e-3, 0.5, 7))
TAGS: tuple[Source, Declaration] = ("file", Declaration(2e-5, -0.2, 9))


@pytest.mark.parametrize(
    ("request_", "declarations", "scale", "offset", "source"),
    [
        (None, (), 1e-4, 0, "model default"),
        (None, (TAGS,), 2e-5, -0.2, "file"),
        (None, (ITEM, TAGS), 1e-3, 0.5, "stac"),
        (None, (SIDECAR, ITEM, TAGS), 1e-4, -0.1, "sidecar"),
        ({"scale": 0.5}, (SIDECAR, ITEM, TAGS), 0.5, 0, "request"),
        ({"scale": 0.5, "offset": 3}, (), 0.5, 3, "request"),
        ({"nodata": 5}, (TAGS,), 2e-5, -0.2, "file"),
        (None, (("sidecar", Declaration(nodata=3)), TAGS), 2e-5, -0.2, "file"),
    ],
)
def test_the_request_comes_before_documents_before_the_file_before_the_model(
    request_: dict[str, Any] | None, declarations: tuple[Any, ...], scale: float, offset: float, source: str
) -> None:
    found = resolve(request_, *declarations)
    assert (found.scale, found.offset, found.source) == (scale, offset, source)


@pytest.mark.parametrize(
    ("request_", "declarations", "masked", "nodata", "source"),
    [
        (None, (), False, 0, "model default"),
        (None, (), True, None, "none"),
        (None, (TAGS,), False, 9, "file"),
        (None, (TAGS,), True, 9, "file"),
        (None, (ITEM, TAGS), False, 7, "stac"),
        (None, (("stac", Declaration(1e-3)), TAGS), False, 9, "file"),
        ({"nodata": 5}, (SIDECAR, TAGS), False, 5, "request"),
    ],
)
def test_nodata_is_looked_for_in_the_same_order(
    request_: dict[str, Any] | None, declarations: tuple[Any, ...], masked: bool, nodata: float | None, source: str
) -> None:
    found = resolve(request_, *declarations, masked=masked)
    assert (found.nodata, found.nodata_source) == (nodata, source)


def test_tags_that_change_nothing_say_nothing_but_one_that_does_speaks_for_the_file() -> None:
    assert from_tags([1, 1], [0, 0], [None, 4]) == (
        Declaration(None, 0, None),
        Declaration(None, 0, 4),
    )
    assert from_tags([1, 2], [0, 0], [None, 4]) == (Declaration(1, 0, None), Declaration(2, 0, 4))
    assert from_tags([1, 1], [0, 3], [None, 4]) == (Declaration(1, 0, None), Declaration(1, 3, 4))


@pytest.mark.parametrize("source", ["sidecar", "stac", "file"])
def test_declared_reflectance_is_multiplied_into_the_model_s_unit(source: Source) -> None:
    hls = DefaultRadiometry(dtypes=("int16",), scale=1.0, nodata=-9999)
    found = resolve_radiometry([(source, Declaration(1e-4, -0.1, -9999))], "int16", [hls], unit=10_000)
    assert (found.scale, found.offset, found.nodata) == (1.0, -1000.0, -9999)
    by_default = resolve_radiometry([(source, Declaration())], "int16", [hls], unit=10_000)
    assert (by_default.scale, by_default.offset, by_default.source) == (1.0, 0.0, "model default")
    asked = resolve_radiometry([("request", Declaration(0.5, 3.0))], "int16", [hls], unit=10_000)
    assert (asked.scale, asked.offset) == (0.5, 3.0)


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint16"])
def test_the_message_of_unknown_numbers_is_in_the_model_s_unit_for_every_type(dtype: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        resolve_radiometry([], dtype, [], unit=10_000)
    assert refused.value.detail.endswith(
        'Give "radiometry": {"scale": 10000, "offset": 0} for reflectance from 0 to 1, '
        '"radiometry": {"scale": 1, "offset": 0} for reflectance x 10000.'
    )


def test_a_record_of_reflectance_x_10000_takes_a_file_with_a_scale_tag(tmp_path: Path) -> None:
    numbers = np.random.default_rng(5).integers(100, 4000, (1, 80, 90)).astype(np.int16)
    model = make_model(reflectance=10_000.0, default_radiometry=[{"dtypes": ["int16"], "scale": 1.0}])
    maps = []
    for name, scales in (("bare", None), ("tagged", (1e-4,))):
        path = write_scene(tmp_path / f"{name}.tif", numbers, scales=scales)
        sink, _ = segment(path, tmp_path / name, network=bright(2000), model=model, outputs=("classes",))
        maps.append(read(sink.artifacts["classes.tif"]))
    np.testing.assert_array_equal(*maps)
    np.testing.assert_array_equal(maps[0] == 1, numbers > 2000)


def test_numbers_that_nobody_explains_are_refused() -> None:
    with pytest.raises(InvalidInput, match="radiometry of the scene's uint8 numbers is unknown"):
        resolve(None, dtype="uint8")
    with pytest.raises(InvalidInput, match="radiometry of the scene's float32 numbers is unknown"):
        resolve({"nodata": 3}, dtype="float32")


def test_a_sidecar_does_not_explain_what_was_scaled_before() -> None:
    with pytest.raises(InvalidInput, match="the scene is float32 and was already scaled"):
        resolve(None, SIDECAR, dtype="float32")
    assert resolve({"scale": 1}, SIDECAR, dtype="float32").scale == 1


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (("file", Declaration(0.0)), r"scene's own tag of scale is 0, .* Override it with `radiometry`"),
        (("file", Declaration(math.nan)), "scale is nan"),
        (("file", Declaration(1.0, math.inf)), "offset is inf"),
        (("stac", Declaration(0.0)), "STAC item's scale is 0"),
        (("sidecar", Declaration(math.inf)), "sidecar's scale is inf"),
    ],
)
def test_what_makes_nothing_of_numbers_is_refused_unless_the_request_replaces_it(
    said: tuple[Source, Declaration], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        resolve(None, said)
    found = resolve({"scale": 0.5}, said)
    assert (found.scale, found.offset) == (0.5, 0.0)


def test_a_file_whose_scale_tag_is_0_fails_the_job(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 80, 90), 2734, np.uint16), scales=(0.0,))
    with pytest.raises(InvalidInput, match="scale is 0"):
        segment(path, tmp_path / "out")
    sink, _ = segment(path, tmp_path / "good", network=bright(0.2), radiometry={"scale": 1e-4})
    assert (read(sink.artifacts["classes.tif"]) == 1).all()


def bright(limit: float) -> Network:
    """Return a network that assigns class 1 above a reflectance."""
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


def test_the_error_of_a_high_mean_names_a_suspected_nodata_number(tmp_path: Path) -> None:
    model = make_model(plausible_mean=5, default_radiometry=[{"dtypes": ["uint16"], "scale": 1e-4}])
    numbers = np.full((1, 80, 90), 65_535, np.uint16)
    with pytest.raises(InvalidInput, match=r'has a mean of 6.554, .* "radiometry": \{"nodata": 65535\}\.$'):
        segment(write_scene(tmp_path / "s.tif", numbers), tmp_path / "out", model=model)
    with pytest.raises(InvalidInput, match=r"Give the product's scale and offset as `radiometry`\.$"):
        segment(write_scene(tmp_path / "t.tif", numbers - 1), tmp_path / "other", model=model)


def test_a_scale_that_cannot_be_right_fails_the_job_instead_of_making_a_wrong_map(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 80, 90), 2734, np.float32))
    with pytest.raises(InvalidInput, match=r"Band grey has a mean of 2734, .* source: model default, scale 1\.0"):
        segment(path, tmp_path / "out", model=make_model(plausible_mean=5))
    sink, _ = segment(
        path, tmp_path / "good", model=make_model(plausible_mean=5), network=bright(0.2), radiometry={"scale": 1e-4}
    )
    assert (read(sink.artifacts["classes.tif"]) == 1).all()


@pytest.mark.parametrize(
    ("dtype", "scale", "nodata", "named"),
    [
        ("int16", 1e-4, -9999, "-9999"),
        ("int16", 1e-4, -32768, "-32768"),
        ("float32", 1, -9999, "-9999.0"),
        ("float32", 1, -1, "-1.0"),
        ("float32", 1, -3.4e38, "-3.39999"),
    ],
)
@pytest.mark.parametrize("rows", [1, 60])
def test_undeclared_nodata_fails_the_job_and_is_named(
    dtype: str, scale: float, nodata: float, named: str, rows: int, tmp_path: Path
) -> None:
    numbers = np.full((1, 64, 64), 0.2 / scale).astype(dtype)
    numbers[0, :rows, :10] = nodata
    path, model = write_scene(tmp_path / "s.tif", numbers), make_model(plausible_mean=5)
    with pytest.raises(InvalidInput, match=f"Band grey cannot be reflectance.*number {named}") as refused:
        segment(path, tmp_path / "out", model=model, radiometry={"scale": scale})
    assert f'"nodata": {named}' in str(refused.value)
    assert '"scale"' not in str(refused.value)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/radiometry/nodata"]
    radiometry = {"scale": scale, "nodata": nodata}
    sink, _ = segment(path, tmp_path / "good", model=model, network=bright(0.2), radiometry=radiometry)
    assert (read(sink.artifacts["classes.tif"]) == 255).sum() == rows * 10


def test_a_mean_far_below_zero_fails_the_job_too(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 64, 64), -0.3, np.float32))
    with pytest.raises(InvalidInput, match=r"the mean is -0\.3 \(.* number -0\.3"):
        segment(path, tmp_path / "out", model=make_model(plausible_mean=5))


def test_slightly_negative_reflectance_and_single_pixels_pass(tmp_path: Path) -> None:
    numbers = np.full((1, 64, 64), 0, np.uint16)
    numbers[0, 0, 0] = 7000
    radiometry = {"scale": 1e-4, "offset": -0.1}
    model = make_model(plausible_mean=5)
    segment(write_scene(tmp_path / "dark.tif", numbers), tmp_path / "dark", model=model, radiometry=radiometry)
    speck = np.full((1, 64, 64), 0.1, np.float32)
    speck[0, 5, 5] = -2
    segment(write_scene(tmp_path / "speck.tif", speck), tmp_path / "speck", model=model)


@pytest.mark.parametrize(("low", "passes"), [(4, True), (5, False)])
def test_a_few_low_pixels_pass_in_a_sliver_of_data_too(low: int, passes: bool, tmp_path: Path) -> None:
    numbers = np.zeros((1, 64, 64), np.float32)
    numbers[0, :, 0] = 0.1
    numbers[0, :low, 0] = -0.9
    path, model = write_scene(tmp_path / "sliver.tif", numbers, nodata=0), make_model(plausible_mean=5)
    with nullcontext() if passes else pytest.raises(InvalidInput, match=r"7\.81 % of a tile is below .* -0\.8999"):
        segment(path, tmp_path / "out", model=model)


def test_other_units_than_reflectance_may_be_negative(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "s.tif", np.full((1, 64, 64), -40, np.float32))
    segment(path, tmp_path / "out", model=make_model())


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": []},
        {"outputs": ["classes", "classes"]},
        {"outputs": ["contours"]},
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
        ({"colour": "red"}, "colour: is not known"),
        ({"bands": []}, "bands"),
        ({"threads": 1}, "only the runner 'torch' has options.threads"),
    ],
)
def test_a_model_whose_options_do_not_fit_stops_the_start(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RasterSegmentation(make_model(**wrong))
