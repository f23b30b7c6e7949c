"""Embeddings of scenes by backbones that TerraTorch builds: the same numbers as its own forward pass."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import penstock
from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.registry import Registry
from penstock.processors.testing import check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.terratorch.checkpoint import Checkpoint
from penstock.workers.engine.terratorch.network import outline
from tests.support.geo.scenes import write_scene
from tests.terratorch.tiny import SIDE, normalised, record, scene

pq = pytest.importorskip("pyarrow.parquet")
PATCH = 16
GRID = SIDE // PATCH
TINY = "prithvi_eo_v2_tiny_tl"
NOISE = {"atol": 1e-5, "rtol": 1e-5}
TERRAMIND = {"backbone": "terramind_v1_tiny", "backbone_modalities": ["S2L2A"]}


def published(folder: Path, kind: str = f"{TINY}_mae") -> Path:
    """Write a backbone as it is published: the whole autoencoder in a file of torch's own, and its name in a config."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models  # noqa: F401
        from terratorch.registry import FULL_MODEL_REGISTRY

        torch.manual_seed(3)
        whole = FULL_MODEL_REGISTRY.build(kind, pretrained=False)
    folder.mkdir()
    torch.save(whole.state_dict(), folder / "Prithvi_EO_V2_tiny_TL.pt")
    (folder / "config.json").write_text(json.dumps({"architecture": TINY, "pretrained_cfg": {"img_size": 224}}))
    return folder


