"""Ranges of partial files that a process asks for while its prompts are drawn, on a socket of their own.

`pre_process` asks for ranges on the job's own socket (`session.receive_plan`). In the second half the job's socket
carries outputs, and the worker reads the prompts' socket only while the engine wants a prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

from penstock.errors import ProcessorFailed
from penstock.functions.wire import Closed, Wire, WireError
from penstock.workers.io.ends import failure
from penstock.workers.job_media import MediaRequests

Range = tuple[int, int]


def fill_asked(requests: MediaRequests, message: Mapping[str, Any]) -> Callable[[], None] | None:
    """Return what a message asks for if it is a `fill`; None for others. Raises `ProcessorFailed` for bad ranges."""
    match message:
        case {"kind": "fill", "reference": str(reference), "ranges": list(ranges), "later": bool(later)}:
            return partial(requests.fill, reference, _ranges(ranges), later=later)
        case _:
            return None


def _ranges(pairs: list[Any]) -> list[Range]:
    wanted: list[Range] = []
    for pair in pairs:
        match pair:
            case [int(start), int(end)] if 0 <= start < end:
                wanted.append((start, end))
            case _:
                raise ProcessorFailed("the processor's process asked for an invalid range of a file")
    return wanted


class MediaAnswers:
    """Answers a process in a thread, until it is closed or a fetch fails; `check` then raises the fetch's error."""

    def __init__(self, wire: Wire, requests: MediaRequests) -> None:
        self._wire = wire
        self._requests = requests
        self._error: Exception | None = None
        #: True while the process may be waiting for bytes that come from elsewhere.
        self.fetching = False
        # In this context, so that log lines of a fetch have the ids of the job.
        self._thread = threading.Thread(target=copy_context().run, args=(self._answer,), name="media", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a fetch that failed: the process waits for its bytes in vain."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop, and wait until a fetch in progress has ended: it writes to a file of the attempt."""
        self._wire.shut()
        self._thread.join()
        self._wire.close()

    def _answer(self) -> None:
        try:
            while True:
                self._answer_one(self._wire.receive())
        except Closed:
            return
        except Exception as error:
            self._error = failure(error) if isinstance(error, WireError) else error
            self._wire.shut()  # nobody answers the process any more

    def _answer_one(self, message: Mapping[str, Any]) -> None:
        fill = fill_asked(self._requests, message)
        if fill is None:
            raise ProcessorFailed("the processor's process sent an invalid message instead of a request")
        self.fetching = True
        fill()
        self.fetching = False
        self._wire.send("filled")
