"""The threads of the sync client. `async_runtime` has the same names for asyncio."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeAlias, TypeVar

import httpx2

from penstock.client.answers import Event
from penstock.client.downloads import chunks
from penstock.client.protocol import Flow, Together

__all__ = ["Sleep", "blocking", "chunks", "cut_off", "follow", "sleep", "together"]

P = ParamSpec("P")
T = TypeVar("T")
sleep = time.sleep
Sleep: TypeAlias = Callable[[float], object]
#: Runs a flow: a client's method.
Run: TypeAlias = Callable[[Flow[Any], Sleep], Any]


def blocking(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function that blocks."""
    return function(*args, **named)


def together(run: Run, step: Together) -> list[Any]:
    """Run flows in threads, at most `at_a_time` at once; a failure ends the others."""
    with ThreadPoolExecutor(step.at_a_time, thread_name_prefix="penstock-transfer") as pool:
        futures = [pool.submit(run, flow, step.stop.wait) for flow in step.flows]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            step.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def follow(events: Iterator[Event], on_event: Callable[[Event], None], _timeout_s: float | None) -> None:
    """Call `on_event` with each event; `cut_off` ends them in time."""
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
