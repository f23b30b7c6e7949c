"""The state of following a job's events over broken connections."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.answers import Event, Job, PenstockAPIError, Unreachable, read_sse
from penstock.client.decoding import read
from penstock.client.options import segment
from penstock.client.retries import Deadline, Delays


@dataclass
class EventReader:
    """A job's events, as far as they were read."""

    job_id: str
    after: str
    delays: Delays
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    over: bool = False
    _snapshot_over: bool = False

    @property
    def path(self) -> str:
        """The path of the stream."""
        return f"/v1/jobs/{segment(self.job_id)}/events"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that request the rest of the stream."""
        return {"Accept": "text/event-stream", **({"Last-Event-ID": self.after} if self.after else {})}

    def read(self, kind: str, text: str) -> Event | None:
        """Return the received event; None for anything but an event of a job."""
        event = read_sse(kind, text)
        if event is None:
            return None
        if event.type == "snapshot":
            self._snapshot_over = read(Job, event.data).over
        else:
            self.after = event.id or self.after
            self.delays.reset()
        self.over = self.over or event.final
        return event

    def closed(self) -> float:
        """Record the regular end of the stream; return the seconds before the next connection."""
        self.over = self.over or self._snapshot_over
        return self.failed(Unreachable("the service ended the stream of events too early"))

    def failed(self, error: Unreachable | PenstockAPIError) -> float:
        """Record a broken stream; return the seconds before the next connection, or raise the error."""
        self.over = self.over or self.deadline.passed
        return 0.0 if self.over else self.delays.next(error)
