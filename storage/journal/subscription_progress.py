"""The progress of a subscription: what the keeper has seen and decided. One document in the object store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from penstock.client.subscription_answers import SubscriptionCounts
from penstock.formats import WRITES, known
from penstock.storage.journal.revisions import put_next, read_latest
from penstock.storage.journal.subscriptions import SubscriptionKey
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.fields import dump
from penstock.storage.redis.record import readable_version

#: Bytes of a stored progress, at most.
LIMIT_BYTES = 64 << 20
#: Notes that are kept, the latest first.
MAX_NOTES = 100


class Decision(StrEnum):
    """The decision on an item's version."""

    #: It became a job.
    JOB = "job"
    #: It does not pass the filter.
    FILTER = "filter"
    #: It does not overlap the area.
    AREA = "area"
    #: No job can be made of it.
    REFUSED = "refused"
    #: A later version of the item is decided already.
    SUPERSEDED = "superseded"
    #: It waits: for tomorrow's jobs, for the tenant's quota, or for the model.
    WAITING = "waiting"
    #: The catalogue no longer lists the item. Its job and its result stay.
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Note:
    """A line about an item, for people."""

    at_s: float
    item: str
    collection: str
    #: Time of the item.
    time_s: float
    decision: Decision
    reason: str = ""
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of the catalogue that was seen."""

    id: str
    collection: str
    #: Time of the item.
    time_s: float
    #: The latest decision, and its reason.
    decision: Decision
    reason: str = ""
    #: Versions that are decided for good, the latest last.
    versions: tuple[str, ...] = ()
    #: Time of the item's latest known change; None where the catalogue gives none.
    updated_s: float | None = None
    #: The latest job, and its end once it is known: a terminal state of jobs, or `gone`.
    job: str | None = None
    end: str | None = None
    #: True once its result is in the subscription's collection.
    published: bool = False
    withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        """True while the end of its job is not known."""
        return self.job is not None and self.end is None

    @property
    def has_new_result(self) -> bool:
        """True if its job has a result that is not published."""
        return self.end == "succeeded" and not self.published

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Return the entry of `asdict`'s data."""
        return cls(**known(cls, data) | {"decision": Decision(data["decision"]), "versions": tuple(data["versions"])})


@dataclass(frozen=True, slots=True)
class Published:
    """A result in the subscription's collection."""

    #: Folder of the result.
    folder: str
    #: Name of the entry, `collection/id`.
    item: str
    job: str
    #: Time of the item, and of the publication.
    time_s: float
    made_s: float
    bbox: tuple[float, ...] = ()
    #: The judgement of the condition: `holds`, `polygons` and `before`, or `problem`; None without a condition.
    change: Mapping[str, Any] | None = None
    #: True once the receiver was told, or gave up.
    told: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one subscription. Times are seconds since the epoch, by the keeper's clock."""

    key: SubscriptionKey
    #: The `uid` of the subscription; progress of another one is of a deleted subscription.
    uid: str
    #: All items up to this time are decided.
    cursor_s: float
    #: The last complete look, and the next one.
    looked_s: float | None = None
    due_s: float = 0.0
    #: Failed looks since the last complete one, and the latest error.
    failures: int = 0
    problem: str | None = None
    #: The reason why items wait; None where none waits.
    waiting: str | None = None
    #: UTC day, and jobs submitted in it.
    day: str = ""
    jobs_today: int = 0
    #: Jobs submitted ever.
    jobs: int = 0
    #: Seen items by `collection/id`.
    entries: Mapping[str, Entry] = field(default_factory=dict)
    counts: SubscriptionCounts = field(default_factory=SubscriptionCounts)
    notes: tuple[Note, ...] = ()
    published: tuple[Published, ...] = ()
    revision: int = 0

    def noted(self, *notes: Note) -> Progress:
        """Return the progress with further notes, given oldest first."""
        return replace(self, notes=(*reversed(notes), *self.notes)[:MAX_NOTES])

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump({"version": WRITES, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Progress:
        """Return the progress of an object's bytes; raise `RecordTooNew` for a format that cannot be read."""
        stored: dict[str, Any] = json.loads(data)
        key = SubscriptionKey(stored["key"]["tenant"], stored["key"]["id"])
        readable_version(f"progress of subscription {key.id}", stored)
        given = {
            "key": key,
            "entries": {name: Entry.from_json(each) for name, each in stored["entries"].items()},
            "counts": SubscriptionCounts(**known(SubscriptionCounts, stored["counts"])),
            "notes": tuple(map(_note, stored["notes"])),
            "published": tuple(map(_published, stored["published"])),
        }
        return cls(**{**known(cls, stored), **given})


def read_progress(objects: ObjectStore, key: SubscriptionKey) -> Progress | None:
    """Return the progress of a subscription; None before its first look."""
    found = read_latest(objects, key.progress, limit_bytes=LIMIT_BYTES)
    return None if found is None else Progress.from_bytes(found.data)


def put_progress(objects: ObjectStore, progress: Progress) -> Progress | None:
    """Store the next revision of a progress and return it; None where another keeper has stored that revision."""
    new = replace(progress, revision=progress.revision + 1)
    return new if put_next(objects, new.key.progress, new.revision, new.to_bytes()) else None


def _note(data: Mapping[str, Any]) -> Note:
    return Note(**{**known(Note, data), "decision": Decision(data["decision"])})


def _published(data: Mapping[str, Any]) -> Published:
    return Published(**{**known(Published, data), "bbox": tuple(data["bbox"])})