def backbone(**args: Any) -> Any:
    """Return a backbone as TerraTorch builds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import terratorch.models  # noqa: F401
        from terratorch.registry import BACKBONE_REGISTRY

        torch.manual_seed(3)
        return BACKBONE_REGISTRY.build(args.pop("backbone"), **{"pretrained": False, **args}).eval()


def vectors(folder: Path, **options: Any) -> Model:
    """Return the record of a backbone."""
    base = record(folder, quantities=[{"name": "left out"}], **options)
    kept = {name: value for name, value in base.options.items() if name not in {"quantities", "overlap"}}
    # One engine keeps a model by its name.
    name = f"tiny-{kept.get('pooling')}-{kept.get('normalize')}".lower()
    return base.model_copy(update={"name": name, "processor": "raster-embedding", "options": kept})


def patches(features: torch.Tensor, dates: int = 1, skip: int = 1) -> npt.NDArray[np.float32]:
    """Return (dates * dimensions, rows, columns) of tokens, date after date, row after row."""
    tokens = features[0, skip:].detach().numpy()
    return np.concatenate([part.T.reshape(-1, GRID, GRID) for part in np.split(tokens, dates)])


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def embed(engine: BatchingEngine, model: Model, request: Mapping[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    """Return the vectors of a request, through the whole processor and its conformance test."""
    outline(Checkpoint.of(model))
    parts = request.get("dates", [request])
    files = {part["scene"]: Path(part["scene"].removeprefix("media://")) for part in parts}
    finished = check_processor(
        Registry.imported().processor_for(model),
        {**request, "outputs": ["embeddings", "geoparquet"]},
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other={**request, "outputs": ["stats"]},
    )
    for name in ("embeddings.tif", "embeddings.parquet"):
        (folder / name).write_bytes(finished.artifacts[name][1])
    with rasterio.open(folder / "embeddings.tif") as file:
        found = np.asarray(file.read())
    table = pq.read_table(folder / "embeddings.parquet")
    rows, columns = table["row"].to_numpy(), table["column"].to_numpy()
    assert len(table) == found.shape[1] * found.shape[2]
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), found[:, rows, columns].T)
    return found


def test_a_published_prithvi_gives_the_vectors_of_terratorch(engine: BatchingEngine, tmp_path: Path) -> None:
    folder, path = published(tmp_path / "published"), scene(tmp_path / "s.tif")
    own = backbone(backbone=TINY, pretrained=True, ckpt_path=str(folder / "Prithvi_EO_V2_tiny_TL.pt"))
    features = own(normalised(path))[-1]
    request = {"scene": f"media://{path}"}
    found = embed(engine, vectors(folder, patch_px=PATCH, pooling="patches"), request, tmp_path)
    np.testing.assert_allclose(found, patches(features), **NOISE)
    assert found.std(axis=(1, 2)).mean() > 1e-3, "the vectors of all patches are the same: nothing is compared"
    tokens = features[0].detach().numpy()
    for pooling, expected in {"mean": tokens[1:].mean(0), "max": tokens[1:].max(0), "cls": tokens[0]}.items():
        found = embed(engine, vectors(folder, pooling=pooling), request, tmp_path)
        np.testing.assert_allclose(found[:, 0, 0], expected, **NOISE)


def test_dates_times_and_a_place_reach_the_backbone(engine: BatchingEngine, tmp_path: Path) -> None:
    folder = published(tmp_path / "published")
    own = backbone(backbone=TINY, pretrained=True, ckpt_path=str(folder / "Prithvi_EO_V2_tiny_TL.pt"), num_frames=2)
    paths = [scene(tmp_path / f"{i}.tif", seed=i) for i in range(2)]
    times = ["2019-03-01T10:00:00Z", "2020-12-31T10:00:00Z"]
    dates = [{"scene": f"media://{path}", "datetime": time} for path, time in zip(paths, times, strict=True)]
    coordinates = {"time": "needed", "location": "needed"}
    model = vectors(folder, patch_px=PATCH, pooling="patches", dates=2, coordinates=coordinates)
    found = embed(engine, model, {"dates": dates, "location": {"lat": 45.0, "lon": 15.0}}, tmp_path)
    told = {
        "temporal_coords": torch.tensor([[[2019.0, 59.0], [2020.0, 365.0]]]),
        "location_coords": torch.tensor([[45.0, 15.0]]),
    }
    expected = patches(own(normalised(*paths), **told)[-1], dates=2)
    np.testing.assert_allclose(found, expected, **NOISE)
    assert abs(patches(own(normalised(*paths))[-1], dates=2) - expected).max() > 1e-3


def test_a_task_of_embeddings_gives_the_vectors_of_the_layer_that_it_names(
    engine: BatchingEngine, tmp_path: Path
) -> None:
    args = {"backbone": TINY, "backbone_pretrained": True}
    own, folder, path = backbone(backbone=TINY), tmp_path / "task", scene(tmp_path / "s.tif")
    folder.mkdir()
    init = {"model_args": args, "layers": [5], "has_cls": True}
    task = {"class_path": "terratorch.tasks.EmbeddingGenerationTask", "init_args": init}
    (folder / "config.json").write_text(json.dumps({"pretrained_cfg": {"model": task}}))
    torch.save({"state_dict": {f"model.encoder.{k}": v for k, v in own.state_dict().items()}}, folder / "last.ckpt")
    found = embed(engine, vectors(folder, patch_px=PATCH, pooling="patches"), {"scene": f"media://{path}"}, tmp_path)
    np.testing.assert_allclose(found, patches(own(normalised(path))[5]), **NOISE)
    unit = vectors(folder, patch_px=PATCH, pooling="patches", normalize=True)
    found = embed(engine, unit, {"scene": f"media://{path}"}, tmp_path)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-5)


def test_terramind_of_one_modality_runs_without_a_config(engine: BatchingEngine, tmp_path: Path) -> None:
    whole = backbone(backbone=TERRAMIND["backbone"], modalities=["S2L2A", "S1GRD", "DEM"])
    folder = tmp_path / "terramind"
    folder.mkdir()
    decoder = {"decoder.0.norm1.weight": torch.ones(2)}
    torch.save(whole.state_dict() | decoder, folder / "TerraMind_v1_tiny.pt")
    pixels = np.random.default_rng(1).integers(1, 9000, (12, SIDE, SIDE)).astype(np.uint16)
    path = write_scene(tmp_path / "s.tif", pixels)
    bands = [{"name": f"B{i:02}", "mean": 1000.0 + i, "std": 2000.0} for i in range(12)]
    model = vectors(folder, patch_px=PATCH, pooling="patches", terratorch=TERRAMIND, bands=bands)
    request = {"scene": f"media://{path}", "bands": list(range(1, 13)), "radiometry": {"scale": 1, "trust": True}}
    found = embed(engine, model, request, tmp_path)
    mean = 1000.0 + np.arange(12)[:, None, None]
    given = torch.from_numpy(((pixels - mean) / 2000.0).astype(np.float32))[None]
    own = backbone(backbone=TERRAMIND["backbone"], modalities=["S2L2A"])
    own.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if name in own.state_dict()})
    np.testing.assert_allclose(found, patches(own(given)[-1], skip=0), **NOISE)


def test_clay_runs_by_the_names_of_its_own_training(engine: BatchingEngine, tmp_path: Path) -> None:
    """Clay has one size. TerraTorch gives it neither time nor place, nor the size of a pixel; so do we."""
    own = backbone(backbone="clay_v1_base", img_size=SIDE)
    folder = tmp_path / "clay"
    folder.mkdir()
    state = {name.replace("clay_encoder.", "model.encoder.", 1): value for name, value in own.state_dict().items()}
    torch.save({"state_dict": state | {"model.decoder.x": torch.ones(1)}}, folder / "clay-v1-base.ckpt")
    path = scene(tmp_path / "s.tif")
    model = vectors(folder, pooling="mean", terratorch={"backbone": "clay_v1_base", "backbone_img_size": SIDE})
    found = embed(engine, model, {"scene": f"media://{path}"}, tmp_path)
    with torch.inference_mode():
        expected = own(normalised(path))[-1][0, 1:].mean(0).numpy()
    np.testing.assert_allclose(found[:, 0, 0], expected, **NOISE)
    # The same file by the arguments of Clay 1.5, which is the same network in other sizes, and knows the pixel's size.
    sizes = {"dim": 768, "depth": 12, "heads": 12, "dim_head": 64, "mlp_ratio": 4.0}
    newer = as_clay(folder / "clay-v1-base.ckpt", {**clay_args(gsd=1.0), **sizes}, pooling="mean")
    newer = newer.model_copy(update={"name": "newer", "options": {**newer.options, "bands": model.options["bands"]}})
    with pytest.raises(ModelUnavailable, match="give both the same names in one order"):
        Checkpoint.of(newer)
    named = [{**band, "name": name} for band, name in zip(model.options["bands"], CLAY_BANDS, strict=True)]
    newer = newer.model_copy(update={"options": {**newer.options, "bands": named}})
    request = {"scene": f"media://{path}", "bands": [1, 2, 3, 4, 5, 6]}
    np.testing.assert_allclose(embed(engine, newer, request, tmp_path)[:, 0, 0], expected, **NOISE)


CLAY_BANDS = {"blue": 0.493, "green": 0.56, "red": 0.665, "nir": 0.842, "swir16": 1.61, "swir22": 2.19}


def clay_args(*, gsd: float = 10.0, **sizes: int) -> dict[str, Any]:
    """Return the arguments of a small Clay for Sentinel-2."""
    small = {"dim": 24, "depth": 2, "heads": 2, "dim_head": 8, "mlp_ratio": 2.0, "patch_size": 8}
    sensor = {"gsd": gsd, "bands": {"wavelength": CLAY_BANDS}}
    metadata = {"sentinel-2-l2a": sensor}
    return {
        "model_factory": "Clay1_5ModelFactory",
        "platform": "sentinel-2-l2a",
        "metadata": metadata,
        **small,
        **sizes,
    }


def clay_checkpoint(encoder: torch.nn.Module, file: Path) -> Path:
    """Write a checkpoint of Clay's training: the encoder beside a decoder and a teacher, and what Lightning adds."""
    state = {f"model.encoder.{name}": weight for name, weight in encoder.state_dict().items()}
    others = {"model.decoder.mask_patch": torch.ones(8), "model.teacher.cls_token": torch.ones(1, 1, 8)}
    trained = {"model_size": "large", "mask_ratio": 0.75, "dolls": [16, 32], "metadata_path": "configs/metadata.yaml"}
    file.parent.mkdir(parents=True)
    torch.save({"epoch": 76, "state_dict": {**state, **others}, "hyper_parameters": trained, "loops": {}}, file)
    return file


