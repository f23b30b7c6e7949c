"""The search for the smallest batch that is about as fast as any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.engine.batch_search import CLOSE, search, sizes


def chosen(most: int, rate: Callable[[int], float | None]) -> tuple[int, list[int]]:
    """Return the choice, and the batches that were measured."""
    steps, measured = search(most), []
    size = next(steps)
    while True:
        measured.append(size)
        try:
            size = steps.send(rate(size))
        except StopIteration as end:
            return end.value, measured


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2, [2, 1]), (8, [8, 4, 2, 1]), (12, [12, 8, 4, 2, 1])])
def test_the_largest_batch_and_all_powers_of_two_below_are_measured(most: int, expected: list[int]) -> None:
    assert list(sizes(most)) == expected


@pytest.mark.parametrize(
    ("rate", "choice", "measured"),
    [
        (lambda size: min(size, 8.0), 8, [32, 16, 8, 4]),  # full from 8 on: 4 is slower, and 2 would be yet slower
        (lambda size: float(size), 32, [32, 16]),
        (lambda size: 100.0 / size, 1, [32, 16, 8, 4, 2, 1]),  # each prompt of a batch slows all others
        (lambda _: 7.0, 1, [32, 16, 8, 4, 2, 1]),
        (lambda size: 100.0 if size > 4 else 96.0, 1, [32, 16, 8, 4, 2, 1]),
        (lambda size: 100.0 if size > 4 else 94.0, 8, [32, 16, 8, 4]),
    ],
)
def test_the_smallest_batch_of_about_the_highest_rate_wins(
    rate: Callable[[int], float], choice: int, measured: list[int]
) -> None:
    assert chosen(32, rate) == (choice, measured)


def test_a_search_that_cannot_go_on_keeps_what_it_knows() -> None:
    assert chosen(32, lambda _: None) == (32, [32])
    assert chosen(32, lambda size: 5.0 if size > 8 else None) == (16, [32, 16, 8])


@given(st.integers(1, 200), st.lists(st.floats(0.1, 1e6) | st.none(), min_size=9, max_size=9))
def test_no_measured_batch_is_clearly_faster_than_the_chosen_one(most: int, rates: list[float | None]) -> None:
    given_rates = dict(zip(sizes(most), rates, strict=False))
    choice, measured = chosen(most, given_rates.__getitem__)
    known = {size: rate for size in measured if (rate := given_rates[size]) is not None}
    assert choice in (known or {most: 1})
    assert all((1 - CLOSE) * rate <= known[choice] for rate in known.values())
    assert len(measured) <= most.bit_length() + 1
