"""Passes that CUDA graphs replay, beside the same passes without them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.recordings import RECORDED_AT, Recordings, forget_all, recorder
from tests.support import hub
from tests.support.gpu_device import DEVICE, a_model, farthest, needs_cuda

pytestmark = [needs_cuda, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]
PIXELS = [Prompt({"pixels": hub.an_image(3, 32, 32, seed=seed)}, cost=1) for seed in range(12)]


@pytest.fixture(autouse=True)
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have convolutions compute in float32: in TF32 the size of a batch changes more."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@contextmanager
def copying() -> Iterator[None]:
    """Copy large arrays to the device in two other threads, as the prompts of other jobs are."""
    over, device = threading.Event(), TorchDevice.of(a_model())

    def copy(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not over.is_set():
            device.send(np.zeros((6, int(rng.integers(300, 900)), 512), np.float32))

    threads = [threading.Thread(target=copy, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def answers(model: Model, sizes: list[int]) -> tuple[list[dict[str, Any]], int]:
    """Return the outputs of batches of these sizes, and the number of recordings."""
    with closing(Runners.installed().load(model)) as loaded:
        runner: Any = loaded
        found: list[dict[str, Any]] = []
        for first, size in enumerate(sizes):
            prompts = [PIXELS[(first + number) % len(PIXELS)] for number in range(size)]
            found += [dict(step.output.data) for step in runner.step([runner.admit(prompt) for prompt in prompts])]
        return found, 0 if runner.recordings is None else sum(map(bool, runner.recordings._kept.values()))


@pytest.mark.parametrize("make", [hub.a_vit, hub.a_vit_backbone, hub.a_segformer])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_those_of_passes_that_are_not_recorded(make: Any, dtype: str, tmp_path: Path) -> None:
    model = hub.a_model(make(tmp_path / "m"), device=DEVICE, dtype=dtype, max_batch=12)
    sizes = [1, 3, 8, 9, 12] * (RECORDED_AT + 2)
    with copying():
        found, recorded = answers(model.model_copy(update={"options": {"cuda_graphs": True}}), sizes)
    expected, none = answers(model, sizes)
    assert (recorded, none) == (4, 0)
    most = 1e-4 if dtype == "float32" else 0.02
    assert max(farthest(one, other) for one, other in zip(found, expected, strict=True)) <= most


def test_a_network_that_reads_its_numbers_back_is_not_recorded_and_the_device_goes_on() -> None:
    def forward(batch: Tensor, _: Any) -> tuple[str, Tensor]:
        return "scaled", batch * batch.max().item()

    recordings = Recordings(forward, recorder(torch.device(DEVICE)), most=4)
    with TorchDevice.of(a_model()).running():
        for number in range(1, RECORDED_AT + 4):
            batch = torch.full((2, 5), float(number), device=DEVICE)
            assert recordings.run(batch, None)[1].tolist() == (batch * number).tolist()
    assert list(recordings._kept.values()) == [None]


def test_the_memory_of_recordings_is_free_after_a_pass_without_room() -> None:
    def forward(batch: Tensor, _: Any) -> tuple[str, Tensor]:
        return "wide", batch.repeat(1, 2**20).relu_()[:, :3] + 1

    recordings = Recordings(forward, recorder(torch.device(DEVICE)), most=8)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with TorchDevice.of(a_model()).running():
        for _ in range(RECORDED_AT + 1):
            recordings.run(torch.ones(8, 16, device=DEVICE), None)
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() - before >= 8 * 16 * 2**20 * 4
        forget_all()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() - before < 8 * 16 * 2**20 * 4
        assert float(recordings.run(torch.ones(8, 16, device=DEVICE), None)[1].sum()) == 8 * 3 * 2
