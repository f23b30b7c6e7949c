"""The rate limit admits never more than a rate and a burst, and never less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.admission.rate_limit import BURST, BURST_S, RateLimit
from penstock.config import Settings
from penstock.config_tables import TenantLimits


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def limit_of(clock: Clock, per_s: float | None = None, **tenants: float) -> RateLimit:
    own = {tenant: TenantLimits(max_submissions_per_s=limit) for tenant, limit in tenants.items()}
    return RateLimit(Settings(max_tenant_submissions_per_s=per_s, tenants=own), clock)


def test_a_burst_may_come_at_once_and_the_next_is_told_when() -> None:
    clock = Clock()
    rate = limit_of(clock, 4)
    assert [rate.excess("a") for _ in range(BURST)] == [None] * BURST

    refused = rate.excess("a")

    assert refused is not None
    assert refused.code == "too_many_requests"
    assert refused.retry_after_s == pytest.approx(0.25)
    assert refused.detail == "this tenant may submit 4 times per second; try again in 1 s"
    assert rate.excess("b") is None  # others have their own


def test_who_comes_back_when_told_is_let_in_once() -> None:
    clock = Clock()
    rate = limit_of(clock, 0.1)
    assert [rate.excess("a") for _ in range(BURST)] == [None] * BURST
    refused = rate.excess("a")
    assert refused is not None
    assert refused.retry_after_s == pytest.approx(10)

    clock.now_s += refused.retry_after_s or 0

    assert rate.excess("a") is None
    assert rate.excess("a") is not None


def test_a_tenants_own_limit_goes_before_that_for_all() -> None:
    clock = Clock()
    rate = limit_of(clock, None, slow=1)
    assert rate.limits_any
    assert [rate.excess("other") for _ in range(1000)] == [None] * 1000
    assert [rate.excess("slow") is None for _ in range(BURST + 1)] == [True] * BURST + [False]


def test_a_high_rate_has_a_burst_of_its_own() -> None:
    rate = limit_of(Clock(), 400)
    assert [rate.excess("a") is None for _ in range(101)] == [True] * 100 + [False]


def test_without_a_limit_nothing_is_counted() -> None:
    assert not limit_of(Clock()).limits_any


@given(
    per_s=st.floats(0.01, 1000),
    gaps_s=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_in_no_stretch_of_time_more_are_let_in_than_its_rate_and_a_burst(per_s: float, gaps_s: list[float]) -> None:
    clock = Clock()
    rate, let_in = limit_of(clock, per_s), []
    for gap_s in gaps_s:
        clock.now_s += gap_s
        if rate.excess("a") is None:
            let_in.append(clock.now_s)
    burst = max(BURST, BURST_S * per_s)
    for first, begin in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= burst + per_s * (let_in[last] - begin) + 1e-3
    # Nor less: who comes no faster than its rate is always let in.
    if all(gap_s >= 1 / per_s for gap_s in gaps_s):
        assert len(let_in) == len(gaps_s)
