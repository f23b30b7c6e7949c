"""Reductions of scores that a processor asks for."""

from __future__ import annotations

import pytest

from penstock.processors.base import Prompt
from penstock.processors.prompt_names import REDUCE
from penstock.processors.reductions import Reduction, reduction_for, without_request


@pytest.mark.parametrize(
    ("outputs", "expected", "channels"),
    [
        (["classes", "stats", "polygons"], Reduction.CLASSES, 1),
        (["confidence"], Reduction.CONFIDENCE, 2),
        (["classes", "confidence", "probability"], Reduction.PROBABILITY, 6),
    ],
)
def test_the_smallest_reduction_is_asked_for(outputs: list[str], expected: Reduction, channels: int) -> None:
    assert reduction_for(outputs, 5) is expected
    assert expected.channels(5) == channels


def test_scores_are_asked_for_where_they_are_wanted_or_ids_need_more_than_a_byte() -> None:
    assert reduction_for(["probability_float32"], 5) is None
    assert reduction_for(["classes"], 256) is None


def test_a_request_is_taken_from_a_prompt() -> None:
    plain = Prompt({"pixels": 1}, cost=3, tenant="a")
    assert without_request(plain) is plain
    assert without_request(Prompt({"pixels": 1, REDUCE: "classes"}, cost=3, tenant="a")) == plain
