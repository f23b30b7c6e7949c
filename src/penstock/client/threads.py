"""The part of the sync client that is done with threads. `tasks` has the same names for asyncio."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from typing import ParamSpec, TypeAlias, TypeVar

import httpx2

from penstock.client.answers import Event
from penstock.client.uploads import TransferStopped

P = ParamSpec("P")
T = TypeVar("T")
#: A call without arguments.
Call: TypeAlias = Callable[[], T]
#: Waits for seconds, or until the event is set.
Pause: TypeAlias = Callable[[float, threading.Event | None], None]


def in_thread(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function that blocks, in this thread."""
    return function(*args, **named)


def pause(seconds: float, stop: threading.Event | None) -> None:
    """Wait; raise `TransferStopped` as soon as `together` ends the call."""
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise TransferStopped("another transfer failed")


def together(calls: Sequence[Call[T]], at_a_time: int, stop: threading.Event) -> list[T]:
    """Return the results of calls in threads, at most `at_a_time` at once; a failure ends the others."""
    with ThreadPoolExecutor(at_a_time, thread_name_prefix="penstock-transfer") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def follow(events: Generator[Event, None, None], on_event: Callable[[Event], None], _timeout_s: float | None) -> None:
    """Call `on_event` with each event, then end their connection; `cut_off` ends them in time."""
    with closing(events):
        for event in events:
            on_event(event)


@contextmanager
def cut_off(response: httpx2.Response, after_s: float) -> Iterator[None]:
    """Shut the connection of a response after `after_s` seconds; the timeouts of httpx2 start anew with each chunk."""
    stream = response.extensions.get("network_stream")
    if stream is None or after_s == math.inf:
        yield
        return
    timer = threading.Timer(after_s, _shut, [stream.get_extra_info("socket")])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # already closed
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # the reading thread sees the end
