"""Several outputs in one message: all that are there, in order, and an error only after the outputs before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OutOfMemory
from penstock.processors.base import Output
from penstock.workers.io.output_groups import MAX_ARRAYS, MAX_BYTES, MAX_OUTPUTS, OutputGroups, joined, separated

TILE = {"classes": np.zeros(100, np.uint8)}


def output(data: dict[str, Any], *, followed: bool = True) -> Output:
    return Output(data, followed=followed)


def groups(outputs: Sequence[Output]) -> list[list[Output]]:
    taken = OutputGroups(iter(outputs))
    return list(iter(taken.take, []))


def sizes(outputs: Sequence[Output]) -> list[int]:
    return [len(group) for group in groups(outputs)]


def test_outputs_that_are_there_share_a_message_and_nobody_waits_for_more() -> None:
    flags = [True, True, False, False, True, False]
    assert sizes([output(TILE, followed=flag) for flag in flags]) == [3, 1, 2]


def test_no_output_is_asked_for_before_it_is_there() -> None:
    asked = []

    def outputs() -> Iterator[Output]:
        for number, followed in enumerate([True, False, False]):
            asked.append(number)
            yield output(TILE, followed=followed)

    taken = OutputGroups(outputs())
    assert len(taken.take()) == 2
    assert asked == [0, 1]


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (TILE, [MAX_OUTPUTS, 40 - 2 * MAX_OUTPUTS]),
        ({"scores": np.zeros(MAX_BYTES // 4, np.uint8)}, [4]),
        ({"scores": np.zeros(MAX_BYTES + 1, np.uint8)}, [1]),
        ({str(number): np.zeros(1) for number in range(MAX_ARRAYS // 2)}, [2]),
        ({"text": "a"}, [1]),
        ({"scores": np.zeros(1), "text": "a"}, [1]),
    ],
)
def test_a_message_has_few_and_small_arrays_or_a_single_output(each: dict[str, Any], expected: list[int]) -> None:
    found = sizes([output(each)] * 40)
    assert sum(found) == 40
    assert set(found) == set(expected)


def test_an_output_that_does_not_fit_is_the_first_of_the_next_message() -> None:
    large = {"scores": np.zeros(MAX_BYTES, np.uint8)}
    found = groups([output(TILE), output(TILE), output(large), output(TILE), output({"text": "b"}), output(TILE)])
    assert [[list(each.data) for each in group] for group in found] == [
        [["classes"], ["classes"]], [["scores"]], [["classes"]], [["text"]], [["classes"]],
    ]  # fmt: skip


def test_an_error_comes_after_the_outputs_before_it_and_once() -> None:
    def outputs() -> Iterator[Output]:
        yield output(TILE)
        yield output(TILE)
        raise OutOfMemory("too large")

    taken = OutputGroups(outputs())
    assert len(taken.take()) == 2
    with pytest.raises(OutOfMemory, match="too large"):
        taken.take()
    assert taken.take() == []


names = st.text(max_size=4)
arrays = st.integers(0, 9).map(lambda number: np.full(number, number, np.int16))


@given(st.lists(st.tuples(st.dictionaries(names, arrays, max_size=3), st.booleans()), max_size=5))
def test_the_outputs_of_a_message_are_those_that_were_put_into_it(made: list[tuple[dict[str, Any], bool]]) -> None:
    outputs = [Output(data, partial=partial) for data, partial in made]
    found = list(separated(joined(outputs), [each.partial for each in outputs]))
    assert [each.partial for each in found] == [each.partial for each in outputs]
    for one, other in zip(found, outputs, strict=True):
        assert {name: value.tolist() for name, value in one.data.items()} == {
            name: value.tolist() for name, value in other.data.items()
        }
