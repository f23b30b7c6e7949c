"""The turnstile: in each turn of the event loop few submissions pass, and refusals take a small share of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.admission.turnstile import MAX_PASSING, OLD_S, SHARE_S, Turnstile

#: Seconds of one answer: three of them exceed a turn's share.
ANSWER_S = SHARE_S * 0.4


@dataclass
class Loop:
    """An event loop with a clock that only work moves."""

    now_s: float = 0.0
    soon: deque[Callable[[], None]] = field(default_factory=deque)
    answered: list[int] = field(default_factory=list)
    #: Numbers that are refused.
    refused: set[int] = field(default_factory=set)

    def turnstile(self) -> Turnstile:
        return Turnstile(self.soon.append, lambda: self.now_s)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


@dataclass
class Submission:
    number: int
    loop: Loop
    cost_s: float = 0.0

    @property
    def is_refused(self) -> bool:
        return self.number in self.loop.refused

    def answer(self) -> None:
        self.loop.answered.append(self.number)
        self.loop.now_s += self.cost_s


def test_few_submissions_pass_in_a_turn_in_the_order_of_their_arrival() -> None:
    loop = Loop()
    turnstile = loop.turnstile()
    for number in range(3 * MAX_PASSING):
        turnstile.admit(Submission(number, loop))
    assert loop.answered == list(range(MAX_PASSING))
    loop.turn()
    assert loop.answered == list(range(2 * MAX_PASSING))
    loop.turn()
    loop.turn()
    assert loop.answered == list(range(3 * MAX_PASSING))
    assert not loop.soon  # an idle turnstile schedules nothing


def test_refusals_take_a_share_of_a_turn_and_the_newest_are_first() -> None:
    loop = Loop(refused=set(range(100)))
    turnstile = loop.turnstile()
    for number in range(10):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    assert loop.answered == [0, 1, 2]
    loop.turn()
    assert len(loop.answered) == 6
    while loop.soon:
        loop.turn()
    assert loop.answered[3:] == [9, 8, 7, 6, 5, 4, 3]


def test_a_refused_submission_that_has_waited_is_answered_before_newer_ones() -> None:
    loop = Loop(refused=set(range(100)))
    turnstile = loop.turnstile()
    for number in range(10):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    loop.now_s += OLD_S
    turnstile.admit(Submission(10, loop, ANSWER_S))
    while loop.soon:
        loop.turn()
    assert loop.answered == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_old_refusals_have_a_share_of_slow_turns_and_newer_ones_have_not() -> None:
    slow_s = OLD_S / 3
    loop = Loop(refused=set(range(300)))
    turnstile = loop.turnstile()
    for number in range(200):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    for _ in range(2):
        loop.now_s += slow_s  # other programs have the processor
        loop.turn()
    assert len(loop.answered) == 9
    loop.now_s += slow_s
    for number in range(200, 220):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    loop.turn()
    assert set(range(200)) <= set(loop.answered)  # they take 24 ms of the turn's 500
    assert len(loop.answered) <= 200 + 2 * 3


def test_old_submissions_pass_in_slow_turns_though_each_takes_a_whole_share() -> None:
    loop = Loop()
    turnstile = loop.turnstile()
    for number in range(100):
        turnstile.admit(Submission(number, loop, 3 * ANSWER_S))
    assert len(loop.answered) == 1
    loop.now_s += OLD_S
    loop.turn()
    assert loop.answered == list(range(1 + MAX_PASSING))


def test_few_pass_in_a_turn_of_those_that_are_not_refused_any_more() -> None:
    loop = Loop(refused=set(range(100)))
    turnstile = loop.turnstile()
    for number in range(100):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    loop.turn()  # all are known to be refused
    answered = len(loop.answered)
    loop.now_s += OLD_S
    loop.refused.clear()
    while loop.soon:
        before = len(loop.answered)
        loop.turn()
        assert len(loop.answered) - before <= MAX_PASSING
    assert answered < len(loop.answered) == 100
    assert loop.answered[answered:] == sorted(loop.answered[answered:])


def test_old_refusals_leave_most_of_the_time_to_others() -> None:
    loop = Loop(refused=set(range(5000)))
    turnstile = loop.turnstile()
    for number in range(5000):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    while loop.soon:
        begun_s = loop.now_s
        loop.now_s += 0.01  # the other work of a turn
        loop.turn()
        assert loop.now_s - begun_s <= 0.014
    assert loop.now_s > OLD_S


def test_a_flood_that_is_refused_delays_no_other_submission() -> None:
    loop = Loop(refused=set(range(100)))
    turnstile = loop.turnstile()
    for number in range(100):
        turnstile.admit(Submission(number, loop, ANSWER_S))
    turnstile.admit(Submission(100, loop))
    turns = 0
    while 100 not in loop.answered:
        loop.turn()
        turns += 1
    assert turns <= 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_every_submission_is_answered_once(arrivals: list[tuple[bool, int]]) -> None:
    loop = Loop()
    turnstile = loop.turnstile()
    for number, (is_refused, turns) in enumerate(arrivals):
        if is_refused:
            loop.refused.add(number)
        before = len(loop.answered)
        turnstile.admit(Submission(number, loop, ANSWER_S))
        assert len(loop.answered) - before <= 1 + len(arrivals)
        for _ in range(turns):
            before = len(loop.answered)
            loop.turn()
            assert len(loop.answered) - before <= MAX_PASSING + 3
    for _ in range(len(arrivals) + 1):
        loop.turn()
    assert sorted(loop.answered) == list(range(len(arrivals)))
    assert not loop.soon
