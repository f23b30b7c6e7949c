"""Several runs in one job: their outputs are told apart, and their strips are numbered one run after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.processors.base import Divisible, Output
from penstock.processors.geo.runs import SplitOutputs, one_division, part_of_run


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6), ahead=st.integers(1, 9))
def test_each_run_gets_its_outputs_however_many_prompts_are_drawn_ahead(counts: list[int], ahead: int) -> None:
    pending: list[Any] = [deque[int]() for _ in counts]

    def prompts() -> Iterator[tuple[int, int]]:
        for run, count in enumerate(counts):
            for tile in range(count):
                pending[run].append(tile)
                yield run, tile

    def outputs() -> Iterator[Output]:
        drawn, source = deque[tuple[int, int]](), prompts()
        while True:
            while len(drawn) < ahead and (prompt := next(source, None)) is not None:
                drawn.append(prompt)
            if not drawn:
                return
            yield Output({}, partial=True)
            yield Output({"of": drawn.popleft()})

    split, found = SplitOutputs(outputs()), []
    for run in range(len(counts)):
        last = run == len(counts) - 1
        for output in split.rest() if last else split.of(pending[run]):
            pending[run].popleft()
            found.append((run, output.data["of"]))
    assert found == [(run, (run, tile)) for run, count in enumerate(counts) for tile in range(count)]


def test_units_of_runs_are_numbered_one_run_after_the_other() -> None:
    first = Divisible("a", ((0, 5, 5), (2, 5, 0)), {"a": "text"})
    second = Divisible("b", ((1, 3, 3),))
    found = one_division([(first, 4), (second, 2), (first, 4)])
    assert found is not None
    assert found.units == ((0, 5, 5), (2, 5, 0), (5, 3, 3), (6, 5, 5), (8, 5, 0))
    assert found.findings == {"a": "text"}
    other = one_division([(second, 2), (first, 4), (first, 4)])
    assert other is not None
    assert found.digest != other.digest
    assert one_division([(first, 4), (None, 1)]) is None


@pytest.mark.parametrize(
    ("part", "strips", "own"),
    [(range(3, 9), 0, range(3, 9)), (range(3, 9), 4, range(5)), (range(3), 4, range(0)), (None, 4, None)],
)
def test_a_part_has_the_strips_of_each_run_that_fall_into_it(part: Any, strips: int, own: Any) -> None:
    assert part_of_run(part, strips) == own
