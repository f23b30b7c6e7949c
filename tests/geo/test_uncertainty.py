"""Uncertainty by mirrored copies equals that of whole scenes, flipped, mapped and flipped back in numpy."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError
from rio_cogeo.cogeo import cog_validate
from torch import nn

from penstock.errors import MediaTooLarge
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt, Result
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.regression import RasterRegression
from penstock.processors.geo.request import DetectionRequest, EmbeddingRequest, SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.write.uncertainty import class_uncertainty, value_uncertainty
from penstock.processors.numbers import as_floats
from penstock.processors.prompt_names import REDUCE
from tests.geo.test_parts import parts_of, run_part
from tests.geo.test_resume import HALO, HANN, MODELS, TIME, Job, Killed, contents, holed, plan
from tests.geo.test_stitch import averaged_whole
from tests.support.geo.scenes import (
    NORTH_UP,
    Files,
    Folder,
    Network,
    make_model,
    read,
    segment,
    write_scene,
)

#: The four flips of (..., rows, columns), each its own inverse.
FLIPS: tuple[Callable[[npt.NDArray[Any]], npt.NDArray[Any]], ...] = (
    lambda a: a,
    lambda a: a[..., ::-1],
    lambda a: a[..., ::-1, :],
    lambda a: a[..., ::-1, ::-1],
)
SHAPES = [(1, 1), (1, 300), (60, 250), (33, 31), (211, 199)]


def lopsided_net(seed: int) -> Network:
    """Return a network with stride 4, radius 11 px and other weights on each side; its sums are exact."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((1, 4), (4, 4), (4, 4), (4, 5))]
    for layer in layers:
        layer.weight.data = torch.randint(1, 9, layer.weight.shape).double()
    first, second, third, last = layers
    pool = nn.MaxPool2d(2)
    net = nn.Sequential(first, pool, second, pool, third, nn.Upsample(scale_factor=4), last)

    def probabilities(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            total = net(torch.from_numpy(pixels.copy()).double()[None])[0].numpy() // 3000 % 23 + 1
        return (total / total.sum(axis=0)).astype(np.float32)

    return probabilities


def on_whole_scenes(scene: npt.NDArray[Any], network: Network, stride: int) -> npt.NDArray[np.float32]:
    """Return the four answers (flips, channels, rows, columns) to the whole scene, padded to the stride with zeros."""
    _, height, width = scene.shape
    padded = np.pad(scene, ((0, 0), (0, -height % stride), (0, -width % stride))).astype(np.float32)
    return np.stack([flip(network(flip(padded))) for flip in FLIPS])[..., :height, :width]


def spread(answers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the steps of 1/508 of the class of the first of four answers (flips, classes, rows, columns)."""
    rows, columns = np.indices(answers.shape[2:])
    own = answers.astype(np.float64)[:, answers[0].argmax(axis=0), rows, columns]
    deviation = np.sqrt(((own - own.mean(axis=0)) ** 2).mean(axis=0))
    return np.rint(508 * deviation).astype(np.uint8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_that_of_the_whole_scene_flipped(shape: tuple[int, int], tmp_path: Path) -> None:
    scene, network = np.random.default_rng(1).integers(1, 250, (1, *shape), np.uint8), lopsided_net(1)
    scene[:, 20:45, 10:70] = 0
    path = write_scene(tmp_path / "scene.tif", scene, nodata=0)
    model = make_model(halo_px=12, stride_px=4, tile_px=32)
    outputs = ("classes", "probability", "confidence", "stats")
    plain, same = segment(path, tmp_path / "plain", network=network, model=model, outputs=outputs)
    sink, result = segment(
        path, tmp_path / "out", network=network, model=model, outputs=outputs, uncertainty="flips", batch=3
    )
    answers, valid = on_whole_scenes(scene, network, 4), scene[0] > 0
    expected = np.where(valid, spread(answers), 255)
    np.testing.assert_array_equal(read(sink.artifacts["uncertainty.tif"])[0], expected)
    for name in ("classes.tif", "probability.tif", "confidence.tif"):
        assert sink.artifacts[name].read_bytes() == plain.artifacts[name].read_bytes()
    assert set(sink.artifacts) - set(plain.artifacts) == {"uncertainty.tif"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(sink.artifacts), "scratch files are left"
    assert result.data is not None
    assert same.data is not None
    found = result.data["uncertainty"]
    assert {name: value for name, value in result.data.items() if name != "uncertainty"} == same.data
    assert json.loads(sink.artifacts["stats.json"].read_text())["uncertainty"] == found
    ids = answers.argmax(axis=1)
    unstable = valid & (ids != ids[0]).any(axis=0)
    assert (found["unstable_pixels"], found["passes"]) == (int(unstable.sum()), 4)
    assert found["mean"] == pytest.approx(expected[valid].mean() / 508, abs=1e-6)
    assert found["unstable_percent"] == round(100 * unstable.sum() / valid.sum(), 4)
    for label in found["classes"]:
        pixels = int((unstable & (ids[0] == label["id"])).sum())
        assert (label["unstable_pixels"], label["unstable_area_m2"]) == (pixels, pytest.approx(900 * pixels, rel=2e-3))
    if unstable.size > 1000:
        assert 0.2 < unstable.sum() / valid.sum() < 1, "the network must be sensitive to flips"
        assert len(np.unique(expected)) > 20


def test_a_halo_one_stride_less_does_not(tmp_path: Path) -> None:
    scene, network = np.random.default_rng(1).integers(1, 250, (1, 211, 199), np.uint8), lopsided_net(1)
    path = write_scene(tmp_path / "scene.tif", scene)
    model = make_model(halo_px=8, stride_px=4, tile_px=32)
    sink, _ = segment(path, tmp_path / "out", network=network, model=model, uncertainty="flips")
    assert (read(sink.artifacts["uncertainty.tif"])[0] != spread(on_whole_scenes(scene, network, 4))).any()


def test_the_raster_says_what_it_is(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", holed(), nodata=0)
    sink, _ = segment(path, tmp_path / "out", uncertainty="flips", outputs=("classes", "item"), datetime=TIME)
    raster = sink.artifacts["uncertainty.tif"]
    assert cog_validate(raster, strict=True) == (True, [], [])
    with rasterio.open(raster) as file:
        assert (file.count, file.dtypes, file.nodata, file.scales) == (1, ("uint8",), 255, (1 / 508,))
        assert file.descriptions == ("standard deviation of the probability of the class",)
        assert (file.read(1, masked=True) == 0).all(), "a network of single pixels sees no difference"
    asset = json.loads(sink.artifacts["item.json"].read_text())["assets"]["uncertainty.tif"]
    assert (asset["raster:scale"], asset["nodata"], len(asset["bands"])) == (1 / 508, 255, 1)


def test_an_empty_scene_has_no_uncertainty(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", np.zeros((1, 40, 50), np.uint8), nodata=0)
    sink, result = segment(path, tmp_path / "out", uncertainty="flips")
    assert (read(sink.artifacts["uncertainty.tif"]) == 255).all()
    assert result.data is not None
    found = result.data["uncertainty"]
    assert (found["mean"], found["unstable_pixels"], found["unstable_percent"]) == (None, 0, None)


def test_the_largest_spread_is_the_largest_number() -> None:
    sure = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)[:, :, None, None]
    found = class_uncertainty(sure, np.ones((1, 1), bool))
    assert (found["uncertainty"].item(), found["stability"].item()) == (254, 1)
    alike = class_uncertainty(np.repeat(sure[:1], 4, axis=0), np.ones((1, 1), bool))
    assert (alike["uncertainty"].item(), alike["stability"].item()) == (0, 0)
    values = value_uncertainty(np.array([1, 3, np.nan, np.inf], np.float32).reshape(4, 1, 1, 1), np.ones((1, 1), bool))
    assert np.isnan(values["uncertainty"]).all()


def quantities(count: int, **options: Any) -> Model:
    base = make_model(**options)
    own = {name: value for name, value in base.options.items() if name != "classes"}
    named = [{"name": f"q{at}", "unit": "m"} for at in range(count)]
    return base.model_copy(update={"processor": "raster-regression", "options": {**own, "quantities": named}})


def estimate(scene: Path, folder: Path, model: Model, network: Network, **request: Any) -> tuple[Folder, Result]:
    def answers(prompts: Iterator[Prompt]) -> Iterator[Output]:
        return (Output({"values": network(as_floats(prompt).data["pixels"])}) for prompt in prompts)

    processor, sink = RasterRegression(model), Folder(folder)
    prepared = processor.pre_process(processor.request(scene=str(scene), **request), Files())
    return sink, processor.post_process(answers(prepared.prompts), prepared.context, sink)


def by_place(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return two quantities that depend on the whole tile and on the place in it, as those of a transformer."""
    _, height, width = pixels.shape
    ramp = np.linspace(0, 1, height)[:, None] + np.linspace(0, 2, width) ** 2
    mean = pixels.mean(dtype=np.float64)
    return np.stack([pixels[0] * 0.3 + ramp, ramp * mean / 100]).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (30, 90), (97, 101)], ids=str)
