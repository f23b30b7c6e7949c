"""Prithvis as TerraTorch builds them, served by our raster processors: the same numbers as TerraTorch's own forward."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pyproj import Transformer

import penstock
from penstock.config import Settings
from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.base import Runner, RunnerSpec
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.geo.in_memory import mapped, plan_of
from tests.terratorch.tiny import SIDE, answer, model_args, network, normalised, record, save, scene

TIMES = ["2019-03-01T10:00:00Z", "2019-12-31T23:59:59Z", "2020-12-31T10:00:00Z"]
DAYS = [[2019, 59], [2019, 364], [2020, 365]]
NECKS = model_args()["necks"]
#: Greatest difference of the same numbers added in another order.
NOISE = {"atol": 2e-6, "rtol": 1e-5}


def raster(path: Path) -> npt.NDArray[Any]:
    with rasterio.open(path) as file:
        return np.asarray(file.read())


def softmax(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(torch.softmax(torch.from_numpy(scores), dim=0).numpy())


class Watched:
    """The engine with a runner whose network's own inputs are noted."""

    def __init__(self) -> None:
        #: (pixels, what else was given) of each forward pass.
        self.seen: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
        self.engine = BatchingEngine(Runners.installed().register("terratorch", RunnerSpec(self._load)))

    def _load(self, model: Model) -> Runner:
        runner = Runners.installed().load(model)
        module: torch.nn.Module = runner._module  # type: ignore[attr-defined]

        def note(_: torch.nn.Module, args: tuple[torch.Tensor], kwargs: dict[str, torch.Tensor]) -> None:
            self.seen.append((args[0].clone(), {name: tensor.clone() for name, tensor in kwargs.items()}))

        module.register_forward_pre_hook(note, with_kwargs=True)
        return runner

    def map(self, model: Model, request: dict[str, Any]) -> Finished:
        """Run a request of local files through the conformance test, and so through the whole processor."""
        parts = request.get("dates", [request])
        files = {part["scene"]: Path(part["scene"].removeprefix("media://")) for part in parts}
        return check_processor(
            Registry.imported().processor_for(model),
            request,
            files,
            engine=lambda prompts: self.engine.run(model, prompts, check=lambda: None),
            other={**request, "outputs": ["stats"]},
        )


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    with closing(watched.engine):
        yield watched


Make = Callable[..., tuple[Model, torch.nn.Module]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a checkpoint of so many classes, and TerraTorch's own network beside it."""

    def made(classes: int = 2, *, dates: int = 1, told: tuple[str, ...] = (), **options: Any) -> Any:
        args = model_args(dates=dates, coordinates=told, num_classes=classes)
        built = network("segmentation", args)
        folder = save(tmp_path / "checkpoint", "segmentation", args, built)
        more = {"coordinates": dict.fromkeys(told, "optional")} if told else {}
        return record(folder, classes=classes, dates=dates, **more, **options), built

    return made


def artifact(finished: Finished, name: str, tmp_path: Path) -> npt.NDArray[Any]:
    path = tmp_path / f"read-{name}"
    path.write_bytes(finished.artifacts[name][1])
    return raster(path)


@pytest.mark.fast
@pytest.mark.parametrize("classes", [2, 13])
def test_classes_and_probabilities_are_those_of_terratorch(
    classes: int, make: Make, watched: Watched, tmp_path: Path
) -> None:
    model, built = make(classes)
    path = scene(tmp_path / "s.tif")
    finished = watched.map(model, {"scene": f"media://{path}", "outputs": ["classes", "probability_float32"]})
    expected = softmax(answer(built, normalised(path)))
    np.testing.assert_allclose(artifact(finished, "probability_float32.tif", tmp_path), expected, **NOISE)
    ids = artifact(finished, "classes.tif", tmp_path)[0]
    sure = np.sort(expected, axis=0)[-1] - np.sort(expected, axis=0)[-2] > 1e-4
    np.testing.assert_array_equal(ids[sure], expected.argmax(axis=0)[sure])
    assert sure.mean() > 0.99
    assert len(np.unique(ids)) >= min(classes, 4), "the network says the same everywhere: nothing is compared"
    assert ids.max() < classes


@pytest.mark.fast
def test_three_dates_with_their_days_and_the_place_reach_the_network_as_it_was_trained(
    make: Make, watched: Watched, tmp_path: Path
) -> None:
    model, built = make(13, dates=3, told=("time", "location"))
    paths = [scene(tmp_path / f"{i}.tif", seed=i) for i in range(3)]
    dates = [{"scene": f"media://{path}", "datetime": time} for path, time in zip(paths, TIMES, strict=True)]
    finished = watched.map(model, {"dates": dates, "outputs": ["probability_float32"]})
    pixels, told = watched.seen[0]
    assert pixels.shape == (1, 6, 3, SIDE, SIDE)
    torch.testing.assert_close(pixels, normalised(*paths), atol=1e-6, rtol=0)
    assert told["temporal_coords"].tolist() == [DAYS]
    lon, lat = Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True).transform(500_960, 4_999_040)
    torch.testing.assert_close(told["location_coords"], torch.tensor([[lat, lon]]), atol=1e-5, rtol=0)
    expected = softmax(answer(built, pixels, temporal_coords=DAYS, location_coords=[lat, lon]))
    found = artifact(finished, "probability_float32.tif", tmp_path)
    np.testing.assert_allclose(found, expected, **NOISE)
    # It would be seen if they did not matter, or came the other way round.
    for wrong in ({}, {"temporal_coords": DAYS, "location_coords": [lon, lat]}):
        assert abs(softmax(answer(built, pixels, **wrong)) - found).max() > 1e-3
    assert finished.result.data is not None
    assert finished.result.data["coordinates"]["time"] == DAYS


