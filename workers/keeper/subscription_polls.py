"""The keeper's part of subscriptions: looks at catalogues, submits jobs, follows their ends. A thin shell.

`subscription_plan` decides. The order of effects is: submit the jobs, whose ids are derived from items and versions,
then store the progress. A keeper that dies between the two, or a second one, submits the same jobs again, which changes
nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import structlog

from penstock.config import Settings
from penstock.errors import (
    FetchFailed,
    JobGone,
    JobStoreError,
    MalformedBody,
    ModelUnavailable,
    ObjectStoreUnavailable,
    PayloadTooLarge,
    PenstockError,
    StorageQuotaExceeded,
    UnknownJob,
    UnknownModel,
)
from penstock.formats import RUNS
from penstock.intake.guard import GuardedClient, TimeLimits
from penstock.intake.item_area import NamedPolygon, named_polygons, overlaps
from penstock.intake.item_filter import item_time, why_not
from penstock.intake.item_inputs import job_input
from penstock.intake.references import check_reference
from penstock.intake.submissions import Origin, examine, servable, submission_to
from penstock.jobs import TERMINAL, Job, JobKey
from penstock.jobs import Submission as JobSubmission
from penstock.json_body import check_json
from penstock.models import CatalogueEntry, media_by_range
from penstock.requests import JobRequest, WebhookRequest
from penstock.storage.hints import HintSender
from penstock.storage.journal import journal, subscriptions
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.revisions import revision_in
from penstock.storage.journal.stored_models import StoredModels, merged
from penstock.storage.journal.subscription_progress import Decision, Entry, Progress, put_progress, read_progress
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey, subscribers
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import catalogues, records
from penstock.storage.redis.fields import dump
from penstock.storage.redis.records import QueueLimits
from penstock.workers.keeper.subscription_plan import (
    Fate,
    FoundItem,
    Listing,
    PlannedJob,
    Submission,
    begin,
    conclude,
    failed,
    plan,
    version_of,
    window_of,
)
from penstock.workers.keeper.subscription_results import SubscriptionResults

#: Subscriptions that are advanced at once, of all tenants and of one: slow catalogues of one delay no other.
CONCURRENCY, PER_TENANT = 16, 2
#: Seconds that a page of a catalogue may take, and a look at all pages; and those that a step waits for its looks.
PAGE_S, LOOK_S, STEP_S = 60.0, 180.0, 5.0
#: Seconds between two parts of a page; a keeper that stops waits so long.
IDLE_S = 10.0
#: Seconds before the second and the third try of a page.
_PAUSE_S = 0.5
#: Characters of an item's id, and of its collection's, at most.
_ID_CHARS = 500

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Held:
    """The revisions of one subscription that were read last."""

    numbers: tuple[int, int]
    subscription: Subscription | None
    progress: Progress | None


@dataclass(frozen=True)
class SubscriptionPolls:
    """Advances all subscriptions."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    hints: HintSender
    clock: Callable[[], float] = time.time
    pause: Callable[[int], object] = field(default=lambda number: threading.Event().wait(_PAUSE_S * number))
    _held: dict[SubscriptionKey, _Held] = field(default_factory=dict)
    _running: dict[SubscriptionKey, Future[None]] = field(default_factory=dict)
    _closing: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def models(self) -> StoredModels:
        """The models in the object store."""
        return StoredModels(self.objects)

    @cached_property
    def results(self) -> SubscriptionResults:
        """The publisher of results."""
        return SubscriptionResults(self.settings, self.store, self.objects, self.clock)

    @cached_property
    def guard(self) -> GuardedClient:
        """The guard that fetches the pages of catalogues."""
        return GuardedClient(self.settings, patience=TimeLimits(idle_s=IDLE_S, total_s=PAGE_S))

    def step(self) -> None:
        """Advance each subscription once: look at its catalogue if that is due, and follow its jobs.

        A look that takes longer than `STEP_S` goes on beside later steps.
        """
        ends_s = time.monotonic() + STEP_S
        numbers = {key: found for tenant in subscribers(self.objects) for key, found in self._numbers(tenant)}
        for key in self._held.keys() - numbers.keys():
            self._held.pop(key, None)
        left = sorted((key for key in numbers if self._wants(key, numbers[key])), key=self._due_s)
        while (left := self._begun(left, numbers)) and time.monotonic() < ends_s:
            wait(self._running.values(), timeout=max(0, ends_s - time.monotonic()), return_when=FIRST_COMPLETED)
        wait(self._running.values(), timeout=max(0, ends_s - time.monotonic()))

    def _begun(
        self, keys: list[SubscriptionKey], numbers: Mapping[SubscriptionKey, tuple[int, int]]
    ) -> list[SubscriptionKey]:
        """Begin to advance subscriptions, as far as their tenants have room; return those that are left."""
        for key in [key for key, running in self._running.items() if running.done()]:
            del self._running[key]
        busy, left = Counter(key.tenant for key in self._running), list[SubscriptionKey]()
        for key in keys:
            if key in self._running:
                continue
            if busy[key.tenant] >= PER_TENANT:
                left.append(key)
                continue
            busy[key.tenant] += 1
            self._running[key] = self._pool.submit(self._advanced, key, numbers[key])
        return left

    def close(self) -> None:
        """End the looks under way."""
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="subscription")

    def _due_s(self, key: SubscriptionKey) -> float:
        held = self._held.get(key)
        return 0.0 if held is None or held.progress is None else held.progress.due_s

    def _wants(self, key: SubscriptionKey, numbers: tuple[int, int]) -> bool:
        """Return False for a subscription of which nothing changed, and for which nothing is to be done."""
        held = self._held.get(key)
        if held is None or held.numbers != numbers or held.subscription is None or held.progress is None:
            return held is None or held.numbers != numbers
        is_due = not held.subscription.paused and held.progress.due_s <= self.clock()
        return is_due or self.results.wants(held.subscription, held.progress)

    def _numbers(self, tenant: str) -> Iterator[tuple[SubscriptionKey, tuple[int, int]]]:
        """Yield the tenant's subscriptions with the latest revisions of their definition and progress."""
        latest: dict[str, int] = {}
        for info in self.objects.list(f"tenants/{tenant}/subscriptions/"):
            if (found := revision_in(info.key)) is not None:
                latest[found[0]] = max(found[1], latest.get(found[0], 0))
        for name in dict.fromkeys(prefix.split("/", 4)[3] for prefix in latest):
            key = SubscriptionKey(tenant, name)
            yield key, (latest.get(key.definition, 0), latest.get(key.progress, 0))

    def _advanced(self, key: SubscriptionKey, numbers: tuple[int, int]) -> None:
        try:
            self._advance(key, numbers)
        except PenstockError as error:  # an error of one subscription must not affect the others
            self._held.pop(key, None)
            log.warning("subscription.postponed", subscription=str(key), code=error.code, detail=error.detail)
        except Exception:
            self._held.pop(key, None)
            log.exception("subscription.failed", subscription=str(key))

    def _advance(self, key: SubscriptionKey, numbers: tuple[int, int]) -> None:
        held = self._held.get(key)
        if held is None or held.numbers != numbers:
            held = _Held(numbers, subscriptions.readable(self.objects, key), read_progress(self.objects, key))
            self._held[key] = held
        subscription = held.subscription
        if subscription is None or subscription.version > RUNS:
            return  # a newer keeper advances it
        if subscription.deleted:
            self._forget(key, held)
            return
        before = held.progress
        if before is None or before.uid != subscription.uid:
            if before is not None:  # deleted and made again before a keeper looked
                self.objects.delete_prefix(key.results)
            before = replace(begin(subscription), revision=numbers[1])
        at = self.clock()
        after = self.results.step(subscription, self._followed(before))
        if not subscription.paused and after.due_s <= at:
            after = self._looked(subscription, after, at)
        if after != before:
            stored = put_progress(self.objects, after)
            if stored is None:
                self._held.pop(key, None)
                log.warning("subscription.taken_over", subscription=str(key))
                return
            self._held[key] = _Held((numbers[0], stored.revision), subscription, stored)

    def _forget(self, key: SubscriptionKey, held: _Held) -> None:
        """Delete the progress and the results of a deleted subscription. Its jobs stay for their retention."""
        if held.numbers[1]:
            self.objects.delete_prefix(key.results)
            self.objects.delete_prefix(key.progress)

    def _followed(self, progress: Progress) -> Progress:
        """Return the progress with the ends of its jobs."""
        live = {name: entry for name, entry in progress.entries.items() if entry.is_open}
        ended = {name: replace(entry, end=self._end(progress, entry)) for name, entry in live.items()}
        return progress if ended == live else replace(progress, entries={**progress.entries, **ended})

    def _end(self, progress: Progress, entry: Entry) -> str | None:
        """Return the end of an entry's job; None while it runs."""
        try:
            job = self._job(JobKey(progress.key.tenant, str(entry.job)))
        except (JobGone, UnknownJob):
            return "gone"
        return job.state.value if job.state in TERMINAL else None

    def _job(self, key: JobKey) -> Job:
        return Journal(self.store, self.objects).run(journal.read(key))

    def _looked(self, subscription: Subscription, progress: Progress, at: float) -> Progress:
        """Return the progress after a look at the catalogue, whose jobs are submitted."""
        window = window_of(subscription, progress, at)
        polygons = named_polygons(subscription.area) if subscription.area is not None else ()
        from penstock.intake.stac_search import StacSearch, StacSearches, together  # here: the library is slow to load

        start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (window.start_s, window.end_s))
        search = StacSearch(
            subscription.stac, subscription.collections, together([each.geometry for each in polygons]), start, end,
            subscription.filter,
        )  # fmt: skip
        listing, unread, ends_s = Listing(progress), Counter[str](), time.monotonic() + LOOK_S

        def check() -> None:
            if self._closing.is_set():
                raise FetchFailed("the keeper stops")
            if time.monotonic() > ends_s:
                raise FetchFailed(f"the catalogue did not list everything within {LOOK_S:.0f} s")

        def take(document: Mapping[str, Any]) -> bool:
            """Add an item to the listing; nothing is left for the search to return."""
            item = found_item(subscription, polygons, document)
            if isinstance(item, str):
                unread[item] += 1
            else:
                listing.add(item)
            return False

        try:
            StacSearches(self.guard, subscription.key.tenant, self.pause, check).items(search, passes=take)
        except PenstockError as error:
            if self._closing.is_set():
                raise  # nothing is stored: the next keeper looks anew
            log.warning("subscription.unread", subscription=str(subscription.key), detail=error.detail)
            return failed(subscription, progress, error.detail, at)
        planned = plan(subscription, progress, window, listing.items, at, unread)
        after = conclude(subscription, planned, list(self._submitted(subscription, planned.jobs)), at)
        log.info(
            "subscription.looked", subscription=str(subscription.key), found=after.counts.found,
            submitted=after.counts.new, waiting=after.counts.waiting, unread=unread.total(),
        )  # fmt: skip
        return after

    def _submitted(self, subscription: Subscription, jobs: tuple[PlannedJob, ...]) -> Iterator[Submission]:
        """Submit jobs in order, and yield the fate of each: after the first one that must wait, all wait."""
        stopped: Submission | None = None
        for job in jobs:
            found = stopped or self._submit(subscription, job)
            stopped = found if found.fate is Fate.POSTPONED else None
            yield found

    def _submit(self, subscription: Subscription, planned: PlannedJob) -> Submission:
        both = Journal(self.store, self.objects)
        try:
            if self._exists(planned.key):  # by a keeper that died before it stored its progress
                return Submission(Fate.SUBMITTED)
            submission = self._submission(subscription, planned)
            both.run(journal.submit(submission, QueueLimits.of(self.settings)))
        except JobGone:
            return Submission(Fate.SUBMITTED)
        except PenstockError as error:
            later = error.retryable or isinstance(error, _LATER)
            log.info("subscription.not_submitted", job=str(planned.key), code=error.code, detail=str(error))
            return Submission(Fate.POSTPONED if later else Fate.REFUSED, str(error))
        self.hints.send(submission.queue)
        return Submission(Fate.SUBMITTED)

    def _exists(self, key: JobKey) -> bool:
        try:
            self._job(key)
        except UnknownJob:
            return False
        return True

    def _submission(self, subscription: Subscription, planned: PlannedJob) -> JobSubmission:
        key, tenant = planned.key, planned.key.tenant
        catalogue = merged(self.store.run(catalogues.known()), self.models.read())
        entry = servable(subscription.model, catalogue, key.id)
        wanted = job_request(subscription, planned.item, entry)
        size_bytes, limit_bytes = len(dump(wanted.input).encode()), self.settings.body_limit_bytes(tenant)
        if size_bytes > limit_bytes:
            raise PayloadTooLarge(f"the input has {size_bytes} bytes; {limit_bytes} are allowed")
        found = examine(entry, wanted.input)
        by_range = media_by_range(entry.input_schema, wanted.input)
        check = partial(check_reference, self.objects, self.settings, tenant, entry)
        for place, reference in found.media:
            check(place, reference, by_range=reference in by_range)
        return submission_to(entry, key, wanted, fingerprint=f"{subscription.uid} {key.id}", origin=Origin())