def test_means_of_overlapping_tiles_are_compared_and_not_tiles(shape: tuple[int, int], tmp_path: Path) -> None:
    scene = np.random.default_rng(2).integers(1, 250, (1, *shape), np.uint8)
    path = write_scene(tmp_path / "scene.tif", scene)
    model = quantities(2, **HANN)
    plain, same = estimate(path, tmp_path / "plain", model, by_place)
    sink, result = estimate(path, tmp_path / "out", model, by_place, uncertainty="flips")
    assert sink.artifacts["values.tif"].read_bytes() == plain.artifacts["values.tif"].read_bytes()
    whole = [averaged_whole(scene, lambda tile, flip=flip: flip(by_place(flip(tile))), 48, 24) for flip in FLIPS]  # type: ignore[misc]
    expected = np.stack(whole).astype(np.float32).std(axis=0, dtype=np.float64)
    got = read(sink.artifacts["uncertainty.tif"])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert result.data is not None
    assert same.data is not None
    for band, entry in zip(got, result.data["uncertainty"]["values"], strict=True):
        assert entry["mean"] == pytest.approx(band.mean(dtype=np.float64), rel=1e-9)
        assert entry["max"] == band.max()
    assert result.data["values"] == same.data["values"]
    with rasterio.open(sink.artifacts["uncertainty.tif"]) as file:
        assert (file.dtypes, file.units) == (("float32", "float32"), ("m", "m"))
        assert file.descriptions == ("standard deviation of q0", "standard deviation of q1")


