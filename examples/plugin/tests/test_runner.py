"""The runner alone, and behind the engine's batches."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock_brightness.runner import RUNNER

RUNNERS = Runners().register("weighted-sum", RUNNER)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    np.save(tmp_path / "weights.npy", np.array([0.5, 0.25, 0.25], np.float32))
    return Model(
        name="m", title="M", runner="weighted-sum", processor="brightness", source=str(tmp_path / "weights.npy"),
        revision="1", max_batch=4,
    )  # fmt: skip


def a_prompt(red: float) -> Prompt:
    return Prompt({"pixels": np.full((3, 2, 4), [[[red]], [[1]], [[1]]], dtype=np.float32)})


def test_each_image_gets_its_luminance(model: Model) -> None:
    with closing(BatchingEngine(RUNNERS)) as engine:
        outputs = list(engine.run(model, iter([a_prompt(0), a_prompt(1)]), check=lambda: None))
    assert [output.data["luminance"].tolist() for output in outputs] == [[[0.5] * 4] * 2, [[1.0] * 4] * 2]


def test_a_checked_model_takes_the_bytes_of_its_file(model: Model) -> None:
    RUNNERS.check(model)
    assert RUNNERS.expected_bytes(model) == Path(model.source).stat().st_size
    assert RUNNERS.load(model).memory_bytes == 12


@pytest.mark.parametrize("weights", [np.ones(3), np.ones((1, 3), np.float32), np.array([{}])])
def test_other_weights_are_rejected(model: Model, weights: np.ndarray) -> None:
    np.save(model.source, weights)
    with pytest.raises(ModelUnavailable, match="model 'm'"):
        RUNNERS.check(model)


def test_prompts_that_do_not_fit_are_rejected(model: Model) -> None:
    runner = RUNNERS.load(model)
    with pytest.raises(ProcessorFailed, match="pixels"):
        runner.admit(Prompt({}))
    with pytest.raises(InvalidInput, match="3 colours, the image has 4"):
        runner.admit(Prompt({"pixels": np.zeros((4, 2, 2), np.float32)}))
