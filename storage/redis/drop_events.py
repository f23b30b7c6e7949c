"""Objects that the keeper must process: a bounded queue of hints in Redis, and the results of the latest listings.

The next listing finds every hint that is lost. The keeper leases an object for a while; the object comes again unless
the keeper removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Overloaded
from penstock.formats import known
from penstock.object_events import ObjectEvent
from penstock.storage.drop_rules import ObjectPlace
from penstock.storage.redis.fields import MICRO, fields, us
from penstock.storage.redis.scripts import Command, query

#: Events that may wait for the keeper.
MAX_WAITING = 100_000
#: Seconds of a lease.
LEASE_S = 30.0

#: Prefix of a queue's address among the names of rules, which have no space.
_QUEUE = "queue "
#: Beginning of the names of the details of listings, and the details.
_OF_RULE, _DETAILS = _QUEUE + "details of ", ("takes", "ignored", "ignored_files", "failures")

#: Event sources, as named in counts.
SQS, HTTP, LISTING = "sqs", "webhook", "listing"
#: Outcomes of an event, each counted once. Only `postponed` is counted at each attempt that fails for now.
SUBMITTED, DUPLICATE, FOREIGN, MISSING, UNREADABLE, IGNORED, POSTPONED = (
    "submitted", "duplicate", "foreign", "missing", "unreadable", "ignored", "postponed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Queued:
    """The numbers of events that were new, and that were in the queue already."""

    new: int
    known: int


@dataclass(frozen=True, slots=True)
class Leased:
    """An object to process."""

    #: `ended`: its job has ended; `events`: an event named it.
    kind: str
    object: str
    #: Time in the queue, which a later event for the object changes.
    score: str
    #: Seconds since its first lease.
    age_s: float

    @property
    def event(self) -> ObjectEvent:
        """The event."""
        return ObjectEvent(**known(ObjectEvent, json.loads(self.object)))


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of a rule's latest listing."""

    #: Objects of the rule.
    found: int
    #: Objects of the rule without a result yet.
    waiting: int
    #: Error markers.
    failed: int
    took_s: float
    #: Reason for which the listing failed or is incomplete.
    problem: str | None = None
    #: The first names that were skipped: links, and names that are no keys.
    passed_over: tuple[str, ...] = ()
    #: The latest objects that were missing when their jobs ended: they have no result.
    gone: tuple[str, ...] = ()
    #: Endings of the names that the rule takes; empty while its model is not known.
    takes: tuple[str, ...] = ()
    #: Files under the prefix that have none of these endings, and the first of them.
    ignored: int = 0
    ignored_files: tuple[str, ...] = ()
    #: The first failed objects with the reasons.
    failures: Mapping[str, str] = field(default_factory=dict)
    #: Seconds since the listing.
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """Every rule's latest listing by its name, and the number of waiting events."""

    rules: Mapping[str, Pass]
    events_waiting: int
    #: Problems with SQS queues, by the queues' addresses.
    deaf: Mapping[str, str] = field(default_factory=dict)


NO_PASSES = Passes({}, 0)
#: Missed listings, and seconds for a keeper to become active, after which no keeper counts as running.
_MISSED, _SLACK_S = 3, 30


def problem_with(found: Passes, rule: str, queue_url: str | None, every_s: float) -> str | None:
    """Return the problems of a rule's last listing and of its events, or that there was no listing lately."""
    deaf = found.deaf.get(queue_url or "")
    problems = (problem_of(found.rules.get(rule), every_s), f"its events cannot be read: {deaf}" if deaf else None)
    return "; ".join(filter(None, problems)) or None


def problem_of(last: Pass | None, every_s: float) -> str | None:
    """Return the problem of the last listing, or that there was none lately."""
    if last is None or last.age_s > _MISSED * (every_s + last.took_s) + _SLACK_S:
        return "no keeper lists it: is one running?"
    return last.problem


