"""Inputs that the library's own processors made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.errors import ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.transformers.inputs import network_inputs, with_lists


def test_inputs_go_by_the_librarys_names_and_all_else_is_left_out() -> None:
    ids = np.ones((1, 3), np.int64)
    assert network_inputs(Prompt({"inputs.input_ids": ids, "seed": 1, "input_ids": ids[0]})) == {"input_ids": ids}


@pytest.mark.parametrize("value", [[1, 2], "text", np.array(["a"]), np.array([None])])
def test_an_input_is_an_array_of_numbers(value: object) -> None:
    with pytest.raises(ProcessorFailed, match=r"takes `inputs\.pixels` as an array of numbers"):
        network_inputs(Prompt({"inputs.pixels": value}))  # type: ignore[dict-item]


def test_numbered_inputs_make_a_list() -> None:
    one, two, ids = torch.zeros(1), torch.ones(2), torch.arange(3)
    found = with_lists({"pixels.0": one, "pixels.1": two, "ids": ids})
    assert found["ids"] is ids
    assert found["pixels"][0] is one
    assert found["pixels"][1] is two
