"""Scores that torch reduces, beside the reduction of the processor in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.processors.base import Prompt
from penstock.processors.geo.write.class_outputs import encode, encode_reduced
from penstock.processors.prompt_names import REDUCE, REDUCED
from penstock.processors.reductions import Reduction, reduction_for
from penstock.workers.engine.torch.csmask import CsmaskUNet, network_of
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.torch.runner import TorchRunner
from penstock.workers.engine.torch.scores import answers_of
from tests.support.numbers import numbers_prompt

#: Outputs of a segmentation that need more than classes.
OUTPUTS = ([], ["confidence"], ["probability"], ["probability", "confidence"])
#: Many equal scores, halves of steps, and scores beyond 0 and 1.
scores_of_a_tile = arrays.arrays(
    np.float32, (4, 3, 5), elements=st.one_of(st.floats(-0.5, 1.5, width=32), st.sampled_from([0.25, 0.5, 1.5 / 254]))
)


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(one[n].tobytes() == other[n].tobytes() for n in one)


@given(scores=scores_of_a_tile, valid=arrays.arrays(bool, (3, 5)))
@pytest.mark.parametrize("wanted", OUTPUTS)
def test_a_device_reduces_scores_to_the_bytes_of_the_processor(
    wanted: list[str], scores: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]
) -> None:
    (answer,) = answers_of(torch.from_numpy(scores)[None].clone(), [reduction_for(wanted, len(scores))])
    assert answer.keys() == {REDUCED}
    assert answer[REDUCED].dtype == np.uint8
    assert same(encode_reduced(answer[REDUCED], valid, wanted), encode(scores, valid, wanted))


def test_prompts_of_one_batch_get_what_each_asked_for() -> None:
    scores = torch.rand(4, 3, 2, 2)
    asked = [None, Reduction.CLASSES, Reduction.PROBABILITY, None]
    found = answers_of(scores, asked)
    for number in (0, 3):
        np.testing.assert_array_equal(found[number]["probability"], scores[number].numpy())
    for number, channels in ((1, 1), (2, 4)):
        assert found[number][REDUCED].shape == (channels, 2, 2)
        np.testing.assert_array_equal(found[number][REDUCED][0], scores[number].numpy().argmax(axis=0))


def test_a_network_answers_classes_in_one_byte_a_pixel() -> None:
    torch.manual_seed(1)
    runner = TorchRunner(network_of(CsmaskUNet()), TorchDevice(torch.device("cpu")), max_batch=4)
    prompt = numbers_prompt()
    asking = Prompt({**prompt.data, REDUCE: "classes"}, prompt.cost)
    assert runner.bucket(asking) == runner.bucket(prompt)
    (whole,), (small,) = (runner.step([runner.admit(each)]) for each in (prompt, asking))
    scores, ids = whole.output.data["probability"], small.output.data[REDUCED]
    assert scores.nbytes == 5 * 4 * ids.nbytes
    np.testing.assert_array_equal(ids[0], scores.argmax(axis=0))