@pytest.mark.breadth(but=("halo", "hann in panels"))
@pytest.mark.parametrize("name", MODELS)
def test_killed_or_shared_it_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", holed(), nodata=0)
    given: dict[str, Any] = {"outputs": ("classes", "stats"), "uncertainty": "flips"}
    plain = Job(scene, tmp_path / "plain", MODELS[name], outputs=("classes",))
    labels = contents(plain.attempt())["classes.tif"]
    whole = Job(scene, tmp_path / "whole", MODELS[name], **given)
    expected = contents(whole.attempt())
    assert expected["classes.tif"] == labels
    numbers = read(tmp_path / "whole/1/uncertainty.tif")
    assert (numbers[numbers < 255] > 0).mean() > 0.5
    # Narrower panels may send a tile across their edge more often.
    assert sum(whole.sent) >= 4 * sum(plain.sent) if "panels" not in name else sum(whole.sent) > sum(plain.sent)
    killed = Job(scene, tmp_path / "killed", MODELS[name], **given)
    while True:
        try:
            assert contents(killed.attempt(1)) == expected
            break
        except Killed:
            continue
    assert killed.attempts > 2
    shared = Job(scene, tmp_path / "shared", MODELS[name], **given)
    for part in reversed(parts_of(shared, 3)):
        prepared = run_part(shared, part)
        assert prepared.count % 4 == 0
    assert len(shared.saved) == len(plan(shared).wanted_strips)
    assert contents(shared.attempt()) == expected
    assert shared.sent[-1] == 0
    other = Job(scene, tmp_path / "other", MODELS[name], outputs=("classes", "stats"))
    other.saved = shared.saved
    other.attempt()
    assert sum(other.sent) == sum(plain.sent), "strips of a job without uncertainty are others"


