"""Scenes whose numbers are normalised and whose scores are reduced on the device, beside the way of floats."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import ProcessorFailed
from penstock.processors.base import Output
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.prompt_names import REDUCE, REDUCED
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.csmask import CsmaskUNet, network_of
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.runner import TorchRunner
from tests.support.engine_jobs import never
from tests.support.geo.scenes import Files, Folder, make_model, write_scene

BANDS = [{"name": f"b{i}", "mean": 0.1 + i / 50, "std": 0.2} for i in range(6)]
RASTERS = ("classes", "probability", "confidence", "probability_float32")


class _Floats:
    """The runner as it was before: it takes normalised floats and gives scores."""

    def __init__(self, runner: TorchRunner) -> None:
        self.bucket, self.admit, self.step, self.close = runner.bucket, runner.admit, runner.step, runner.close
        self.max_batch, self.memory_bytes = runner.max_batch, runner.memory_bytes


def a_runner() -> TorchRunner:
    torch.manual_seed(1)
    return TorchRunner(network_of(CsmaskUNet()), TorchDevice(torch.device("cpu")), max_batch=1)


def a_scene(folder: Path, dtype: str) -> Path:
    rng = np.random.default_rng(5)
    scene = rng.integers(1, 250 if dtype == "uint8" else 9000, size=(6, 150, 130)).astype(dtype)
    scene[:, 40:60, 20:90] = 0
    return write_scene(folder / "scene.tif", scene, nodata=0)


def a_model(**options: Any) -> Any:
    defaults = [{"dtypes": ["uint8", "uint16", "int16", "float32"], "scale": 1e-4, "offset": -0.05}]
    tiling = {"halo_px": 16, "stride_px": 16, "tile_px": 64}
    return make_model(bands=BANDS, default_radiometry=defaults, plausible_mean=5.0, **(tiling | options))


def mapped(scene: Path, folder: Path, runner: Any, outputs: tuple[str, ...], **options: Any) -> dict[str, bytes]:
    """Return the artifacts of a scene with this runner."""
    processor, sink = RasterSegmentation(a_model(**options)), Folder(folder)
    prepared = processor.pre_process(processor.request(scene=str(scene), outputs=outputs), Files())
    with closing(BatchingEngine(Runners.of({"fake": lambda _: runner}))) as engine:
        answers = engine.run(a_model(**options), prepared.prompts, check=never, cost=prepared.cost)
        processor.post_process(answers, prepared.context, sink)
    return {name: path.read_bytes() for name, path in sink.artifacts.items()}


@pytest.mark.breadth(every=4)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32"])
@pytest.mark.parametrize("outputs", [("classes",), ("confidence",), RASTERS[:3], RASTERS])
def test_maps_have_the_bytes_of_the_way_of_floats(tmp_path: Path, dtype: str, outputs: tuple[str, ...]) -> None:
    scene = a_scene(tmp_path, dtype)
    before = mapped(scene, tmp_path / "before", _Floats(a_runner()), outputs)
    now = mapped(scene, tmp_path / "now", a_runner(), outputs)
    assert before.keys() == now.keys()
    assert all(before[name] == now[name] for name in before)


def test_averaged_tiles_are_not_reduced_and_have_the_same_bytes(tmp_path: Path) -> None:
    scene, how = a_scene(tmp_path, "uint16"), {"overlap": "hann", "halo_px": 0}
    assert asked(scene, ["classes"], **how) == {None}
    before = mapped(scene, tmp_path / "before", _Floats(a_runner()), ("classes",), **how)
    now = mapped(scene, tmp_path / "now", a_runner(), ("classes",), **how)
    assert before == now


def asked(scene: Path, outputs: list[str], **options: Any) -> set[str | None]:
    """Return the reductions in the prompts of a scene."""
    processor = RasterSegmentation(a_model(**options))
    prepared = processor.pre_process(processor.request(scene=str(scene), outputs=outputs), Files())
    return {prompt.data.get(REDUCE) for prompt in prepared.prompts}


@pytest.mark.parametrize("wrong", [np.zeros((2, 96, 96), np.uint8), np.zeros((1, 95, 96), np.uint8), "text"])
def test_a_reduction_of_another_shape_fails_the_job(tmp_path: Path, wrong: Any) -> None:
    processor = RasterSegmentation(a_model())
    request = processor.request(scene=str(a_scene(tmp_path, "uint16")), outputs=("classes",))
    prepared = processor.pre_process(request, Files())
    outputs = (Output({REDUCED: wrong}) for _ in prepared.prompts)
    with pytest.raises(ProcessorFailed, match="The network returned"):
        processor.post_process(outputs, prepared.context, Folder(tmp_path / "out"))


def test_a_reduction_that_nobody_asked_for_is_no_answer(tmp_path: Path) -> None:
    processor = RasterSegmentation(a_model())
    request = processor.request(scene=str(a_scene(tmp_path, "uint16")), outputs=("probability_float32",))
    prepared = processor.pre_process(request, Files())
    outputs = (Output({REDUCED: np.zeros((6, 96, 96), np.uint8)}) for _ in prepared.prompts)
    with pytest.raises(ProcessorFailed, match=r"returned probability\.reduced, not `probability`"):
        processor.post_process(outputs, prepared.context, Folder(tmp_path / "out"))
