"""A call that is held between its steps."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.observation.listening import listener, listening
from penstock.workers.engine.resumable import Pause, Paused, Resumable, Returned
from tests.support.polling import wait_for


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """Turn the collection of circles off: a canceled job's memory must not wait for one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    """Memory that a function holds."""


def running() -> int:
    return sum(thread.name == "resumable" for thread in threading.enumerate())


def test_a_function_runs_from_point_to_point_while_a_caller_waits() -> None:
    seen: list[int] = []

    def run(pause: Pause) -> str:
        for number in range(2):
            seen.append(number)
            pause(number)
        return "end"

    call = Resumable(run)
    assert not seen
    assert call.resume() == Paused(0)
    assert seen == [0]
    assert [call.resume(), call.resume()] == [Paused(1), Returned("end")]
    call.close()
    assert not running()


def test_an_error_is_raised_to_the_caller_and_its_frames_are_freed_with_it() -> None:
    held: list[weakref.ref[Held]] = []

    def run(pause: Pause) -> None:
        memory = Held()
        held.append(weakref.ref(memory))
        pause(1)
        raise MemoryError("no more")

    call = Resumable(run)
    call.resume()
    with suppress(MemoryError):
        call.resume()
    call.close()
    assert not running()
    assert held[0]() is None
    again = Resumable(run)
    again.resume()
    with pytest.raises(MemoryError, match="no more"):
        again.resume()


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("closed", [True, False])
def test_a_call_that_nobody_wants_any_more_ends(steps: int, closed: bool) -> None:
    held: list[weakref.ref[Held]] = []

    def run(pause: Pause) -> None:
        memory = Held()
        held.append(weakref.ref(memory))
        while True:
            pause(None)

    call = Resumable(run)
    for _ in range(steps):
        call.resume()
    assert running() == 1
    if closed:
        call.close()
        call.close()
        assert not running()
    del call
    wait_for(lambda: not running(), "the call goes on")
    assert [reference() for reference in held] == [None] * min(steps, 1)


def test_its_lines_reach_the_job_that_began_it() -> None:
    heard: list[str] = []

    def run(pause: Pause) -> None:
        for number in range(2):
            hear = listener()
            assert hear is not None
            hear("warning", f"said {number}")
            pause(None)

    with listening(lambda _, text: heard.append(text)):
        call = Resumable(run)
        call.resume()
    call.resume()
    call.close()
    assert heard == ["said 0", "said 1"]