def test_progress_counts_every_pass(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", holed() | 1)
    job = Job(scene, tmp_path / "job", MODELS["halo"], uncertainty="flips")
    with pytest.raises(Killed):
        job.attempt(2)
    job.attempt()
    (every, _), (left, done) = job.announced
    assert (every, done) == (4 * plan(job).count(), 2 * 4 * 6)
    assert left == every - done


def test_whole_scores_are_asked_for(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", holed())
    processor = RasterSegmentation(make_model())
    for more, reduced in ({}, True), ({"uncertainty": "flips"}, False):
        prepared = processor.pre_process(processor.request(scene=str(scene), **more), Files())
        assert {REDUCE in prompt.data for prompt in prepared.prompts} == {reduced}


def test_passes_count_for_the_most_tiles(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", holed())
    count = plan(Job(scene, tmp_path / "job", MODELS["halo"])).count()
    model = make_model(**HALO, limits=Limits(max_tiles=4 * count - 1))
    segment(scene, tmp_path / "plain", model=model)
    with pytest.raises(MediaTooLarge, match=f"has {4 * count} tiles with mirrored ones; .* at most {4 * count - 1}"):
        segment(scene, tmp_path / "out", model=model, uncertainty="flips")


def test_each_date_of_a_series_and_the_later_scene_of_a_change_have_it(tmp_path: Path) -> None:
    model, network = make_model(halo_px=12, stride_px=4, tile_px=64), lopsided_net(3)
    paths, single = [], []
    for at in range(2):
        numbers = np.random.default_rng(at).integers(1, 250, (1, 90, 100), np.uint8)
        paths.append(write_scene(tmp_path / f"{at}.tif", numbers))
        sink, result = segment(
            paths[at], tmp_path / f"alone {at}", network=network, model=model, uncertainty="flips", outputs=("classes",)
        )
        single.append((sink.artifacts["uncertainty.tif"].read_bytes(), (result.data or {})["uncertainty"]))
    dates = [{"scene": str(path), "datetime": f"2020-01-0{at + 1}T00:00:00Z"} for at, path in enumerate(paths)]
    given: dict[str, Any] = {"network": network, "model": model, "uncertainty": "flips"}
    sums = {"of": ["class 1"], "ignore": []}
    series, result = segment(None, tmp_path / "series", dates=dates, series=sums, outputs=("classes", "stats"), **given)
    named = [series.artifacts[f"0{at + 1}-2020-01-0{at + 1}-uncertainty.tif"].read_bytes() for at in range(2)]
    assert named == [data for data, _ in single]
    assert [date["uncertainty"] for date in (result.data or {})["dates"]] == [found for _, found in single]
    asked = {"before": {"scene": str(paths[0])}, "of": ["class 1"], "ignore": []}
    change, result = segment(paths[1], tmp_path / "change", change=asked, outputs=("classes", "stats"), **given)
    assert change.artifacts["uncertainty.tif"].read_bytes() == single[1][0]
    assert (result.data or {})["uncertainty"] == single[1][1]
    assert "before-uncertainty.tif" not in change.artifacts
    assert "before-classes.tif" in change.artifacts


def test_zones_have_the_share_of_their_pixels(tmp_path: Path) -> None:
    scene, network = np.random.default_rng(4).integers(1, 250, (1, 80, 90), np.uint8), lopsided_net(4)
    path = write_scene(tmp_path / "scene.tif", scene)
    (left, top), (right, bottom) = NORTH_UP @ (10, 20), NORTH_UP @ (50, 64)
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    zones = {
        "type": "FeatureCollection",
        "crs": {"type": "name", "properties": {"name": "EPSG:32633"}},
        "features": [
            {"type": "Feature", "properties": {"name": "a"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        ],
    }
    model = make_model(halo_px=12, stride_px=4, tile_px=64)
    sink, result = segment(path, tmp_path / "out", network=network, model=model, zones=zones, uncertainty="flips")
    ids = on_whole_scenes(scene, network, 4)[..., 20:64, 10:50].argmax(axis=1)
    unstable = int((ids != ids[0]).any(axis=0).sum())
    [zone] = (result.data or {})["zones"]
    stable, moved = zone["uncertainty"]["classes"]
    assert (stable["name"], moved["name"]) == ("stable", "unstable")
    assert moved["pixels"] == pytest.approx(unstable, abs=1e-3)
    assert moved["percent"] == pytest.approx(100 * unstable / (44 * 40), abs=1e-3)
    [row] = csv.DictReader(sink.artifacts["zones.csv"].read_text("utf-8-sig").splitlines())
    assert float(row["uncertainty: unstable pixels"]) == moved["pixels"]
    values, result = estimate(
        path, tmp_path / "values", quantities(2, **HALO), lambda tile: tile[[0, 0]] + tile[0, :1, :1], zones=zones,
        uncertainty="flips",
    )  # fmt: skip
    inside = read(values.artifacts["uncertainty.tif"])[:, 20:64, 10:50]
    [zone] = (result.data or {})["zones"]
    means = [entry["mean"] for entry in zone["uncertainty"]["values"]]
    assert means == pytest.approx(list(inside.mean(axis=(1, 2), dtype=np.float64)), rel=1e-4)
    [row] = csv.DictReader(values.artifacts["zones.csv"].read_text("utf-8-sig").splitlines())
    assert float(row["uncertainty: q0 mean"]) == means[0] > 0


@pytest.mark.parametrize("request_", [DetectionRequest, EmbeddingRequest])
def test_models_without_a_map_refuse_the_option(request_: Any) -> None:
    with pytest.raises(ValidationError, match=r"uncertainty\n  Extra inputs are not permitted"):
        request_(scene="media://1", uncertainty="flips")


def test_other_ways_are_refused() -> None:
    with pytest.raises(ValidationError, match="Input should be 'flips'"):
        SegmentationRequest(scene="media://1", uncertainty="dropout")
