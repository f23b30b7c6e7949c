"""Device time: the share of the last minute in which the device computed batches."""

from __future__ import annotations

import threading
from collections import deque

#: Seconds that a share covers at least, once the process has lived so long.
WINDOW_S = 60.0


class DeviceTime:
    """The time that one device computes. All times are of the monotonic clock; calls may come from several threads."""

    def __init__(self, *, at: float) -> None:
        self._lock = threading.Lock()
        self._ended_s = 0.0
        self._began: float | None = None
        #: Earlier readings: their times, and the seconds of work until then.
        self._readings = deque([(at, 0.0)])

    def begin(self, *, at: float) -> None:
        """Note that a batch begins."""
        with self._lock:
            self._began = at

    def end(self, *, at: float) -> None:
        """Note that the batch has ended."""
        with self._lock:
            if self._began is not None:
                self._ended_s += at - self._began
            self._began = None

    def share(self, *, at: float) -> float:
        """Return the share of time, from 0 to 1, in which batches ran since a reading at least `WINDOW_S` old.

        Notes a reading. Without an older one the share begins at the first. A batch that has not ended counts.
        """
        with self._lock:
            worked_s = self._ended_s + (at - self._began if self._began is not None else 0.0)
            while len(self._readings) > 1 and at - self._readings[1][0] >= WINDOW_S:
                self._readings.popleft()
            since, before_s = self._readings[0]
            self._readings.append((at, worked_s))
        return min(1.0, (worked_s - before_s) / (at - since)) if at > since else 0.0
