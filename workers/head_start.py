"""The head start of a worker's first job: what that job does not need waits for its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds that the first job gets from the moment when its model is ready.
JOB_S = 5.0
#: Seconds after the start of a worker in which its model must be ready.
MODEL_S = 15.0
#: Seconds between two looks at the reasons to end the head start.
LOOK_EVERY_S = 0.2


class HeadStart:
    """Ends with the first job, at the latest after some seconds. Safe to use from many threads."""

    def __init__(self, *, job_s: float = JOB_S, model_s: float = MODEL_S) -> None:
        #: Seconds that the first job gets.
        self.job_s = job_s
        self._model_s = model_s
        self._over = threading.Event()

    def end(self) -> None:
        """End the head start: the first job has ended, or there is none."""
        if not self._over.is_set():  # called after each job, and `set` takes a lock
            self._over.set()

    def wait(self) -> None:
        """Return at the end of the head start, or when the model of the first job takes too long."""
        self._over.wait(self._model_s)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Return at the end of the head start, and end it after a job's time, or once `is_over` returns True."""
        ends = time.monotonic() + self.job_s
        while (left_s := ends - time.monotonic()) > 0:
            if self._over.wait(min(left_s, LOOK_EVERY_S)) or is_over():
                break
        self._over.set()
