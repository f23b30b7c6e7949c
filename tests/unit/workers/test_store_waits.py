"""The pauses between tries while the object store is away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.store_waits import FIRST_PAUSE_S, MAX_PAUSE_S, pause_s


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause_s(n, 0.0) for n in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 8, 10]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_pause_is_never_nothing_and_never_long(failures: int, draw: float) -> None:
    assert FIRST_PAUSE_S / 2 <= pause_s(failures, draw) <= MAX_PAUSE_S
