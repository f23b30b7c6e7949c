"""Rules that place tenants in cells (`benchmarks/cells.py`), in a simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cells import FULL, balanced, hashed, loads, moved_share, simulate

pytestmark = pytest.mark.breadth

TENANTS = st.dictionaries(st.text("abc", min_size=1, max_size=5), st.floats(0.1, 100), min_size=1, max_size=30)


@given(tenant=st.text(max_size=10), cells=st.integers(1, 20))
def test_a_further_cell_takes_tenants_and_moves_no_other(tenant: str, cells: int) -> None:
    assert hashed(tenant, cells + 1) in {hashed(tenant, cells), cells}


@given(rates=TENANTS, cells=st.integers(1, 6), seed=st.randoms(use_true_random=False))
def test_moves_keep_every_tenant_and_never_fill_a_cell_more_than_the_fullest_was(
    rates: dict[str, float], cells: int, seed: object
) -> None:
    places = {tenant: seed.randrange(cells) for tenant in rates}  # type: ignore[attr-defined]
    after = balanced(rates, places, cells)
    assert after.keys() == rates.keys()
    before, now = loads(rates, places, cells), loads(rates, after, cells)
    assert sum(now) == pytest.approx(sum(rates.values()))
    assert max(now) <= max(before) + 1e-6
    if max(before) <= FULL * sum(before) / cells:
        assert (after, moved_share(rates, places, after)) == (places, 0)


def test_moves_even_out_what_a_hash_does_not() -> None:
    rules, _ = simulate(1, 400, 8, 10)
    fullest = {rule.name: rule.fullest[-1] for rule in rules}
    assert fullest["table, moves"] < fullest["table"] < fullest["hash"]
    moved = {rule.name: sum(rule.moved) for rule in rules}
    assert moved["hash"] == moved["table"] == 0 < moved["table, moves"] < 0.3
