"""The expected job after an operation: written by hand from the design, not from the table or the scripts."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidInput, OutOfMemory
from penstock.jobs import Claim, State
from penstock.storage.redis.records import Outcome

ENDS = {"succeeded", "failed", "canceled", "expired"}
WAITING = {"reserved", "queued", "delayed"}


@dataclass(frozen=True)
class End:
    """The end of a job in `outcome.json`."""

    state: str
    text: str | None
    fence: int
    ended_by: int


@dataclass
class Expected:
    """The expected record of a job."""

    durable: bool
    body: str
    state: str = "queued"
    attempt: int = 0
    #: Given back: the latest attempt was, and the next one has the same number.
    given_back: bool = False
    crashes: int = 0
    fence: int = 0
    ended_by: int = 0
    cancel: bool = False
    #: The cancel.json of a running job exists.
    cancel_stored: bool = False
    checkpoints: int = 0
    text: str | None = None
    #: Stored: the request.json exists.
    manifest: bool = False
    #: The outcome.json that is stored.
    stored: End | None = None

    @property
    def over(self) -> bool:
        return self.state in ENDS

    def propose(self, end: End) -> None:
        """The outcome is put: the first one counts."""
        if self.durable:
            self.stored = self.stored or end

    def finish(self, end: End) -> None:
        """The outcome is put and committed."""
        self.propose(end)
        end = self.stored or end
        self.state, self.text, self.fence, self.ended_by = end.state, end.text, end.fence, end.ended_by

    def end(self, state: str, text: str | None = None, ended_by: int | None = None) -> End:
        return End(state, text, self.fence, self.ended_by if ended_by is None else ended_by)


@dataclass
class Hold:
    """A worker that believes that it holds a job."""

    claim: Claim
    checkpoints: int = 0


def outcome(how: str, text: str) -> Outcome:
    """Return what a worker says of its attempt."""
    match how:
        case "succeeded":
            return Outcome(State.SUCCEEDED, text)
        case "failed":
            return Outcome(State.FAILED, error=InvalidInput("bad").report())
        case "canceled":
            return Outcome(State.CANCELED)
        case _:
            return Outcome(State.DELAYED, error=OutOfMemory().report(), retry_delay_s=1800)
