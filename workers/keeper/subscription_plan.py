"""The decisions on a subscription, without clock, network or storage.

    window_of     progress + now -> the time range to look at
    plan          progress + a complete listing of that range -> jobs to submit, skipped items, notes
    conclude      plan + what became of the jobs -> the new progress

A version of an item is decided once: its jobs have ids of their own (`Subscription.job_key`), and its entry remembers
it until the item is older than every further look. The cursor moves only to the end of a range in which nothing waits,
and each look begins `look_back_s` before the cursor: an item that the catalogue publishes later than its time by less
than this is found.
"""

from __future__ import annotations

import hashlib
import json
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import floor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock.client.subscription_answers import SubscriptionCounts
from penstock.intake.item_filter import properties_of
from penstock.jobs import JobKey
from penstock.storage.journal.subscription_progress import Decision, Entry, Note, Progress
from penstock.storage.journal.subscriptions import Subscription

#: Seconds of the catalogue that one look covers, beside the look-back: a backfill goes on in such steps.
STEP_S = 30 * 86_400.0
#: Jobs of one look, at most: the rest waits for the next one.
MAX_JOBS = 200
#: Versions of an item that are remembered: a catalogue that shows them in turn makes no further jobs.
MAX_VERSIONS = 50
#: Seconds until the next look after a first failure; they double up to the subscription's interval.
RETRY_S = 30.0
_DAILY = "the subscription has made its jobs of the day"
_STEP = "the rest of many items"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A closed range of item times, in seconds since the epoch."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class FoundItem:
    """An item of a listing. `refusal` is the reason for which it makes no job, with its decision.

    The document is empty where it is not needed in this look.
    """

    id: str
    collection: str
    time_s: float
    version: str
    updated_s: float | None
    document: Mapping[str, Any]
    refusal: tuple[Decision, str] | None = None

    @property
    def name(self) -> str:
        """Its key among the entries."""
        return f"{self.collection}/{self.id}"


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit."""

    key: JobKey
    item: FoundItem


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions on one listing: jobs in the order of their items' times, and the progress without them."""

    window: TimeRange
    jobs: tuple[PlannedJob, ...]
    #: Items that wait for the next look, with the reason.
    waiting: tuple[FoundItem, ...]
    reason: str
    progress: Progress


class Fate(StrEnum):
    """The fate of a planned job."""

    SUBMITTED = "submitted"
    #: No job can be made of the item.
    REFUSED = "refused"
    #: There is no room, or the service is in trouble: later.
    POSTPONED = "postponed"


@dataclass(frozen=True, slots=True)
class Submission:
    """The fate of a planned job, and the reason of a refusal or delay."""

    fate: Fate
    reason: str = ""


def begin(subscription: Subscription) -> Progress:
    """Return the progress of a subscription that has seen nothing."""
    return Progress(subscription.key, subscription.uid, subscription.since_s)


def window_of(subscription: Subscription, progress: Progress, at: float) -> TimeRange:
    """Return the range of item times to look at, at the time `at`. It ends with a whole second, as searches do."""
    start = max(subscription.since_s, progress.cursor_s - subscription.look_back_s)
    return TimeRange(start, max(start, floor(min(at, progress.cursor_s + STEP_S))))


def is_behind(progress: Progress, window: TimeRange, at: float) -> bool:
    """Return True if the rest of a backfill, or of an outage, can be looked at at once."""
    return progress.waiting is None and window.end_s < floor(at) and progress.cursor_s == window.end_s


