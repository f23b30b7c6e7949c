"""The breaker: after a time-out one call a second asks, until one is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RedisUnavailable
from penstock.storage.redis.breaker import PROBE_EVERY_S, Breaker


class Clock:
    """Stands still until it is told to go on."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def admitted(breaker: Breaker, calls: int) -> int:
    """Return the number of calls that may ask."""
    asked = 0
    for _ in range(calls):
        try:
            breaker.admit()
        except RedisUnavailable:
            continue
        asked += 1
    return asked


def test_every_call_may_ask_a_store_that_answers() -> None:
    assert admitted(Breaker(), 5) == 5


def test_after_a_time_out_one_call_a_second_may_ask() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.timed_out()
    assert admitted(breaker, 5) == 0
    for _ in range(3):
        clock.now_s += PROBE_EVERY_S
        assert admitted(breaker, 5) == 1
        breaker.timed_out()  # of a call that asked before: the next probe is not put off
    breaker.answered()
    assert admitted(breaker, 5) == 5


def test_the_refusal_says_when_to_come_back() -> None:
    breaker = Breaker()
    breaker.timed_out()
    with pytest.raises(RedisUnavailable) as refused:
        breaker.admit()
    assert refused.value.retry_after_s


#: Steps of a breaker's life: calls come, one of those that ask is answered or times out, or time goes by.
STEPS = st.lists(st.sampled_from(["call", "answered", "timed_out", "0.3", "0.7", "1.0"]), max_size=80)


@given(STEPS)
def test_after_a_time_out_and_until_an_answer_at_most_one_call_a_second_asks(steps: list[str]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    asked_s: list[float] | None = None  # since the time-out; None while the store answers
    for step in steps:
        if step == "call":
            asked = admitted(breaker, 3)
            if asked_s is None:
                assert asked == 3
            else:
                is_due = clock.now_s >= asked_s[-1] + PROBE_EVERY_S
                assert asked == (1 if is_due else 0)
                asked_s += [clock.now_s] * asked
        elif step == "answered":
            breaker.answered()
            asked_s = None
        elif step == "timed_out":
            breaker.timed_out()
            asked_s = [clock.now_s] if asked_s is None else asked_s
        else:
            clock.now_s += float(step)


@given(STEPS)
def test_a_store_that_answers_again_is_found_by_the_first_call_after_a_second(steps: list[str]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for step in steps:
        if step == "call":
            admitted(breaker, 1)
        elif step in ("answered", "timed_out"):
            getattr(breaker, step)()
        else:
            clock.now_s += float(step)
    clock.now_s += PROBE_EVERY_S
    assert admitted(breaker, 1) == 1
    breaker.answered()
    assert admitted(breaker, 5) == 5
