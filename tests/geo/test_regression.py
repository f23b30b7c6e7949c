"""Regression of a scene: plan, reading and masks as for classes, with float rasters as output."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt, Result
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.numbers import as_floats
from penstock.processors.testing import check_processor, check_request_module
from tests.support.geo.scenes import Files, Folder, make_model, pattern, read, write_scene

ROOT = Path(__file__).parents[2]
ROUND3 = ROOT.parent / "shared/data/round3"
TIME = "2020-01-27T10:00:00Z"
Network = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
TWO = ({"name": "depth", "unit": "m", "description": "Depth of the water"}, {"name": "heat"})
HANN = {"overlap": "hann", "tile_px": 48}
HALO = {"halo_px": 8, "stride_px": 4, "tile_px": 32}


def value_model(quantities: tuple[dict[str, str], ...] = TWO, **options: Any) -> Model:
    base = make_model(**options)
    options = {name: value for name, value in base.options.items() if name != "classes"}
    return base.model_copy(
        update={"processor": "raster-regression", "options": {**options, "quantities": list(quantities)}}
    )


def itself_and_half(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.stack([pixels[0], pixels[0] / 2])


def answers(prompts: Iterator[Prompt], network: Network = itself_and_half) -> Iterator[Output]:
    return (Output({"values": network(as_floats(prompt).data["pixels"])}) for prompt in prompts)


def estimate(
    scene: Path, folder: Path, model: Model, network: Network = itself_and_half, **request: Any
) -> tuple[Folder, Result]:
    processor = RasterRegression(model)
    prepared = processor.pre_process(processor.request(scene=str(scene), **request), Files())
    sink = Folder(folder)
    return sink, processor.post_process(answers(prepared.prompts, network), prepared.context, sink)


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("cut", [HALO, HANN], ids=["halo", "hann"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 200), (130, 1), (60, 100), (48, 49), (97, 101)], ids=str)
def test_every_head_is_a_band_and_every_value_stays_where_it_is(
    shape: tuple[int, int], cut: dict[str, Any], tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(*shape))
    sink, _ = estimate(scene, tmp_path / "out", value_model(**cut))
    assert set(sink.artifacts) == {"values.tif", "preview.png", "stats.json"}
    numbers = pattern(*shape)[0].astype(np.float32)
    np.testing.assert_array_equal(read(sink.artifacts["values.tif"]), [numbers, numbers / 2])


@pytest.mark.parametrize("cut", [HALO, HANN], ids=["halo", "hann"])
def test_no_data_in_is_no_data_out_and_the_statistics_leave_it_out(cut: dict[str, Any], tmp_path: Path) -> None:
    numbers = pattern(97, 101)
    numbers[:, 30:90, 10:95] = 0
    scene = write_scene(tmp_path / "scene.tif", numbers, nodata=0)
    sink, result = estimate(scene, tmp_path / "out", value_model(**cut))
    first, second = read(sink.artifacts["values.tif"])
    np.testing.assert_array_equal(np.isnan(first), numbers[0] == 0)
    np.testing.assert_array_equal(np.isnan(second), numbers[0] == 0)
    assert result.data is not None
    depth, heat = result.data["values"]
    assert (depth["name"], depth["unit"], depth["count"]) == ("depth", "m", int((numbers > 0).sum()))
    assert (depth["max"], heat["max"]) == (249, 124.5)
    assert depth["mean"] == pytest.approx(numbers[numbers > 0].mean(), rel=1e-12)


def test_what_the_network_cannot_say_is_no_data(tmp_path: Path) -> None:
    def doubtful(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.stack([np.where(pixels[0] > 100, np.nan, pixels[0]), np.where(pixels[0] > 100, np.inf, 1)])

    scene = write_scene(tmp_path / "scene.tif", pattern(70, 60))
    sink, result = estimate(scene, tmp_path / "out", value_model(**HALO), doubtful)
    values = read(sink.artifacts["values.tif"])
    np.testing.assert_array_equal(np.isnan(values), np.stack([pattern(70, 60)[0] > 100] * 2))
    assert result.data is not None
    assert result.data["values"][1]["max"] == 1


def test_the_raster_says_what_its_bands_are(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(70, 60))
    sink, _ = estimate(scene, tmp_path / "out", value_model(**HALO), outputs=("values", "item"), datetime=TIME)
    with rasterio.open(sink.artifacts["values.tif"]) as file:
        assert (file.descriptions, file.units) == (("Depth of the water", "heat"), ("m", None))
    assert set(sink.artifacts) == {"values.tif", "item.json", "model.json"}


def test_classes_of_another_model_are_not_taken_for_values(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(40, 40))
    processor = RasterRegression(value_model(**HALO))
    prepared = processor.pre_process(processor.request(scene=str(scene)), Files())
    outputs = (Output({"probability": prompt.data["pixels"]}) for prompt in prepared.prompts)
    with pytest.raises(ProcessorFailed, match="returned probability, not `values`"):
        processor.post_process(outputs, prepared.context, Folder(tmp_path / "out"))


@pytest.mark.breadth(but=("hann",))
@pytest.mark.parametrize("cut", [HALO, HANN], ids=["halo", "hann"])
def test_the_processor_keeps_the_contract(cut: dict[str, Any], tmp_path: Path) -> None:
    model = value_model(**cut, limits=Limits(max_pixels=100_000))
    files = {
        "media://1": write_scene(tmp_path / "1.tif", pattern(211, 99)),
        "media://2": write_scene(tmp_path / "2.tif", pattern(90, 150), nodata=3),
    }
    done = check_processor(
        RasterRegression(model),
        {"scene": "media://1"},
        files,
        engine=answers,
        other={"scene": "media://2", "outputs": ["values"]},
        limits=model.limits,
        count_is_a_bound=True,
    )
    assert set(done.artifacts) == {"values.tif", "preview.png", "stats.json"}
    assert done.saved
    check_request_module(RasterRegression(model))


def test_it_is_found_by_its_name() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["penstock.io_processors"]
    module, _, name = points["raster-regression"].partition(":")
    assert getattr(import_module(module), name) is RasterRegression


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"halo_px": 8}, 'halo_px requires overlap = "halo"'),
        ({"halo_exact": True}, 'halo_exact requires overlap = "halo"'),
        ({"overlap_px": 23}, "at least half of tile_px"),
        ({"overlap_px": 48}, "less than tile_px"),
        ({"overlap": "halo", "overlap_px": 24, "halo_px": 0}, 'overlap_px requires overlap = "hann"'),
    ],
)
def test_an_overlap_that_cannot_be_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RasterRegression(value_model(**{**HANN, **options}))


def test_a_halo_must_be_said() -> None:
    model = value_model(**HALO)
    options = {name: value for name, value in model.options.items() if name not in ("halo_px", "stride_px")}
    with pytest.raises(ConfigError, match='overlap = "halo" requires halo_px'):
        RasterRegression(model.model_copy(update={"options": options}))


@pytest.mark.skipif(not ROUND3.is_dir(), reason="needs the shared data beside the checkout, ../shared/data/round3")
def test_a_published_record_of_reflectance_x_10000_reads_a_scene_with_a_scale_tag(tmp_path: Path) -> None:
    model = read_catalogue(ROUND3 / "reflectance_10000.toml")["prx"]
    numbers = read(ROUND3 / "hls_scale_tag.tif")
    sink, result = estimate(ROUND3 / "hls_scale_tag.tif", tmp_path / "out", model, network=lambda pixels: pixels)
    right, _ = estimate(ROUND3 / "right.tif", tmp_path / "right", model, network=lambda pixels: pixels)
    means = np.array([band["mean"] for band in model.options["bands"]])[:, None, None]
    values, expected = read(sink.artifacts["values.tif"]), read(right.artifacts["values.tif"])
    np.testing.assert_allclose(values * 1000 + means, numbers, atol=1e-2)
    known = (read(ROUND3 / "right.tif") > 0).all(axis=0)
    np.testing.assert_array_equal(values[:, known], expected[:, known])
    assert result.data is not None
    assert result.data["radiometry"]["scale"] == 1
    assert result.data["radiometry"]["source"] == "file"