#: Errors that pass although a client that repeats its request would not help.
_LATER = (JobStoreError, ObjectStoreUnavailable, ModelUnavailable, UnknownModel, StorageQuotaExceeded)


def job_request(subscription: Subscription, item: FoundItem, entry: CatalogueEntry) -> JobRequest:
    """Return the request of an item's job; raise `InvalidInput` for a model that takes no STAC items."""
    value = job_input(subscription.area, subscription.input, item.document, entry)
    names = {"subscription": subscription.key.id, "collection": item.collection, "item": item.id}
    told = subscription.webhook if subscription.condition is None else None
    return JobRequest(
        model=subscription.model, input=value, metadata={name: text[:_ID_CHARS] for name, text in names.items()},
        webhook=None if told is None else WebhookRequest(url=told), priority=subscription.priority,
    )  # fmt: skip


def found_item(
    subscription: Subscription, polygons: tuple[NamedPolygon, ...], document: Mapping[str, Any]
) -> FoundItem | str:
    """Return an item of a listing with its refusal; the reason for one that cannot be followed."""
    name, collection = document.get("id"), document.get("collection")
    if collection is None and len(subscription.collections) == 1:
        collection = subscription.collections[0]
    # A scene of an interval is complete at its end.
    at, updated = item_time(document, "datetime", "end_datetime", "start_datetime"), item_time(document, "updated")
    if document.get("type") != "Feature":
        return "of another type than Feature"
    if collection not in subscription.collections:
        return "of other collections"
    if not isinstance(name, str) or not 0 < len(name) <= _ID_CHARS or not name.isprintable():
        return "without a usable id"
    if at is None:
        return "without a time"
    updated_s = None if updated is None else updated.timestamp()
    refusal = _refusal(subscription, polygons, document)
    return FoundItem(name, str(collection), at.timestamp(), version_of(document), updated_s, document, refusal)


def _refusal(
    subscription: Subscription, polygons: tuple[NamedPolygon, ...], document: Mapping[str, Any]
) -> tuple[Decision, str] | None:
    try:
        check_json(document)
    except MalformedBody as error:
        return Decision.REFUSED, f"the item is malformed: {error.detail}"
    if polygons and not overlaps(polygons, document.get("geometry")):
        return Decision.AREA, "does not overlap the area"
    if subscription.filter is not None and (reason := why_not(subscription.filter, document)) is not None:
        return Decision.FILTER, reason
    return None
