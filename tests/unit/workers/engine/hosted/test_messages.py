from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    DeviceLost,
    InvalidInput,
    Issue,
    MissingBands,
    ModelProcessEnded,
    OutOfMemory,
    PenstockError,
    ProcessorFailed,
)
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done
from penstock.workers.engine.hosted.messages import (
    answers_value,
    error_fields,
    error_of,
    prompt_of,
    prompt_value,
    steps_of,
)


def test_a_prompt_keeps_its_cost_and_its_tenant() -> None:
    prompt = Prompt({"pixels": np.ones(3), "size": [2, 3]}, cost=7, tenant="t")
    assert prompt_of(prompt_value(prompt)) == prompt


def test_each_prompt_of_a_batch_has_its_own_answer() -> None:
    output = Output({"logits": np.arange(4)}, counts={"hits": 1})
    refused = InvalidInput("too large", errors=[Issue("/input", "4 pixels")])
    done, error = steps_of(answers_value([Done(output), refused]))
    assert isinstance(done, Done)
    assert done.output.counts == {"hits": 1}
    assert isinstance(error, InvalidInput)
    assert (error.detail, error.errors) == (refused.detail, refused.errors)


def test_arrays_of_several_answers_have_memory_of_their_own() -> None:
    whole = np.arange(8)
    value: list[dict[str, Any]] = [{"data": {"x": whole[at : at + 4]}, "counts": {}} for at in (0, 4)]
    for count, shared in ((2, False), (1, True)):
        step = steps_of(value[:count])[0]
        assert isinstance(step, Done)
        assert np.shares_memory(step.output.data["x"], whole) is shared


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OutOfMemory(), OutOfMemory), (InvalidInput("x"), InvalidInput), (ProcessorFailed("x"), ProcessorFailed),
        (DeviceLost("x"), ModelProcessEnded), (MissingBands("x"), ProcessorFailed),
    ],
)  # fmt: skip
def test_errors_become_what_the_engine_acts_on(raised: PenstockError, expected: type[PenstockError]) -> None:
    found = error_of(json.loads(json.dumps(error_fields(raised))))
    assert (type(found), found.detail) == (expected, raised.detail)


def test_the_cause_of_an_error_goes_to_the_operators() -> None:
    failure = ProcessorFailed("the model failed")
    failure.__cause__ = ValueError("inside")
    assert "ValueError: inside" in error_fields(failure)["trace"]


def test_a_runner_of_several_steps_is_refused() -> None:
    with pytest.raises(TypeError, match="one pass"):
        answers_value([Continue(None)])
