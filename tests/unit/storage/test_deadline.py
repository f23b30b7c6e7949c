"""The pause after a time-out: one call a second probes, until one is answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.deadline import Pause

PAUSE_S = 1.0


class Clock:
    """A clock that only moves when a test moves it."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def admitted(pause: Pause, calls: int) -> int:
    """Return the number of calls that may be sent."""
    return sum(pause.admits() for _ in range(calls))


def test_every_call_may_ask_a_store_that_answers() -> None:
    assert admitted(Pause(PAUSE_S), 5) == 5


def test_after_a_time_out_one_call_a_second_may_ask() -> None:
    clock = Clock()
    pause = Pause(PAUSE_S, clock)
    pause.begin()
    assert admitted(pause, 5) == 0
    for _ in range(3):
        clock.now_s += PAUSE_S
        assert admitted(pause, 5) == 1
        pause.begin()  # after a call that was sent before: the next probe is not put off
    pause.end()
    assert admitted(pause, 5) == 5


#: Events of a pause: calls come, one that was sent is answered or times out, or seconds pass.
STEPS = st.lists(st.sampled_from(["call", "answered", "timed_out", "0.3", "0.7", "1.0"]), max_size=80)


@given(STEPS)
def test_after_a_time_out_and_until_an_answer_at_most_one_call_a_second_asks(steps: list[str]) -> None:
    clock = Clock()
    pause = Pause(PAUSE_S, clock)
    asked_s: list[float] | None = None  # since the time-out; None while the store answers
    for step in steps:
        if step == "call":
            asked = admitted(pause, 3)
            if asked_s is None:
                assert asked == 3
            else:
                is_due = clock.now_s >= asked_s[-1] + PAUSE_S
                assert asked == (1 if is_due else 0)
                asked_s += [clock.now_s] * asked
        elif step == "answered":
            pause.end()
            asked_s = None
        elif step == "timed_out":
            pause.begin()
            asked_s = [clock.now_s] if asked_s is None else asked_s
        else:
            clock.now_s += float(step)


@given(STEPS)
def test_a_store_that_answers_again_is_found_by_the_first_call_after_a_second(steps: list[str]) -> None:
    clock = Clock()
    pause = Pause(PAUSE_S, clock)
    for step in steps:
        if step == "call":
            admitted(pause, 1)
        elif step == "answered":
            pause.end()
        elif step == "timed_out":
            pause.begin()
        else:
            clock.now_s += float(step)
    clock.now_s += PAUSE_S
    assert admitted(pause, 1) == 1
    pause.end()
    assert admitted(pause, 5) == 5