def plan(
    subscription: Subscription, progress: Progress, window: TimeRange, items: Sequence[FoundItem], at: float,
    unread: Mapping[str, int] | None = None,
) -> Plan:  # fmt: skip
    """Return the decisions on a complete listing of a window, at the time `at`.

    `unread` counts the items of the listing that cannot be followed, by the reason.
    """
    listed = _latest(item for item in items if window.start_s <= item.time_s <= window.end_s)
    entries, notes, wanted = dict(progress.entries), list[Note](), list[FoundItem]()
    tally = Counter(found=len(listed))
    for item in listed:
        entry = entries.get(item.name)
        if entry is not None and item.version in entry.versions:
            entries[item.name] = replace(entry, withdrawn=False)
            tally["done"] += 1
            continue
        decision, reason = _decision(item, entry)
        if decision is Decision.JOB:
            wanted.append(item)
            continue
        entries[item.name] = _decided(item, entry, decision, reason)
        tally[_TALLY[decision]] += 1
        if entry is None or (entry.decision, entry.reason) != (decision, reason):
            notes.append(_note(item, decision, reason, at))
    listed_names = {item.name for item in listed}
    for name, entry in sorted(entries.items()):
        if name not in listed_names and _is_missing(entry, window):
            entries[name] = replace(entry, withdrawn=True)
            notes.append(Note(at, entry.id, entry.collection, entry.time_s, Decision.WITHDRAWN, job=entry.job))
    room, reason = _room(subscription, progress, at)
    room = next((number for number, item in enumerate(wanted[:room]) if not item.document), room)
    jobs = tuple(PlannedJob(subscription.job_key(item.name, item.version), item) for item in wanted[:room])
    tally["waiting"], tally["new"] = len(wanted) - len(jobs), len(jobs)
    counts = SubscriptionCounts(**tally, unread=dict(unread or {}))
    planned = replace(progress, entries=entries, counts=counts).noted(*notes)
    return Plan(window, jobs, tuple(wanted[room:]), reason, planned)


def conclude(
    subscription: Subscription, planned: Plan, submissions: Sequence[Submission], at: float
) -> Progress:  # fmt: skip
    """Return the progress after the planned jobs were submitted, one submission for each job in order."""
    progress, day = planned.progress, _day(at)
    entries, notes, submitted = dict(progress.entries), list[Note](), 0
    waiting, reason = list(planned.waiting), planned.reason
    for job, submission in zip(planned.jobs, submissions, strict=True):
        item, entry = job.item, entries.get(job.item.name)
        if submission.fate is Fate.POSTPONED:
            waiting, reason = [item, *waiting], submission.reason
            continue
        made = submission.fate is Fate.SUBMITTED
        submitted += made
        decision = Decision.JOB if made else Decision.REFUSED
        found = _decided(item, entry, decision, submission.reason)
        entries[item.name] = replace(found, job=job.key.id, end=None, published=False) if made else found
        notes.append(_note(item, decision, submission.reason, at, job.key.id if made else None))
    if waiting and progress.waiting != reason:
        notes += [_note(item, Decision.WAITING, reason, at) for item in sorted(waiting, key=_order)[:1]]
    jobs_today = (progress.jobs_today if progress.day == day else 0) + submitted
    counts = replace(progress.counts, new=submitted, waiting=len(waiting))
    new = replace(
        progress, entries=entries, counts=counts, day=day, jobs_today=jobs_today, jobs=progress.jobs + submitted,
        waiting=reason if waiting else None, looked_s=at, failures=0, problem=None,
        cursor_s=progress.cursor_s if waiting else max(progress.cursor_s, planned.window.end_s),
    ).noted(*notes)  # fmt: skip
    due_s = at if is_behind(new, planned.window, at) else at + subscription.every_s
    return _pruned(replace(new, due_s=due_s), subscription, at)


class Listing:
    """Items of a listing as they come, with the documents of those alone that may become jobs in this look.

    These are the earliest ones, so that memory does not grow with the catalogue.
    """

    def __init__(self, progress: Progress, *, most: int = 2 * MAX_JOBS) -> None:
        self.items: list[FoundItem] = []
        self._entries, self._most = progress.entries, most
        #: Order and place in `items` of those with documents.
        self._held: list[tuple[tuple[float, str], int]] = []

    def add(self, item: FoundItem) -> None:
        """Add an item."""
        entry = self._entries.get(item.name)
        if item.refusal is not None or (entry is not None and item.version in entry.versions):
            self.items.append(replace(item, document={}))
            return
        self.items.append(item)
        insort(self._held, (_order(item), len(self.items) - 1))
        if len(self._held) > self._most:
            _, place = self._held.pop()
            self.items[place] = replace(self.items[place], document={})


def failed(subscription: Subscription, progress: Progress, problem: str, at: float) -> Progress:
    """Return the progress after a look that found no complete listing; the next one is sooner than usual."""
    retry_s = min(subscription.every_s, RETRY_S * 2 ** min(progress.failures, 10))
    return replace(progress, failures=progress.failures + 1, problem=problem, due_s=at + retry_s)


