"""Figures of turns: the measures alternate, and a ratio is the median of the turns' ratios."""

from __future__ import annotations

from functools import partial

from benchmarks.measuring import in_turns, median_ratio


def test_measures_alternate() -> None:
    order: list[str] = []

    def measure(name: str) -> int:
        order.append(name)
        return len(order)

    found = in_turns({name: partial(measure, name) for name in ("now", "before")}, 3)
    assert order == ["now", "before"] * 3
    assert found == {"now": [1, 3, 5], "before": [2, 4, 6]}


def test_a_ratio_is_the_median_of_the_turns_and_not_the_ratio_of_medians() -> None:
    """A turn on a slow machine changes both sides, and so it does not change the ratio."""
    assert median_ratio([1.0, 20.0, 3.0], [2.0, 20.0, 6.0]) == 0.5
