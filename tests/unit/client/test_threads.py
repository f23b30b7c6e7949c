"""Calls in threads."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial

import pytest

from penstock.client.answers import Event
from penstock.client.threads import follow, pause, together
from penstock.client.uploads import TransferStopped


def test_results_keep_their_order_and_so_many_calls_run_at_once() -> None:
    both = threading.Barrier(2)

    def call(number: int) -> int:
        both.wait(30)  # two at a time meet, and no third
        return number

    assert together([partial(call, n) for n in range(6)], 2, threading.Event()) == list(range(6))


def test_a_call_that_fails_ends_the_pauses_of_the_others_and_those_that_wait_never_begin() -> None:
    stop, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def fail() -> None:
        assert begun.wait(30)
        raise ValueError("mine")

    def wait() -> None:
        begun.set()
        try:
            pause(3600, stop)
        except TransferStopped:
            ended.set()
            raise

    with pytest.raises(ValueError, match="mine"):
        together([fail, wait], 2, stop)
    assert ended.is_set()


def test_events_end_with_a_callers_own_error() -> None:
    ended = threading.Event()

    def events() -> Generator[Event, None, None]:
        try:
            while True:
                yield Event(type="job.progress")
        finally:
            ended.set()

    def fail(_event: Event) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        follow(events(), fail, None)
    assert ended.is_set(), caught  # whose frames hold the events
