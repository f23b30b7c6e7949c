"""TerraMind's fine-tunes of several modalities: the numbers of TerraTorch's own forward of arrays on one grid."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rasterio.warp import Resampling, reproject
from safetensors.torch import save_file

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import outline
from tests.support.geo.scenes import NORTH_UP, write_scene
from tests.terratorch.tiny import TASKS

SIDE = 64
NAMES = ("S2L2A", "S1GRD", "DEM")
OPTICAL = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
NOISE = {"atol": 2e-5, "rtol": 1e-4}
#: The radar in another CRS, and the elevation in degrees; no centre of the scene lies at the edge of two pixels.
RADAR_GRID = ("EPSG:32632", rasterio.Affine(20, 0, 971_510.0, 0, -20, 5_017_804.0))
DEGREES = ("EPSG:4326", rasterio.Affine(0.000277, 0, 14.9951, 0, -0.000277, 45.1571))
BANDS: dict[str, list[dict[str, Any]]] = {
    "S2L2A": [{"name": name, "mean": 1400.0 + 90 * at, "std": 2000.0 - 50 * at} for at, name in enumerate(OPTICAL)],
    "S1GRD": [{"name": "VV", "mean": -12.599, "std": 5.195}, {"name": "VH", "mean": -20.293, "std": 5.89}],
    "DEM": [{"name": "DEM", "mean": 670.665, "std": 951.272}],
}


def model_args(task: str, modalities: tuple[str, ...] = NAMES, **more: Any) -> dict[str, Any]:
    """Return the arguments of a fine-tune as TerraTorch's examples for TerraMind have them."""
    return {
        "backbone": "terramind_v1_tiny",
        "backbone_pretrained": True,  # as published: the runner must not fetch them
        "backbone_modalities": list(modalities),
        "backbone_merge_method": "mean",
        "necks": [
            {"name": "SelectIndices", "indices": [2, 5, 8, 11]},
            {"name": "ReshapeTokensToImage", "remove_cls_token": False},
            {"name": "LearnedInterpolateToPyramidal"},
        ],
        "decoder": "UNetDecoder",
        "decoder_channels": [32, 16, 8, 4],
        **({"num_classes": 3} if task == "segmentation" else {}),
        **more,
    }


def network(task: str, args: dict[str, Any]) -> torch.nn.Module:
    """Return the network that TerraTorch builds, with a head so loud that answers differ from pixel to pixel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from terratorch.models import EncoderDecoderFactory

        torch.manual_seed(5)
        built: torch.nn.Module = EncoderDecoderFactory().build_model(
            task=task, **{**args, "backbone_pretrained": False}
        )
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if name.startswith("head.") and name.endswith("weight"):
                weight.mul_(30)
    return built.eval()


def save(folder: Path, task: str, args: dict[str, Any], built: torch.nn.Module) -> Path:
    """Write a checkpoint in the published layout: what Lightning saved, and the YAML file of the training."""
    folder.mkdir(parents=True)
    init = {"model_factory": "EncoderDecoderFactory", "model_args": args, "loss": "ce"}
    (folder / "config.yaml").write_text(json.dumps({"model": {"class_path": TASKS[task], "init_args": init}}))
    state = {f"model.{name}": tensor for name, tensor in built.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, folder / "best.ckpt")
    return folder


def record(source: Path, task: str, order: tuple[str, ...] = NAMES[1:], **options: Any) -> Model:
    """Return the catalogue's record, whose further sensors have this order."""
    floats = [{"dtypes": ["float32", "uint16", "int16"], "scale": 1.0}]
    further = [
        {"name": name, "bands": BANDS[name], "default_radiometry": floats, "decibels": name == "S1GRD"}
        for name in order
    ]
    answer: dict[str, Any] = (
        {"classes": [{"id": at, "name": f"class {at}", "colour": f"#{at * 16:06x}"} for at in range(3)]}
        if task == "segmentation"
        else {"quantities": [{"name": "biomass", "unit": "t/ha"}]}
    )
    given = {"overlap": "hann", "tile_px": SIDE, "modality": "S2L2A", "bands": BANDS["S2L2A"], "modalities": further}
    return Model(
        name="tiny",
        title="A tiny TerraMind",
        runner="terratorch",
        processor=f"raster-{task}",
        source=str(source),
        revision="1",
        options={**given, "default_radiometry": floats, **answer, **options},
    )


