from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ModelUnavailable
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue, Done
from penstock.workers.engine.fake import load_fake
from tests.support.engine_jobs import a_model

PIXELS = np.stack([np.full((4, 4), value, np.float32) for value in (1, 2, 3)])


def test_logits_are_the_means_of_the_bands() -> None:
    runner = load_fake(a_model().model_copy(update={"options": {"classes": 4, "answer": "logits"}}))
    (step,) = runner.step([runner.admit(Prompt({"pixels": PIXELS}))])
    assert isinstance(step, Done)
    assert step.output.data["logits"].tolist() == [1, 2, 3, 1]
    assert step.output.data["logits"].dtype == np.float32


def test_partial_outputs_count_the_steps_down() -> None:
    runner = load_fake(a_model(steps=3, partials=True))
    (step,) = runner.step([runner.admit(Prompt({"x": PIXELS}))])
    assert isinstance(step, Continue)
    assert step.partial is not None
    assert step.partial.partial
    assert step.partial.data["steps_left"] == 2


@pytest.mark.parametrize("options", [{"steps": "many"}, {"classes": None}, {"memory_bytes": []}])
def test_options_that_make_no_sense_make_the_model_unavailable(options: dict[str, object]) -> None:
    with pytest.raises(ModelUnavailable, match="not those of the runner 'fake'"):
        load_fake(a_model().model_copy(update={"options": options}))
