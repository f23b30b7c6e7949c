"""Pixel-wise models: LightGBM models, and s2cloudless with its real trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import InvalidInput, MissingBands, ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.lightgbm_runner import load_lightgbm
from penstock.workers.engine.runners import Runners
from tests.support.geo.scenes import Files, Folder, read, write_scene

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT.parent / "shared" / "data" / "geo" / "s2cloudless_l1c_13b_with_expected.npz"
BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")


@dataclass(frozen=True)
class Sample:
    """A real Sentinel-2 Level-1C scene, and the cloud probabilities that the model's authors publish for it."""

    numbers: npt.NDArray[np.uint16]
    expected: npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def model() -> Model:
    if find_spec("s2cloudless") is None:
        pytest.skip("needs the weights: pip install --no-deps s2cloudless==1.7.3")
    return read_catalogue(ROOT / "src/penstock/catalogue/ready/s2cloudless.toml")["s2cloudless"]


@pytest.fixture(scope="module")
def sample() -> Sample:
    if not SAMPLE.exists():
        pytest.skip(f"needs the shared scene {SAMPLE.name}, which is not part of the repository")
    with np.load(SAMPLE) as data:
        return Sample(np.moveaxis(data["s2_u16"], -1, 0), data["cl_probs_u16"] / 65_535)


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(model: Model, engine: BatchingEngine, scene: Path, folder: Path, **request: Any) -> Folder:
    processor = RasterSegmentation(model)
    prepared = processor.pre_process(processor.request(scene=str(scene), **request), Files())
    sink = Folder(folder)
    processor.post_process(engine.run(model, prepared.prompts, check=lambda: None), prepared.context, sink)
    return sink


def test_s2cloudless_finds_the_published_probabilities(
    model: Model, sample: Sample, engine: BatchingEngine, tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.tif", sample.numbers, descriptions=BANDS)
    outputs = ("classes", "probability_float32", "stats")
    sink = run(model, engine, scene, tmp_path / "out", outputs=outputs)
    valid = (sample.numbers[[BANDS.index(band["name"]) for band in model.options["bands"]]] != 0).all(axis=0)
    assert valid.sum() == valid.size - 1  # the cirrus band of one pixel is 0, which is nodata
    clear, cloud = read(sink.artifacts["probability_float32.tif"])
    # The published values are rounded to 1/65535 and were computed from numbers not rounded to 1/10000.
    wrong = np.abs(cloud - sample.expected)[valid]
    assert np.quantile(wrong, 0.99) < 0.02
    assert wrong.mean() < 1e-3
    assert np.corrcoef(cloud[valid], sample.expected[valid])[0, 1] > 0.9999
    np.testing.assert_allclose((clear + cloud)[valid], 1, atol=1e-6)
    classes = read(sink.artifacts["classes.tif"])[0]
    np.testing.assert_array_equal(classes[valid], cloud[valid] > 0.5)
    assert (classes[~valid] == 255).all()


def test_permuted_bands_are_found_by_name_and_ten_are_enough(
    model: Model, sample: Sample, engine: BatchingEngine, tmp_path: Path
) -> None:
    needed = [BANDS.index(band["name"]) for band in model.options["bands"]]
    order = list(reversed(needed))
    whole = write_scene(tmp_path / "whole.tif", sample.numbers[:, :64], descriptions=BANDS)
    fewer = write_scene(
        tmp_path / "fewer.tif", sample.numbers[order, :64], descriptions=[BANDS[number] for number in order]
    )
    results = [
        run(model, engine, scene, tmp_path / scene.stem, outputs=("probability_float32",)).artifacts
        for scene in (whole, fewer)
    ]
    one, other = (artifacts["probability_float32.tif"].read_bytes() for artifacts in results)
    assert one == other


def test_the_size_of_the_tiles_does_not_matter(
    model: Model, sample: Sample, engine: BatchingEngine, tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.tif", sample.numbers[:, :40, :36], descriptions=BANDS)
    results = []
    for tile in (512, 16, 7):
        other = model.model_copy(update={"options": {**model.options, "tile_px": tile}})
        sink = run(other, engine, scene, tmp_path / str(tile), outputs=("classes", "probability_float32"))
        results.append([sink.artifacts[name].read_bytes() for name in ("classes.tif", "probability_float32.tif")])
    assert results[0] == results[1] == results[2]


def test_bands_without_names_are_not_guessed(
    model: Model, sample: Sample, engine: BatchingEngine, tmp_path: Path
) -> None:
    scene = write_scene(tmp_path / "scene.tif", sample.numbers[:, :32, :32])
    with pytest.raises(MissingBands, match="Give the bands in the model's order"):
        run(model, engine, scene, tmp_path / "out")
    numbers = [BANDS.index(band["name"]) + 1 for band in model.options["bands"]]
    assert run(model, engine, scene, tmp_path / "said", bands=numbers, outputs=("stats",))


def test_the_dummy_runs(model: Model, engine: BatchingEngine, tmp_path: Path) -> None:
    small = model.model_copy(update={"limits": Limits(max_pixels=1000)})
    dummy = RasterSegmentation(small).dummy(small.limits, tmp_path)
    radiometry = {"scale": 1, "trust": True}
    assert run(small, engine, dummy.files["media://dummy"], tmp_path / "out", radiometry=radiometry).artifacts


def test_a_prompt_of_other_bands_is_refused(model: Model) -> None:
    with closing(load_lightgbm(model)) as runner, pytest.raises(InvalidInput, match="takes 10 bands, the prompt has 6"):
        runner.admit(Prompt({"pixels": np.zeros((6, 4, 4), np.float32)}))


@pytest.mark.parametrize("text", [b"no trees", b"\xff\xfe", b"tree\nversion=v2\n"])
def test_a_file_that_is_no_model_is_said(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_bytes(text)
    record = {"name": "x", "title": "X", "runner": "lightgbm", "processor": "p", "source": str(path), "revision": "1"}
    with pytest.raises(ModelUnavailable, match="not a LightGBM model"):
        load_lightgbm(Model(**record))


def test_of_two_classes_the_first_one_s_probability_is_the_rest(model: Model) -> None:
    with closing(load_lightgbm(model)) as runner:
        state = runner.admit(Prompt({"pixels": np.full((10, 2, 3), 0.2, np.float32)}))
        [done] = runner.step([state])
    output: Output = done.output  # type: ignore[union-attr]
    assert output.data["probability"].shape == (2, 2, 3)
    np.testing.assert_allclose(output.data["probability"].sum(axis=0), 1, atol=1e-6)
