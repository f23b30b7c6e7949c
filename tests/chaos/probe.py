"""Somebody who asks the API all the time how it is, and notes how long it takes to say no."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.clients import Client
from tests.chaos.history import History

ASK_EVERY_S = 0.1


class Probe:
    """The refusals so far."""

    def __init__(self, base_url: str, history: History) -> None:
        self.refused = 0
        self.slowest_refusal_s = 0.0
        self._client = Client(base_url, history)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="probe")
        self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _ask(self) -> None:
        while not self._ended.wait(ASK_EVERY_S):
            answer, _ = self._client.ask("probe", "", "GET", "/v1/models")
            if answer.status == 503:
                self.refused += 1
                self.slowest_refusal_s = max(self.slowest_refusal_s, answer.took_s)


@contextmanager
def probing(base_url: str, history: History) -> Iterator[Probe]:
    """Have a probe ask inside the block."""
    probe = Probe(base_url, history)
    try:
        yield probe
    finally:
        probe.close()
