"""The record of a chaos run: every answer of the API, every look at a job, every webhook. Values only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TERMINAL = ("succeeded", "failed", "canceled", "expired")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that a client means to submit, and the ends that are right for it."""

    id: str
    input: Mapping[str, Any]
    ends: tuple[str, ...] = ("succeeded",)
    code: str | None = None
    webhook: str | None = None
    priority: str = "normal"
    model: str = "chaos"
    #: Ids of jobs that must succeed first.
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a request; `status` 0 = the connection broke or was refused."""

    at_s: float
    what: str
    id: str
    status: int
    took_s: float
    retry_after: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One way in which the API showed a job. `result` is everything that may never change after the end."""

    status: str
    result: str

    @property
    def over(self) -> bool:
        """Return True where the look shows an end."""
        return self.status in TERMINAL

    @classmethod
    def at(cls, job: Mapping[str, Any]) -> Look:
        """Return what a JobView shows."""
        fixed = [job["output"], [(a["name"], a["sha256"], a["uri"]) for a in job["artifacts"]]]
        fixed += [job["error"] and job["error"]["code"], job["completed_at"]]
        return cls(job["status"], json.dumps(fixed, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Span:
    """The first time that a client had a look, and the last request that got the same one."""

    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Received:
    """One webhook as it arrived."""

    id: str
    body: bytes
    answered: int
    path: str = "/hook"


class History:
    """All of it, written by many threads."""

    def __init__(self) -> None:
        self.wanted: dict[str, Wanted] = {}
        self.answers: list[Answer] = []
        #: Looks at each job, with their times.
        self.looks: dict[str, dict[Look, Span]] = {}
        #: Jobs whose submit was answered 2xx, and those that somebody saw end.
        self.accepted: set[str] = set()
        self.over: set[str] = set()
        #: The longest time, in seconds, for which the event loop of a `Crowd` stood still.
        self.client_lag_s = 0.0
        #: Set when every wanted job was seen to end.
        self.all_over = threading.Event()
        self._lock = threading.Lock()

    def want(self, jobs: Iterable[Wanted]) -> None:
        """Say that these jobs will be submitted."""
        with self._lock:
            self.wanted |= {job.id: job for job in jobs}
            self.all_over.clear()

    def saw(self, job_id: str, look: Look, *, began_s: float, ended_s: float) -> None:
        """Write a look down that was asked for at `began_s` and answered at `ended_s`."""
        with self._lock:
            spans = self.looks.setdefault(job_id, {})
            before = spans.get(look, Span(ended_s, began_s))
            spans[look] = Span(min(before.first_s, ended_s), max(before.last_s, began_s))
            if look.over:
                self.over.add(job_id)
                if len(self.over) >= len(self.wanted):
                    self.all_over.set()

    def end(self, job_id: str) -> Look | None:
        """Return the first end that was seen of a job."""
        ends = [(span.first_s, look) for look, span in self.looks.get(job_id, {}).items() if look.over]
        return min(ends, key=lambda end: end[0])[1] if ends else None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The contents of Redis and of the object store after the run, once collection ran."""

    #: Every key of Redis with its type, its TTL in ms (-1 = none) and its number of members.
    keys: Mapping[str, tuple[str, int, int]]
    objects: frozenset[str]
    #: The records' own words about visible artifacts, by job id.
    artifacts: Mapping[str, tuple[str, ...]]
    delivery: Mapping[str, str]
    #: (TENANT/DAY, "MODEL MEASURE") -> sum: as Redis keeps them, and as the committed outcomes say.
    usage: Mapping[tuple[str, str], int] = field(default_factory=dict)
    committed: Mapping[tuple[str, str], int] = field(default_factory=dict)