def version_of(document: Mapping[str, Any]) -> str:
    """Return the version of an item: of its assets' checksums, else its `updated`, else of its addresses and time.

    The addresses count without queries, which may be signatures that differ in each answer.
    """
    assets = document.get("assets")
    held = (
        {key: each for key, each in assets.items() if isinstance(each, Mapping)} if isinstance(assets, Mapping) else {}
    )
    about = properties_of(document)
    sums = {key: each["file:checksum"] for key, each in held.items() if isinstance(each.get("file:checksum"), str)}
    if sums:
        return _digest(["checksum", sums])
    if isinstance(about.get("updated"), str):
        return _digest(["updated", about["updated"]])
    places = {key: _without_query(str(each.get("href", ""))) for key, each in held.items()}
    return _digest(["content", places, about.get("datetime"), document.get("geometry")])


#: The count of a decision.
_TALLY = {Decision.FILTER: "filtered", Decision.AREA: "outside", Decision.REFUSED: "done", Decision.SUPERSEDED: "done"}


def _decision(item: FoundItem, entry: Entry | None) -> tuple[Decision, str]:
    """Return the decision on a version that is not decided yet, and its reason."""
    if entry is not None and _is_older(item.updated_s, entry.updated_s):
        return Decision.SUPERSEDED, "a later version was seen before"
    return item.refusal or (Decision.JOB, "")


def _is_older(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other


def _latest(items: Any) -> list[FoundItem]:
    """Return each item once, by time: of several versions in one listing the latest, by `updated`."""
    found: dict[str, FoundItem] = {}
    for item in items:
        other = found.get(item.name)
        if other is None or not _is_older(item.updated_s, other.updated_s):
            found[item.name] = item
    return sorted(found.values(), key=_order)


def _order(item: FoundItem) -> tuple[float, str]:
    return item.time_s, item.name


def _room(subscription: Subscription, progress: Progress, at: float) -> tuple[int, str]:
    """Return the number of jobs that may be submitted now, and the reason why further ones wait."""
    if subscription.max_jobs_a_day is None:
        return MAX_JOBS, _STEP
    left = max(0, subscription.max_jobs_a_day - (progress.jobs_today if progress.day == _day(at) else 0))
    return (left, _DAILY) if left <= MAX_JOBS else (MAX_JOBS, _STEP)


def _entry(item: FoundItem, decision: Decision, reason: str) -> Entry:
    return Entry(item.id, item.collection, item.time_s, decision, reason)


def _decided(item: FoundItem, entry: Entry | None, decision: Decision, reason: str) -> Entry:
    """Return the entry of an item after a decision. A refusal by filter or area holds for this version only."""
    old = entry or _entry(item, decision, reason)
    final = decision in (Decision.JOB, Decision.REFUSED)
    versions = (*old.versions, item.version)[-MAX_VERSIONS:] if final else old.versions
    if decision is Decision.SUPERSEDED:
        return replace(old, withdrawn=False)
    return replace(
        old, time_s=item.time_s, decision=decision, reason=reason, versions=versions, withdrawn=False,
        updated_s=item.updated_s if item.updated_s is not None else old.updated_s,
    )  # fmt: skip


def _is_missing(entry: Entry, window: TimeRange) -> bool:
    return not entry.withdrawn and window.start_s <= entry.time_s <= window.end_s


def _pruned(progress: Progress, subscription: Subscription, at: float) -> Progress:
    """Forget the items that no further look can find, once their jobs have ended and their results are published."""
    start_s = window_of(subscription, progress, at).start_s
    kept = {
        name: each
        for name, each in progress.entries.items()
        if each.is_open or each.has_new_result or each.time_s >= start_s
    }
    return replace(progress, entries=kept)


def _note(item: FoundItem, decision: Decision, reason: str, at: float, job: str | None = None) -> Note:
    return Note(at, item.id, item.collection, item.time_s, decision, reason, job)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _without_query(address: str) -> str:
    try:
        return urlunsplit((*urlsplit(address)[:3], "", ""))
    except ValueError:
        return address