def test_a_place_in_the_request_is_all_tiles_and_what_nobody_knows_is_not_told(
    make: Make, watched: Watched, tmp_path: Path
) -> None:
    model, built = make(2, told=("time", "location"))
    path = scene(tmp_path / "s.tif", height=100, width=90)
    place = {"lat": -16.25, "lon": 46.5}
    watched.map(model, {"scene": f"media://{path}", "location": place})
    # The dummy says when it was taken.
    passes = [told for _, told in watched.seen if "temporal_coords" not in told]
    assert len(passes) >= 4
    for told in passes:
        assert {name: tensor.tolist() for name, tensor in told.items()} == {"location_coords": [[-16.25, 46.5]]}
    nowhere = scene(tmp_path / "n.tif")
    with rasterio.open(nowhere, "r+") as file:
        file.crs = rasterio.CRS()
    finished = watched.map(model, {"scene": f"media://{nowhere}", "outputs": ["probability_float32"]})
    expected = softmax(answer(built, normalised(nowhere)))
    np.testing.assert_allclose(artifact(finished, "probability_float32.tif", tmp_path), expected, **NOISE)


@pytest.mark.fast
def test_a_scene_of_many_tiles_is_the_mean_of_what_terratorch_says_of_each(
    make: Make, watched: Watched, tmp_path: Path
) -> None:
    model, built = make(2)
    path = scene(tmp_path / "s.tif", height=100, width=150)

    def by_terratorch(tile: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if tile.shape[1] < SIDE:  # asked only for how many channels there are
            return np.zeros((2, *tile.shape[1:]), np.float32)
        return softmax(answer(built, torch.from_numpy(tile)[None]))

    expected = mapped(normalised(path)[0].numpy(), plan_of((100, 150), SIDE, overlap=SIDE // 2), by_terratorch)
    finished = watched.map(model, {"scene": f"media://{path}", "outputs": ["probability_float32"]})
    np.testing.assert_allclose(artifact(finished, "probability_float32.tif", tmp_path), expected, **NOISE)


@pytest.mark.fast
@pytest.mark.parametrize("names", [["biomass"], ["biomass", "height"]], ids=len)
def test_regression_heads_answer_in_their_units(names: list[str], watched: Watched, tmp_path: Path) -> None:
    args = model_args() | ({"num_outputs": len(names)} if len(names) > 1 else {})
    built = network("regression", args)
    folder = save(tmp_path / "checkpoint", "regression", args, built)
    model = record(folder, quantities=[{"name": name, "unit": "t/ha"} for name in names])
    path = scene(tmp_path / "s.tif")
    finished = watched.map(model, {"scene": f"media://{path}"})
    values, expected = artifact(finished, "values.tif", tmp_path), answer(built, normalised(path))
    np.testing.assert_allclose(values, expected if len(names) > 1 else expected[None], atol=1e-4, rtol=1e-5)
    assert values.std() > 1e-3


@pytest.mark.fast
def test_a_training_checkpoint_of_torchs_own_is_the_same_network(make: Make, tmp_path: Path) -> None:
    model, built = make(2)
    folder = Path(model.source)
    weights = {f"model.{name}": tensor for name, tensor in built.state_dict().items()}
    other = {"criterion.weight": torch.ones(2), "model.aux_heads.one.weight": torch.ones(3)}
    torch.save({"epoch": 9, "state_dict": weights | other, "hyper_parameters": {"lr": 0.1}}, folder / "Tiny.pt")
    (folder / "model.safetensors").unlink()
    path = scene(tmp_path / "s.tif")
    with closing(Runners.installed().load(model)) as runner:
        (done,) = runner.step([runner.admit(Prompt({"pixels": normalised(path)[0].numpy()}))])
    np.testing.assert_allclose(done.output.data["probability"], softmax(answer(built, normalised(path))), **NOISE)


@pytest.mark.fast
def test_a_job_runs_in_io_processes_after_a_warm_up(make: Make, tmp_path: Path) -> None:
    model, _ = make(2, told=("time",))
    catalogue = tmp_path / "models.toml"
    fields = json.loads(model.model_dump_json(include={"title", "runner", "processor", "source", "revision"}))
    options = model.options
    lines = ["[models.tiny]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    lines += ["[models.tiny.options]", *(f"{name} = {toml(value)}" for name, value in options.items())]
    catalogue.write_text("\n".join(lines))
    with penstock.Engine(catalogue=[catalogue], settings=Settings(model_cache=tmp_path), isolated=True) as engine:
        assert engine.warm_up("tiny")
        result = engine.run("tiny", scene=scene(tmp_path / "s.tif", height=130, width=70), datetime=TIMES[0])
        assert result.data is not None
        assert sum(one["pixels"] for one in result.data["classes"]) == 130 * 70
        with pytest.raises(InvalidInput, match="does not use a location"):
            engine.run("tiny", scene=tmp_path / "s.tif", location={"lat": 1, "lon": 1})
        assert engine.run("tiny", scene=tmp_path / "s.tif", outputs=["stats"]).data


def toml(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(part)}" for name, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def test_a_network_without_an_encoding_cannot_be_told_of_it(make: Make) -> None:
    model, _ = make(2)
    options = {**model.options, "coordinates": {"location": "optional"}}
    with pytest.raises(ModelUnavailable, match=r"'tiny' .*options.coordinates.location .* takes no location"):
        Runners.installed().load(model.model_copy(update={"options": options}))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"backbone_depth": 5}, r"model.safetensors lacks \d+ of the weights .* 'encoder.blocks.4"),
        (
            {"backbone_depth": 3, "necks": [{"name": "SelectIndices", "indices": [0, 1, 2, 2]}, *NECKS[1:]]},
            r"model.safetensors has, and the network lacks, \d+ of the weights .* 'encoder.blocks.3",
        ),
        ({"backbone_embed_dim": 32}, "model.safetensors have other shapes"),
        ({"backbone": "prithvi_of_tomorrow"}, "prithvi_of_tomorrow, which TerraTorch does not have"),
        ({"decoder": None}, "TerraTorch cannot build the network"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_does_not_fit_its_weights_says_how(changed: dict[str, Any], sentence: str, make: Make) -> None:
    model, _ = make(2)
    path = Path(model.source) / "config.json"
    content = json.loads(path.read_text())
    content["pretrained_cfg"]["model"]["init_args"]["model_args"] |= changed
    path.write_text(json.dumps(content))
    for refuses in (Runners.installed().check, Runners.installed().load):
        with pytest.raises(ModelUnavailable, match=sentence):
            refuses(model)


@pytest.mark.fast
def test_prompts_that_do_not_fit_are_refused_and_the_next_is_answered(make: Make) -> None:
    model, _ = make(2, dates=3, told=("time", "location"))
    good = np.zeros((18, SIDE, SIDE), np.float32)
    when, where = np.array(DAYS, np.float32), np.array([1, 2], np.float32)
    with closing(Runners.installed().load(model)) as runner:
        for data, error in [
            ({}, ProcessorFailed),
            ({"pixels": good.astype(np.float64)}, ProcessorFailed),
            ({"pixels": good[:17]}, InvalidInput),
            ({"pixels": good, "temporal_coords": when[:1]}, ProcessorFailed),
            ({"pixels": good, "temporal_coords": when.astype(np.int64)}, ProcessorFailed),
            ({"pixels": good, "location_coords": where[None]}, ProcessorFailed),
            ({"pixels": good, "metadata": where}, ProcessorFailed),
        ]:
            with pytest.raises(error):
                runner.admit(Prompt(data))
        both = {"pixels": good, "temporal_coords": when, "location_coords": where}
        assert runner.bucket(Prompt(both)) != runner.bucket(Prompt({"pixels": good}))
        (done,) = runner.step([runner.admit(Prompt(both))])
        assert done.output.data["probability"].shape == (2, SIDE, SIDE)