def as_clay(file: Path, args: Mapping[str, Any], **options: Any) -> Model:
    bands = [{"name": name, "mean": 1500.0, "std": 1700.0} for name in CLAY_BANDS]
    return vectors(file, terratorch=dict(args), bands=bands, **options)


def clay_tiles(path: Path) -> torch.Tensor:
    with rasterio.open(path) as file:
        return torch.from_numpy(((file.read().astype(np.float64) - 1500) / 1700).astype(np.float32))[None]


def test_clay_gets_the_wavelengths_and_the_size_of_a_pixel(engine: BatchingEngine, tmp_path: Path) -> None:
    """The vectors are those of Clay's own encoder, with all that it takes but the time and the place."""
    from terratorch.models.backbones.clay_v15.model import Encoder
    from terratorch.models.clay1_5_model_factory import Box, ClayMAEBackbone

    args = clay_args()
    sizes = {name: args[name] for name in ("dim", "depth", "heads", "dim_head", "mlp_ratio", "patch_size")}
    torch.manual_seed(5)
    own = Encoder(mask_ratio=0.0, shuffle=False, **sizes).eval()
    file, path = clay_checkpoint(own, tmp_path / "v1.5" / "clay-v1.5.ckpt"), scene(tmp_path / "s.tif")
    cube = {"pixels": clay_tiles(path), "waves": torch.tensor(list(CLAY_BANDS.values())), "gsd": torch.tensor(10.0)}
    nothing = {"time": torch.zeros(1, 4), "latlon": torch.zeros(1, 4)}
    with torch.inference_mode():
        tokens = own({**cube, **nothing})[0][0].numpy()
        patches_of = ClayMAEBackbone(own, "sentinel-2-l2a", Box(args["metadata"]))(cube["pixels"])[0][0].numpy()
    request = {"scene": f"media://{path}", "bands": [1, 2, 3, 4, 5, 6], "radiometry": {"scale": 1, "trust": True}}
    for pooling, expected in {"cls": tokens[0], "mean": tokens[1:].mean(0)}.items():
        found = embed(engine, as_clay(file, args, pooling=pooling), request, tmp_path)
        np.testing.assert_allclose(found[:, 0, 0], expected, **NOISE)
    found = embed(engine, as_clay(file, args, pooling="patches", patch_px=8), request, tmp_path)
    np.testing.assert_allclose(found, patches_of, **NOISE)
    with closing(BatchingEngine(Runners.installed())) as other:
        coarse = embed(other, as_clay(file, clay_args(gsd=30.0), pooling="cls"), request, tmp_path)
    assert abs(coarse[:, 0, 0] - tokens[0]).max() > 1e-3, "the size of a pixel does not reach the network"


