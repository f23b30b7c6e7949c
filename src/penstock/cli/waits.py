"""Waits for the service, said on standard error: it went away, or limits the rate of requests."""

from __future__ import annotations

from http import HTTPStatus

from penstock.cli.display import err
from penstock.client.answers import PenstockAPIError, Unreachable

#: Pauses in seconds below which nothing is said: a single connection that breaks is no news.
SHORT_S = 0.5


class Waits:
    """A receiver of a client's retries that says each new reason once."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._said = ""

    def __call__(self, failure: Unreachable | PenstockAPIError, pause_s: float) -> None:
        """Say why a request is sent again later, and when."""
        sentence = self._sentence(failure, pause_s)
        key = sentence.partition(":")[0]
        if pause_s >= SHORT_S and key != self._said:
            self._said = key
            err.print(sentence)

    def _sentence(self, failure: Unreachable | PenstockAPIError, pause_s: float) -> str:
        if isinstance(failure, Unreachable):
            return f"the service went away: {failure}; trying again for up to {self._patience_s:.0f} s"
        if failure.status == HTTPStatus.TOO_MANY_REQUESTS:
            return f"waiting {pause_s:.0f} s at a limit of the service: {failure.detail}"
        return f"waiting {pause_s:.0f} s for the service: {failure.detail}"
