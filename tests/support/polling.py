"""Waiting for what other processes do, where nothing tells of it."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def wait_for(condition: Callable[[], object], otherwise: str, *, timeout_s: float = 120) -> None:
    """Look until a condition holds that another thread or process brings about without a word; fail with `otherwise`.

    For files, records and processes that nothing can wait for. Where there is an event, wait for that.
    """
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, otherwise
        time.sleep(LOOK_EVERY_S)