def dropped_as(found: ObjectPlace) -> str:
    """Return the name of a dropped object in a job's record."""
    return json.dumps({"bucket": found.bucket, "key": found.key}, separators=(",", ":"))


def add(events: Sequence[ObjectEvent], *, limit: int = MAX_WAITING) -> Command[Queued]:
    """Queue objects for the keeper; `Overloaded` where too many wait, though some of these may be queued."""
    return Command("drop_add", {"limit": limit, "objects": [_to_json(event) for event in events]}, _queued)


def lease(n: int) -> Command[tuple[Leased, ...]]:
    """Lease at most `n` objects of each kind."""
    return Command("drop_take", {"n": n, "lease_us": us(LEASE_S)}, lambda rows: tuple(_leased(*row) for row in rows))


def done(leased: Sequence[Leased]) -> Command[int]:
    """Remove processed objects from the queue."""
    return Command("drop_done", {"objects": [(each.kind, each.object, each.score) for each in leased]}, int)


def count(source: str, outcomes: Mapping[str, int]) -> Command[str]:
    """Count events by their outcome."""
    return Command(
        "note", {"op": "count_drops", "counts": {f"{source} {name}": n for name, n in outcomes.items()}}, str
    )


def note_pass(rule: str, found: Pass) -> Command[int]:
    """Write the result of a rule's listing."""
    numbers = {"found": found.found, "waiting": found.waiting, "failed": found.failed, "took_s": round(found.took_s, 3)}
    names = {"problem": found.problem, "passed_over": found.passed_over, "gone": found.gone}
    return _note(rule, {**numbers, **names})


def note_details(rule: str, found: Pass) -> Command[int]:
    """Write what release 0.1.0 does not know of a listing: to it, this is a queue without a problem."""
    details = {name: getattr(found, name) for name in _DETAILS}
    return _note(_OF_RULE + rule, {"problem": None, **details})


def note_queue(url: str, problem: str | None) -> Command[int]:
    """Write the problem with an SQS queue; None without one."""
    return _note(_QUEUE + url, {"problem": problem})


def passes() -> Command[Passes]:
    """Return the results of the rules' latest listings."""
    return query("drop_passes", _passes)


def _note(name: str, found: Mapping[str, Any]) -> Command[int]:
    return Command("note", {"op": "note_pass", "name": name, "pass": json.dumps(found)}, int)


def _to_json(event: ObjectEvent) -> str:
    names = {"bucket": event.bucket, "key": event.key, "version_id": event.version_id, "sequencer": event.sequencer}
    return json.dumps({name: value for name, value in names.items() if value is not None}, separators=(",", ":"))


def _queued(reply: Sequence[int]) -> Queued:
    new, known, refused = reply
    if refused:
        raise Overloaded("too many events are waiting", retry_after_s=30)
    return Queued(new, known)


def _leased(kind: str, found: str, score: str, age_us: int) -> Leased:
    return Leased(kind, found, score, age_us / MICRO)


def _passes(reply: Sequence[Any]) -> Passes:
    flat, now_us, waiting = reply
    rows = fields(flat)
    passes = {name: json.loads(text) for name, text in rows.items() if not name.endswith(" at_us")}
    problems = {name.removeprefix(_QUEUE): row["problem"] for name, row in passes.items() if name.startswith(_QUEUE)}
    found = {
        name: _pass({**passes.get(_OF_RULE + name, {}), **row}, (int(now_us) - int(rows[f"{name} at_us"])) / MICRO)
        for name, row in passes.items()
        if not name.startswith(_QUEUE)
    }
    return Passes(found, waiting, {url: problem for url, problem in problems.items() if problem})


def _pass(row: Mapping[str, Any], age_s: float) -> Pass:
    names = {name: tuple(row.get(name, ())) for name in ("passed_over", "gone", "takes", "ignored_files")}
    return Pass(**{**known(Pass, row), **names}, age_s=age_s)