def write_three(folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """Write the scenes of three sensors, and return the request."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(1, 6000, (12, SIDE, SIDE)).astype(np.uint16)
    paths = {"S2L2A": write_scene(folder / "s2.tif", numbers, descriptions=OPTICAL)}
    power = 10 ** (rng.uniform(-30, 0, (2, 160, 150)) / 10)
    crs, transform = RADAR_GRID
    paths["S1GRD"] = write_scene(
        folder / "s1.tif", power.astype(np.float32), descriptions=("VV", "VH"), crs=crs, transform=transform
    )
    crs, transform = DEGREES
    heights = rng.integers(0, 3000, (1, 120, 140)).astype(np.int16)
    paths["DEM"] = write_scene(folder / "dem.tif", heights, descriptions=("DEM",), crs=crs, transform=transform)
    return {
        "scene": f"media://{paths['S2L2A']}",
        "modalities": [
            {"name": "DEM", "scene": f"media://{paths['DEM']}"},
            {
                "name": "S1GRD",
                "scene": f"media://{paths['S1GRD']}",
                "radiometry": {"scale": 1, "to_decibels": True},
            },
        ],
    }, paths


def on_the_scenes_grid(paths: dict[str, Path]) -> dict[str, torch.Tensor]:
    """Return the network's inputs by GDAL's own reprojection: float32 (1, bands, rows, columns) of each sensor."""
    found = {}
    for name, path in paths.items():
        with rasterio.open(path) as file:
            given = file.read()
            there = np.full((len(given), SIDE, SIDE), np.nan, np.float64)
            reproject(
                given.astype(np.float64), there, src_transform=file.transform, src_crs=file.crs, dst_crs="EPSG:32633",
                dst_transform=NORTH_UP, dst_nodata=np.nan, resampling=Resampling.nearest, tolerance=0,
            )  # fmt: skip
        assert not np.isnan(there).any(), f"{name} must cover the scene"
        values = 10 * np.log10(there) if name == "S1GRD" else there
        mean, std = ([band[key] for band in BANDS[name]] for key in ("mean", "std"))
        scaled = (values - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
        found[name] = torch.from_numpy(scaled.astype(np.float32))[None]
    return found


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(engine: BatchingEngine, model: Model, request: dict[str, Any]) -> Finished:
    scenes = [request["scene"], *(one["scene"] for one in request["modalities"])]
    files = {reference: Path(reference.removeprefix("media://")) for reference in scenes}
    return check_processor(
        Registry.imported().processor_for(model),
        request,
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={**request, "outputs": ["stats"]},
    )


def read(finished: Finished, name: str, folder: Path) -> npt.NDArray[Any]:
    path = folder / f"read-{name}"
    path.write_bytes(finished.artifacts[name][1])
    with rasterio.open(path) as file:
        return np.asarray(file.read())


@pytest.mark.fast
@pytest.mark.parametrize("task", ["segmentation", "regression"])
def test_the_answer_is_terratorchs_own_to_arrays_on_one_grid(task: str, engine: BatchingEngine, tmp_path: Path) -> None:
    args = model_args(task)
    built = network(task, args)
    model = record(save(tmp_path / "checkpoint", task, args, built), task, order=("DEM", "S1GRD"))
    request, paths = write_three(tmp_path)
    raster = "probability_float32" if task == "segmentation" else "values"
    finished = run(engine, model, {**request, "outputs": [raster, "stats"]})
    inputs = on_the_scenes_grid(paths)
    with torch.inference_mode():
        answer = built(inputs).output
        without = built({name: torch.zeros_like(each) if name == "DEM" else each for name, each in inputs.items()})
    assert (answer - without.output).abs().max() > 1e-2, "every sensor must count"
    expected = torch.softmax(answer, dim=1)[0] if task == "segmentation" else answer
    np.testing.assert_allclose(read(finished, f"{raster}.tif", tmp_path), expected.numpy(), **NOISE)
    assert finished.result.data is not None
    assert [one["resampling"] for one in finished.result.data["modalities"]] == ["none", "nearest", "nearest"]


def test_a_backbone_of_two_modalities_gives_the_vectors_of_both(engine: BatchingEngine, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models  # noqa: F401
        from terratorch.registry import BACKBONE_REGISTRY

        torch.manual_seed(6)
        own = BACKBONE_REGISTRY.build("terramind_v1_tiny", pretrained=False, modalities=["S2L2A", "DEM"]).eval()
    folder = tmp_path / "backbone"
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in own.state_dict().items()}, folder / "model.safetensors")
    base = record(folder, "segmentation", order=("DEM",))
    kept = {name: value for name, value in base.options.items() if name not in ("classes", "overlap")}
    network = {"backbone": "terramind_v1_tiny", "backbone_modalities": ["S2L2A", "DEM"]}
    vectors = {"patch_px": 16, "pooling": "patches", "terratorch": network, "normalize": False}
    model = base.model_copy(update={"processor": "raster-embedding", "options": {**kept, **vectors}})
    request, paths = write_three(tmp_path)
    request["modalities"] = request["modalities"][:1]
    found = read(run(engine, model, {**request, "outputs": ["embeddings"]}), "embeddings.tif", tmp_path)
    inputs = on_the_scenes_grid({name: paths[name] for name in ("S2L2A", "DEM")})
    with torch.inference_mode():
        tokens = own(inputs)[-1][0]
    np.testing.assert_allclose(found, tokens.T.reshape(-1, 4, 4).numpy(), **NOISE)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modalities": []}, "options.bands are 12"),
        ({"modality": "S2L1C"}, r"S2L2A \(12 bands\), S1GRD \(2 bands\), DEM \(1 bands\), the options have S2L1C"),
    ],
)
def test_a_record_of_other_modalities_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    args = model_args("segmentation")
    folder = save(tmp_path / "checkpoint", "segmentation", args, network("segmentation", args))
    outline(Checkpoint.of(record(folder, "segmentation")))
    with pytest.raises(ModelUnavailable, match=said):
        Checkpoint.of(record(folder, "segmentation", **options))
