"""Objects that the keeper must look at, in Redis: a bounded queue of hints, and what listings found last.

Whatever is lost here the next listing finds. An object is lent to the keeper for a while and comes again unless it says
that it is done with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.drop_rules import Place
from penstock.errors import Overloaded
from penstock.object_events import ObjectEvent
from penstock.storage.fields import MICRO, fields, us
from penstock.storage.scripts import Command

#: Events that may wait for the keeper.
MAX_WAITING = 100_000
#: How long one is lent.
LEASE_S = 30.0

#: Before a queue's address, among the names of rules, which have no space.
_QUEUE = "queue "

#: Event sources, as counts name them.
SQS, HTTP, LISTING = "sqs", "webhook", "listing"
#: What becomes of an event. Each is counted once, but `postponed`: each time that it could not be dealt with yet.
SUBMITTED, DUPLICATE, FOREIGN, MISSING, UNREADABLE, IGNORED, POSTPONED = (
    "submitted", "duplicate", "foreign", "missing", "unreadable", "ignored", "postponed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """What became of events that were to be queued."""

    new: int
    known: int


@dataclass(frozen=True, slots=True)
class Lent:
    """An object to look at."""

    #: `ended`: its job is over; `events`: an event told of it.
    kind: str
    object: str
    mark: str
    #: Since it was first taken.
    age_s: float

    @property
    def event(self) -> ObjectEvent:
        """What was told."""
        return ObjectEvent(**json.loads(self.object))


@dataclass(frozen=True, slots=True)
class Pass:
    """What a rule's last listing found."""

    #: Objects of the rule.
    found: int
    #: Of these, those without a result yet.
    waiting: int
    #: Error markers.
    failed: int
    took_s: float
    #: Why there was none, or not of everything.
    problem: str | None = None
    #: The first names that can be no object and were passed over: links, and names that are no keys.
    passed_over: tuple[str, ...] = ()
    #: Objects that were not there any more when their jobs ended, the last ones: they have no result.
    gone: tuple[str, ...] = ()
    #: Since then.
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """Every rule's last listing by its name, and how many events wait for the keeper."""

    rules: Mapping[str, Pass]
    events_waiting: int
    #: What keeps the keeper from hearing SQS queues, by their addresses.
    deaf: Mapping[str, str] = field(default_factory=dict)


NO_PASSES = Passes({}, 0)


def dropped_as(found: Place) -> str:
    """Return what a job's record says of the object that it was dropped as."""
    return json.dumps({"bucket": found.bucket, "key": found.key}, separators=(",", ":"))


def tell(events: Sequence[ObjectEvent], *, limit: int = MAX_WAITING) -> Command[Told]:
    """Have the keeper look at these objects; `Overloaded` where too many wait, some of these may be queued then."""
    return Command("drop_tell", (limit, *map(_to_json, events)), _told)


def take(n: int) -> Command[tuple[Lent, ...]]:
    """Borrow at most `n` objects of each kind."""
    return Command("drop_take", (n, us(LEASE_S)), lambda rows: tuple(_lent(*row) for row in rows))


def done(lent: Sequence[Lent]) -> Command[int]:
    """Take objects off the queue that were dealt with."""
    return Command("drop_done", tuple(arg for each in lent for arg in (each.kind, each.object, each.mark)), int)


def count(source: str, outcomes: Mapping[str, int]) -> Command[int]:
    """Count events by what became of them."""
    return Command("drop_count", tuple(arg for name, n in outcomes.items() for arg in (f"{source} {name}", n)), int)


def note_pass(rule: str, found: Pass) -> Command[int]:
    """Write down what a rule's listing found."""
    told = {"found": found.found, "waiting": found.waiting, "failed": found.failed, "took_s": round(found.took_s, 3)}
    said = {"problem": found.problem, "passed_over": found.passed_over, "gone": found.gone}
    return Command("drop_pass", (rule, json.dumps({**told, **said})), int)


def note_queue(url: str, problem: str | None) -> Command[int]:
    """Write down what keeps the keeper from hearing a queue; None where nothing does."""
    return Command("drop_pass", (_QUEUE + url, json.dumps({"problem": problem})), int)


def passes() -> Command[Passes]:
    """Return what the rules' listings found last."""
    return Command("drop_passes", (), _passes)


def _to_json(event: ObjectEvent) -> str:
    told = {"bucket": event.bucket, "key": event.key, "version_id": event.version_id, "sequencer": event.sequencer}
    return json.dumps({name: value for name, value in told.items() if value is not None}, separators=(",", ":"))


def _told(reply: Sequence[int]) -> Told:
    new, known, refused = reply
    if refused:
        raise Overloaded("too many events wait to be looked at", retry_after_s=30)
    return Told(new, known)


def _lent(kind: str, found: str, mark: str, age_us: int) -> Lent:
    return Lent(kind, found, mark, age_us / MICRO)


def _passes(reply: Sequence[Any]) -> Passes:
    flat, now_us, waiting = reply
    rows = fields(flat)
    told = {name: json.loads(text) for name, text in rows.items() if not name.endswith(" at_us")}
    problems = {name.removeprefix(_QUEUE): said["problem"] for name, said in told.items() if name.startswith(_QUEUE)}
    found = {
        name: _pass(said, age_s=(int(now_us) - int(rows[f"{name} at_us"])) / MICRO)
        for name, said in told.items()
        if not name.startswith(_QUEUE)
    }
    return Passes(found, waiting, {url: problem for url, problem in problems.items() if problem})


def _pass(told: Mapping[str, Any], age_s: float) -> Pass:
    names = {name: tuple(told.get(name, ())) for name in ("passed_over", "gone")}
    return Pass(**{**told, **names}, age_s=age_s)
