"""The thread that draws the prompts of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Longest wait for a feeder to begin, in seconds.
BEGIN_S = 1.0


class Feeder(threading.Thread):
    """A thread for one call; `wait` after an attempt to start it."""

    def __init__(self, feed: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._feed = feed
        self._begun = threading.Event()

    def run(self) -> None:
        """Feed."""
        self._begun.set()
        try:
            self._feed()
        finally:
            del self._feed  # it holds the run

    def wait(self) -> None:
        """Wait for the end, so that nobody closes prompts in use."""
        # Ctrl-C may interrupt `start` although the thread began.
        self._begun.wait(BEGIN_S)
        if self.is_alive():
            self.join()
