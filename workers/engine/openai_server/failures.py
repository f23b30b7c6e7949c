"""Failures of a server: which are worth another try, after how long, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.retries import retry_after_s
from penstock.errors import InvalidInput, ModelServerFailed, ModelUnavailable, PenstockError

#: Seconds before the second try, doubled for each further one up to `LONGEST_PAUSE_S`.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: Seconds that a server can ask a request to wait, at most: then it is asked again.
MAX_AFTER_S = 300.0
#: Characters of a server's words in an error, at most.
MAX_WORDS = 500
_BUSY, _UNAVAILABLE = 429, 503
#: Statuses of 4xx that say nothing about the request.
_TRANSIENT = frozenset({408, 409, 425})
_REFUSES_KEY = frozenset({401, 403, 407})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class Failed(Exception):
    """A failure that may pass: the server is away, answers 5xx, stalls, or cuts a stream."""


class Busy(Exception):
    """The server asks to wait, for `after_s` seconds at least: such a request has not failed."""

    def __init__(self, reason: str, after_s: float) -> None:
        super().__init__(reason)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of a request so far."""

    #: Further tries after failures, at most.
    retries: int
    failures: int = 0
    waits: int = 0

    def failed(self, failure: Failed) -> Tries:
        """Return the tries after a failure; raise `ModelServerFailed` after the last one."""
        if self.failures >= self.retries:
            again = f"; asked {self.failures + 1} times" if self.failures else ""
            raise ModelServerFailed(f"{failure}{again}")
        return Tries(self.retries, self.failures + 1)

    def waited(self) -> Tries:
        """Return the tries after the server asked to wait."""
        return Tries(self.retries, self.failures, self.waits + 1)

    @property
    def pause_s(self) -> float:
        """Seconds until the next try."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(20, max(0, self.failures + self.waits - 1)))


def refusal(status: int, headers: Mapping[str, str], words: str, *, server: str) -> Exception:
    """Return the exception for an answer that is not a success, with the server's name."""
    said = f"{server} answered {status}{f': {words}' if words else ''}"
    after_s = retry_after_s(headers.get("retry-after"))
    if status == _BUSY or (status == _UNAVAILABLE and after_s is not None):
        return Busy(said, min(MAX_AFTER_S, after_s or 0.0))
    if status >= 500 or status in _TRANSIENT:
        return Failed(said)
    return final(status, said, server)


def final(status: int, said: str, server: str) -> PenstockError:
    """Return the error of a request that no further try would help."""
    if status in _REFUSES_KEY:
        return ModelUnavailable(f"{said}: check `options.api_key_variable` of the record")
    if 300 <= status < 400:
        return ModelUnavailable(f"{server} redirects ({status}), which is not followed: correct `source`")
    return InvalidInput(said)


def told(error: Mapping[str, Any], *, server: str) -> Exception:
    """Return the exception for an error that came within a stream."""
    code = error.get("code")
    status = code if isinstance(code, int) else 500
    words = cleaned(str(error.get("message") or error))
    return refusal(status, {}, words, server=server)


def words_of(body: Any, hidden: Callable[[str], str] = str) -> str:
    """Return a server's own words from the JSON of its error, or from its text, as `hidden` leaves them."""
    for name in ("error", "message", "detail"):
        if isinstance(body, Mapping) and body.get(name):
            body = body[name]
    return cleaned(hidden(str(body)))  # hidden before the words are cut


def cleaned(words: str) -> str:
    """Return words in one line, cut at their limit."""
    line = " ".join(_CONTROL.sub(" ", words).split())
    return line if len(line) <= MAX_WORDS else f"{line[:MAX_WORDS]}..."
