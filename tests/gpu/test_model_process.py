"""A model's process on a device: a lost context ends it alone, and its answers are those of the worker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import ModelProcessEnded
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.hosted.runner import HostedRunner
from penstock.workers.engine.memory import CONTEXT_BYTES
from penstock.workers.engine.runners import Runners
from tests.gpu.test_lost_device import a_table
from tests.support import hub
from tests.support.engine_jobs import never
from tests.support.gpu_device import DEVICE, farthest, needs_cuda

pytestmark = needs_cuda


def test_a_lost_context_ends_the_process_of_its_model_alone(tmp_path: Path) -> None:
    model = read_catalogue(a_table(tmp_path / "table"))["table"].model_copy(update={"own_process": True})

    def prompt(at: int) -> Prompt:
        return Prompt({"at": np.full(4, at, np.int64)})

    with closing(BatchingEngine(Runners.installed())) as engine:
        assert len(list(engine.run(model, iter([prompt(1)]), check=never))) == 1
        with pytest.raises(ModelProcessEnded):
            list(engine.run(model, iter([prompt(99)]), check=never))
        assert len(list(engine.run(model, iter([prompt(2)]), check=never))) == 1
        assert not engine.lost


def test_a_process_of_pictures_counts_its_context(tmp_path: Path) -> None:
    model = hub.a_model(hub.a_vit(tmp_path), processor="image-classification", device=DEVICE, own_process=True)
    with closing(Runners.installed().load(model)) as runner:
        assert isinstance(runner, HostedRunner)
        assert runner.memory_bytes > CONTEXT_BYTES


def test_the_process_answers_as_the_worker_does(tmp_path: Path) -> None:
    model = hub.a_model(hub.a_vit(tmp_path), processor="image-classification", device=DEVICE)
    prompts = [Prompt({"pixels": hub.an_image(3, 32, 32, seed=seed)}, cost=1) for seed in range(8)]
    found = []
    for own in (False, True):
        placed = model.model_copy(update={"own_process": own})
        with closing(BatchingEngine(Runners.installed())) as engine:
            found.append(list(engine.run(placed, iter(prompts), check=never)))
    assert max(farthest(one.data, other.data) for one, other in zip(*found, strict=True)) < 1e-3
