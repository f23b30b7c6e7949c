"""Waiting for what other processes do, where nothing tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02
#: Pause after a look, in the processor time that it took: what is waited for needs the processor too.
PAUSE_PER_LOOK = 4


def wait_for(condition: Callable[[], object], otherwise: str, *, timeout_s: float = 120) -> None:
    """Look until a condition holds that another thread or process brings about without a word; fail with `otherwise`.

    For files, records and processes that nothing can wait for. Where there is an event, wait for that.
    """
    ends = time.monotonic() + timeout_s
    begun = time.thread_time()
    while not condition():
        assert time.monotonic() < ends, otherwise
        time.sleep(max(LOOK_EVERY_S, PAUSE_PER_LOOK * (time.thread_time() - begun)))
        begun = time.thread_time()
