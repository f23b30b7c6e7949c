"""The processor time of a decode, bounded by the size that its file declares.

A damaged or forged file can keep a decoder busy for minutes. C code cannot be interrupted, but its process can be
ended: in an IO process the kernel ends it by SIGPROF when a decode took too long, and the job fails with
`media_unreadable`. In a thread of `penstock run` there is no bound.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

#: Seconds of processor time of any decode, and for each pixel and each byte of the file.
BASE_S, PIXEL_S, BYTE_S = 5.0, 1e-6, 2e-7

_lock = threading.Lock()
_enabled = False
_numbers = itertools.count()
#: The processor time of this process at which a running decode has taken too long.
_deadlines: dict[int, float] = {}


def enable() -> None:
    """Bound all decodes of this process, which serves nothing but one job."""
    global _enabled
    _enabled = True


@contextmanager
def decoding(*, pixels: int = 0, size_bytes: int = 0) -> Iterator[None]:
    """Bound the processor time of a block that decodes a file with these declared sizes."""
    if not _enabled:
        yield
        return
    number = next(_numbers)
    with _lock:
        now = time.process_time()
        _deadlines[number] = now + allowed_s(pixels=pixels, size_bytes=size_bytes)
        _set_timer(now)
    try:
        yield
    finally:
        with _lock:
            del _deadlines[number]
            if _deadlines:
                _set_timer(time.process_time())
            else:
                signal.setitimer(signal.ITIMER_PROF, 0)


def bounded(parts: Iterator[T], *, pixels: int = 0) -> Iterator[T]:
    """Yield the parts of a recording or video, each decoded within the time of one with these pixels."""
    while True:
        with decoding(pixels=pixels):
            part = next(parts, None)
        if part is None:
            return
        yield part


def allowed_s(*, pixels: int = 0, size_bytes: int = 0) -> float:
    """Return the seconds of processor time for a decode."""
    return BASE_S + PIXEL_S * pixels + BYTE_S * size_bytes


def _set_timer(now: float) -> None:
    """Set the timer to the first deadline; `now` is the processor time of this process."""
    signal.setitimer(signal.ITIMER_PROF, max(min(_deadlines.values()) - now, 0.001))
