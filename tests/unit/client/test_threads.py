"""Calls in threads."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.client.threads import pause, together
from penstock.client.transfers import TransferStopped


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
