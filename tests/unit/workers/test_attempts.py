"""Tokens and pixels of an attempt, by its prompts, its outputs, and what its result states."""

from __future__ import annotations

import numpy as np

from penstock.processors.base import Output, Prompt
from penstock.workers.attempts import Counted

TEXT = Prompt({"input_ids": np.arange(5)}, cost=25)
TILE = Prompt({"pixels": np.zeros((3, 4, 8), np.float32)}, cost=32)


def test_nothing_is_counted_of_a_unit_that_was_not_used() -> None:
    assert Counted().prompt(Prompt({"sound": np.zeros(9)}, cost=9)).output(Output({"logits": np.zeros(2)})) == Counted()


def test_prompts_add_their_tokens_or_their_pixels() -> None:
    assert Counted().prompt(TEXT).prompt(TEXT) == Counted(tokens_in=10)
    assert Counted().prompt(TILE).prompt(TILE) == Counted(pixels=64)
    assert Counted().prompt(Prompt({"image": np.zeros((4, 8, 3))}, cost=32)) == Counted(pixels=32)


def test_outputs_add_the_generated_tokens() -> None:
    assert Counted().prompt(TEXT).output(Output({"token_ids": [1, 2, 3]})) == Counted(tokens_in=5, tokens_out=3)


def test_tokens_that_a_result_states_win() -> None:
    counted = Counted(tokens_in=5, tokens_out=9, pixels=1)
    stated = {"usage": {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}}
    assert counted.result(stated) == Counted(6, 4, 1)
    assert counted.result({"usage": {"prompt_tokens": 6}}) == Counted(6, 9, 1)
    for other in (None, {}, {"usage": "much"}, {"usage": {"prompt_tokens": "many"}}):
        assert counted.result(other) == counted
