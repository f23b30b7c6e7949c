"""The shipped model with its real weights on a GPU, beside the processor."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.catalogue.records import read_catalogue
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.geo.sample import write_sample
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.runner import load_torch
from tests.support.engine_jobs import never
from tests.support.geo.scenes import Files, Folder, read
from tests.support.gpu_device import DEVICE, needs_cuda

pytestmark = [needs_cuda, pytest.mark.slow, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]
SIDE_PX = 1200


def csmask(*, options: dict[str, Any] | None = None, **fields: Any) -> Model:
    model = read_catalogue()["csmask"]
    return model.model_copy(update={"device": DEVICE, **fields, "options": {**model.options, **(options or {})}})


def mapped(model: Model, scene: Path, folder: Path, outputs: Sequence[str] = ("classes",)) -> Folder:
    """Run a scene through the processor and an engine of its own."""
    processor, sink = RasterSegmentation(model), Folder(folder)
    prepared = processor.pre_process(processor.request(scene=str(scene), outputs=outputs), Files())
    with closing(BatchingEngine(Runners.installed())) as engine:
        answers = engine.run(model, prepared.prompts, check=never, cost=prepared.cost)
        processor.post_process(answers, prepared.context, sink)
    return sink


def classes(folder: Folder) -> Any:
    return read(folder.artifacts["classes.tif"])[0]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scene") / "sample.tif"
    write_sample(path, size_px=SIDE_PX)
    return path


@pytest.fixture(scope="module")
def expected(scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The processor's classes."""
    return classes(mapped(csmask(device="cpu"), scene, tmp_path_factory.mktemp("cpu") / "out"))


#: TF32, torch's own choice for convolutions, keeps 10 bits of each factor.
@pytest.mark.parametrize(
    ("dtype", "tf32", "compiles", "most"),
    [
        ("float32", False, False, 1e-5),
        ("float32", True, False, 1e-3),
        ("bfloat16", True, False, 1e-2),
        ("float32", True, True, 1e-3),
        ("bfloat16", True, True, 1e-2),
    ],
)
def test_a_scene_has_the_processor_s_classes_but_for_noise(
    dtype: str, tf32: bool, compiles: bool, most: float, scene: Path, expected: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, record_property: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    model = csmask(dtype=dtype, options={"compile": compiles})
    found = classes(mapped(model, scene, tmp_path / "out"))
    differ = float(np.mean(found != expected))
    what = f"csmask, {dtype}, TF32 {'on' if tf32 else 'off'}, {'compiled' if compiles else 'eager'}"
    record_property("figures", f"{what}: {differ:.2e} of the pixels have another class than on the processor")
    assert differ <= most
    assert set(np.unique(expected)) == set(np.unique(found)) == {0, 1, 3, 4, 255}


@pytest.mark.parametrize("tf32", [False, True])
def test_tiles_equal_the_whole_image_but_for_noise(
    tf32: bool, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    outputs, name = ("classes", "probability_float32"), "probability_float32.tif"
    whole = mapped(csmask(options={"tile_px": 2048}), scene, tmp_path / "whole", outputs)
    tiled = mapped(csmask(options={"tile_px": 128}), scene, tmp_path / "tiled", outputs)
    apart = float(np.nanmax(np.abs(read(tiled.artifacts[name]) - read(whole.artifacts[name]))))
    differ = float(np.mean(classes(tiled) != classes(whole)))
    what = f"tiles of 128 px beside the whole, TF32 {'on' if tf32 else 'off'}"
    record_property("figures", f"{what}: probabilities differ by {apart:.1e} at most, classes at {differ:.1e}")
    assert apart < (2e-2 if tf32 else 1e-4)
    assert differ < (1e-4 if tf32 else 1e-5)


@pytest.mark.parametrize("tf32", [False, True])
def test_what_shares_its_batch_changes_a_tile_by_noise_alone(
    tf32: bool, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    noise = np.random.default_rng(1).normal(size=(4, 6, 768, 768)).astype(np.float32)
    prompts = [Prompt({"pixels": pixels}) for pixels in noise]
    with closing(load_torch(csmask())) as runner:
        alone = [runner.step([runner.admit(prompt)])[0] for prompt in prompts]
        together = runner.step([runner.admit(prompt) for prompt in prompts])
    pairs = [[step.output.data["probability"] for step in pair] for pair in zip(alone, together, strict=True)]
    apart = max(float(np.abs(one - other).max()) for one, other in pairs)
    what = f"a tile alone and in a batch of four, TF32 {'on' if tf32 else 'off'}"
    record_property("figures", f"{what}: probabilities differ by {apart:.1e} at most")
    assert apart < (2e-2 if tf32 else 1e-4)


def test_the_library_runs_scenes_side_by_side_where_the_record_says_auto(
    scene: Path, expected: Any, tmp_path: Path, record_property: Any
) -> None:
    with penstock.Engine() as engine:
        warmth = engine.warm_up("csmask")
        record_property("figures", f"csmask's warm-up: {warmth}")
        assert warmth.largest_batch == 4

        def one(number: int) -> Any:
            return engine.run("csmask", scene=scene, out=tmp_path / str(number), outputs=["classes"])

        with ThreadPoolExecutor(4) as jobs:
            results = list(jobs.map(one, range(4)))
    if torch.cuda.is_available():
        assert torch.cuda.max_memory_allocated() > 10**8
    for result in results:
        assert np.mean(read(result.artifacts["classes.tif"].path)[0] != expected) < 1e-3
