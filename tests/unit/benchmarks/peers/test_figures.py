"""Figures of peers: percentiles, ratios, and a line for each peer, also where it did not run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers.figures import BASE, Killed, Measured, Row, duration, percentile, rate, table

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@settings(deadline=None)
@given(values, st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_enough_values_do_not_exceed(found: list[float], share: float) -> None:
    value = percentile(found, share)
    assert value in found
    assert sum(each <= value for each in found) >= share * len(found) - 1e-9
    assert sum(each < value for each in found) < share * len(found) + 1e-9


def test_percentiles_are_known_values() -> None:
    assert percentile([5, 1, 3, 2, 4], 0.5) == 3
    assert percentile([5, 1, 3, 2, 4], 0.99) == 5
    assert percentile(list(range(1, 101)), 0.99) == 99
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def measured(count: int = 4, took_s: float = 2.0, processor_s: float = 1.0) -> Measured:
    return Measured(tuple(0.01 * (i + 1) for i in range(count)), took_s, processor_s, 123_400_000)


def test_a_row_has_its_ratios_to_penstock() -> None:
    rows = [Row(BASE, measured()), Row("Other", measured(count=8, processor_s=1.0), Killed(10, 3, 0.25), "batches")]
    *_, ours, other = table("No-op", rows).splitlines()
    assert ours == f"| {BASE} | 2 | 1.00 | 20 ms / 40 ms | 250 ms | 1.00 | 123 MB | - |  |"
    assert other == (
        "| Other | 4 | 2.00 | 40 ms / 80 ms | 125 ms | 0.50 | 123 MB | 3 of 10, back after 250 ms | batches |"
    )


def test_without_penstock_there_are_no_ratios() -> None:
    assert table("No-op", [Row("Other", measured())]).splitlines()[-1].count("| - |") == 3


@settings(deadline=None)
@given(st.text(max_size=80))
def test_a_reason_stays_in_its_cell(reason: str) -> None:
    lines = table("No-op", [Row("Other", note=reason)]).split("\n")
    assert len(lines) == 5
    assert lines[-1].count("|") == lines[-2].count("|")


def test_a_row_that_did_not_run_says_why() -> None:
    line = table("No-op", [Row("vLLM", note="not installed: needs a GPU")]).splitlines()[-1]
    assert line == "| vLLM | - | - | - | - | - | - | - | not installed: needs a GPU |"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123456, "12.3 ms"), (0.5, "500 ms"), (1.0, "1.0 s"), (83.26, "83.3 s")]
)
def test_durations_have_their_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("per_s", "text"), [(0.0512, "0.0512"), (12.34, "12.3"), (1234.5, "1,234")])
def test_rates_have_three_digits(per_s: float, text: str) -> None:
    assert rate(per_s) == text