def test_importing_terratorch_leaves_the_precision_of_other_models_alone() -> None:
    """Clay's module sets it to `medium` for the whole process when it is imported."""
    program = (
        "import torch; from penstock.workers.engine.terratorch.network import library; "
        "library(); raise SystemExit(torch.get_float32_matmul_precision())"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "highest"


def test_a_scene_of_many_tiles_has_a_vector_for_each_patch(tmp_path: Path) -> None:
    model = vectors(published(tmp_path / "published"), patch_px=PATCH, halo_px=PATCH, pooling="patches")
    catalogue = tmp_path / "models.toml"
    fields = json.loads(model.model_dump_json(include={"title", "runner", "processor", "source", "revision"}))
    options = {**model.options, "bands": "BANDS"}
    lines = ["[models.tiny]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    del options["bands"], options["default_radiometry"]
    lines += ["[models.tiny.options]", *(f"{name} = {json.dumps(value)}" for name, value in options.items())]
    lines += ["default_radiometry = [{ dtypes = ['uint16'], scale = 1.0 }]"]
    for band in model.options["bands"]:
        lines += ["[[models.tiny.options.bands]]", *(f"{name} = {json.dumps(value)}" for name, value in band.items())]
    catalogue.write_text("\n".join(lines))
    with closing(penstock.Engine(catalogue=[catalogue])) as engine:
        result = engine.run("tiny", scene=scene(tmp_path / "s.tif", height=130, width=100))
    assert result.data["embeddings"] == {
        "count": 63, "dimensions": 192, "width": 7, "height": 9, "pixels_per_side": PATCH,
    }  # fmt: skip
