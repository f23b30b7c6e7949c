"""Each processor that the runner `terratorch` serves, with a tiny Prithvi.

See `tests/integration/test_compatibility.py`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.models import Model
from penstock.processors.registry import Registry
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import warm
from tests.terratorch.test_backbones import published, vectors
from tests.terratorch.tiny import SIDE, model_args, network, record, save


def a_model(processor: str, folder: Path) -> Model:
    """Save a network of the processor's task and return its record."""
    if processor == "raster-embedding":
        return vectors(published(folder), patch_px=16, pooling="patches")
    task = "regression" if processor == "raster-regression" else "segmentation"
    args = model_args(**({"num_classes": 2} if task == "segmentation" else {}))
    source = save(folder, task, args, network(task, args))
    if processor == "tensor":
        options = {"inputs": {"pixels": {"shape": [6, SIDE, SIDE]}}}
        return record(source, classes=2).model_copy(update={"processor": processor, "options": options})
    return record(source, classes=2) if task == "segmentation" else record(source, quantities=[{"name": "height"}])


@pytest.mark.parametrize("processor", ["raster-embedding", "raster-regression", "raster-segmentation", "tensor"])
def test_a_declared_pair_serves(processor: str, tmp_path: Path) -> None:
    model, processing = a_model(processor, tmp_path / "model"), InThread(Registry.imported())
    assert processing.entry(model).problem is None
    Runners.installed().check(model)
    with closing(BatchingEngine(Runners.installed())) as engine:
        assert warm(model, processing, engine, tmp_path / "dummy", check=lambda: None).largest_batch >= 1
