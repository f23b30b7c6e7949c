"""Results of subscriptions: copies in a STAC collection of their own, the judgement of the condition, the webhook.

Each step may run twice: folders are named by jobs, the collection is written anew, deliveries have ids of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from penstock.config import Settings
from penstock.errors import InputError, JobGone, ObjectNotFound, UnknownDelivery, UnknownJob
from penstock.intake.change_condition import Condition, parse_condition
from penstock.intake.item_area import named_polygons
from penstock.jobs import Delivery, Job, JobKey
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.json_objects import get_json, put_json
from penstock.storage.journal.subscription_progress import Entry, Progress, Published
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import deliveries, records
from penstock.storage.spool import own_folder
from penstock.workers.keeper.subscription_collection import (
    COLLECTION,
    ITEM,
    box_of,
    collection_document,
    folder_of,
    item_document,
)

#: Results of a step, and results of a collection, at most: older ones are removed.
STEP_RESULTS, MAX_RESULTS = 20, 1000
#: Artifact with the class map, and the field of its asset with the names of the classes.
CLASSES, _NAMES = "classes.tif", "classification:classes"
#: The event of a result for which the condition holds.
CHANGED = "subscription.changed"
_WITHOUT_GEO = "the keeper cannot read rasters: install penstock[geo] where it runs"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SubscriptionResults:
    """Publishes the results of subscriptions."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    clock: Callable[[], float] = time.time

    def step(self, subscription: Subscription, progress: Progress) -> Progress:
        """Publish new results, tell the receiver, and return the progress."""
        after = progress
        for name, entry in self._ready(subscription, progress):
            after = self._with(subscription, after, name, entry)
        if after.published != progress.published:
            after = self._indexed(subscription, after)
        return self._told(subscription, after)

    def wants(self, subscription: Subscription, progress: Progress) -> bool:
        """Return True where a step has something to follow: a job, a new result, or a delivery."""
        waits = any(entry.is_open or entry.has_new_result for entry in progress.entries.values())
        hooked = subscription.webhook is not None and subscription.condition is not None
        return waits or (hooked and any(_is_to_tell(each) for each in progress.published))

    def _ready(self, subscription: Subscription, progress: Progress) -> Iterator[tuple[str, Entry]]:
        """Yield the entries with new results by time. With a condition, each follows all that came before it."""
        ordered = sorted(progress.entries.items(), key=lambda each: (each[1].time_s, each[0]))
        left = STEP_RESULTS
        for name, entry in ordered:
            if left == 0 or (entry.is_open and subscription.condition is not None):
                return
            if entry.has_new_result:
                left -= 1
                yield name, entry

    def _with(self, subscription: Subscription, progress: Progress, name: str, entry: Entry) -> Progress:
        """Return the progress with a result, which replaces the one of an earlier version of its item."""
        done = replace(progress, entries={**progress.entries, name: replace(entry, published=True)})
        try:
            job = Journal(self.store, self.objects).run(journal.read(JobKey(progress.key.tenant, str(entry.job))))
            made = self._copied(subscription, entry, job)
        except (JobGone, UnknownJob, ObjectNotFound):
            log.warning("subscription.result_gone", subscription=str(progress.key), job=entry.job)
            return done
        others = tuple(each for each in progress.published if each.item != name)
        bbox = box_of(made)
        new = Published(folder_of(entry), name, str(entry.job), entry.time_s, self.clock(), bbox)
        if subscription.condition is not None:
            new = replace(new, change=self._judged(subscription, new, made, others))
        return replace(done, published=(*others, new))

    def _copied(self, subscription: Subscription, entry: Entry, job: Job) -> Mapping[str, Any]:
        """Copy the artifacts of a job below the results, and return the STAC item, which is written last."""
        place = _place(subscription.key, folder_of(entry))
        with own_folder(self.settings.spool_dir) as folder:
            for number, artifact in enumerate(each for each in job.artifacts if each.name != ITEM):
                copy = folder / str(number)
                self.objects.get_file(artifact.key, copy, limit_bytes=artifact.size_bytes)
                self.objects.put_file(place + artifact.name, copy, content_type=artifact.content_type)
                copy.unlink()
        written = next((artifact.key for artifact in job.artifacts if artifact.name == ITEM), None)
        made = None if written is None else get_json(self.objects, written)
        document = item_document(subscription, entry, job, made, _source(job))
        put_json(self.objects, place + ITEM, document)
        return document

    def _indexed(self, subscription: Subscription, progress: Progress) -> Progress:
        """Write the collection, and delete the results that it no longer has."""
        kept = sorted(progress.published, key=lambda each: (each.time_s, each.folder))[-MAX_RESULTS:]
        put_json(self.objects, progress.key.results + COLLECTION, collection_document(subscription, kept))
        folders = {each.folder for each in kept}
        prefix = f"{progress.key.results}items/"
        found = {info.key.removeprefix(prefix).partition("/")[0] for info in self.objects.list(prefix)}
        for folder in found - folders:
            self.objects.delete_prefix(f"{prefix}{folder}/")
        return replace(progress, published=tuple(kept))

    def _judged(
        self, subscription: Subscription, new: Published, made: Mapping[str, Any], others: tuple[Published, ...]
    ) -> dict[str, Any]:
        """Return the judgement of the condition on a new result. Where it cannot be judged, it holds."""
        condition = parse_condition(str(subscription.condition))
        earlier = [each for each in others if each.time_s < new.time_s and _meet(each.bbox, new.bbox)]
        before = max(earlier, key=lambda each: each.time_s, default=None)
        if before is None and condition.compares:
            return {"holds": False, "before": None, "polygons": []}
        try:
            polygons = self._quantities(subscription, condition, new, made, before)
        except (InputError, ObjectNotFound) as error:
            return {"holds": True, "problem": error.detail}
        except ImportError:
            return {"holds": True, "problem": _WITHOUT_GEO}
        holds = any(polygon["holds"] for polygon in polygons)
        return {"holds": holds, "before": None if before is None else before.item, "polygons": polygons}

    def _quantities(
        self, subscription: Subscription, condition: Condition, new: Published, made: Mapping[str, Any],
        before: Published | None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        from penstock.workers.keeper.class_changes import ClassMap, changes

        key = subscription.key
        polygons = named_polygons(subscription.area) if subscription.area is not None else ()
        with own_folder(self.settings.spool_dir) as folder:

            def class_map(published: Published, document: Mapping[str, Any], path: Path) -> ClassMap:
                self.objects.get_file(_place(key, published.folder) + CLASSES, path, limit_bytes=1 << 40)
                return ClassMap(path, _classes(document))

            now, then = class_map(new, made, folder / "now.tif"), None
            if before is not None:
                document = get_json(self.objects, _place(key, before.folder) + ITEM)
                then = class_map(before, document, folder / "then.tif")
            found = changes(condition, now, then, polygons)
        return [
            {
                "name": each.name,
                "holds": condition.holds(each.quantities),
                "counted_m2": round(each.counted_m2, 1),
                "m2": {str(quantity): round(m2, 1) for quantity, m2 in each.quantities.items()},
            }
            for each in found
        ]

    def _told(self, subscription: Subscription, progress: Progress) -> Progress:
        """Have the receiver told of the results for which the condition holds, until it has answered."""
        if subscription.webhook is None or subscription.condition is None:
            return progress
        published = [self._sent(subscription, each) for each in progress.published]
        return progress if published == [*progress.published] else replace(progress, published=tuple(published))

    def _sent(self, subscription: Subscription, each: Published) -> Published:
        if not _is_to_tell(each):
            return each
        tenant, name = subscription.key.tenant, f"msg_{each.job}_{CHANGED}"
        try:
            sent = self.store.run(deliveries.delivery(tenant, name))
        except UnknownDelivery:
            body = changed_body(subscription, each, self.settings.base_url)
            self.store.run(deliveries.send_event(tenant, name, CHANGED, url=str(subscription.webhook), body=body))
            return each
        return replace(each, told=sent.state is not Delivery.PENDING)


def changed_body(subscription: Subscription, each: Published, base_url: str) -> str:
    """Return the body of the event of a result for which the condition holds."""
    place = f"{base_url}/v1/subscriptions/{subscription.key.id}/stac"
    data = {
        "object": "subscription_result",
        "subscription": subscription.key.id,
        "item": each.item.partition("/")[2],
        "collection": each.item.partition("/")[0],
        "time": _iso(each.time_s),
        "job": each.job,
        "condition": subscription.condition,
        **{name: value for name, value in (each.change or {}).items() if name != "holds"},
        "links": {"item": f"{place}/items/{each.folder}/{ITEM}", "collection": f"{place}/{COLLECTION}"},
    }
    return json.dumps({"type": CHANGED, "timestamp": _iso(each.made_s), "data": data}, separators=(",", ":"))


def _is_to_tell(each: Published) -> bool:
    return not each.told and bool((each.change or {}).get("holds"))


def _classes(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the classes of an item's class map by name; `ObjectNotFound` where it names none."""
    named = document.get("assets", {}).get(CLASSES, {}).get(_NAMES)
    if not named:
        raise ObjectNotFound("the result has no class map with named classes")
    return {str(each["title"]): int(each["value"]) for each in named}


def _source(job: Job) -> Mapping[str, Any]:
    """Return the source item in the input of a job."""
    held = (value for value in job.submission.input.values() if isinstance(value, Mapping) and "assets" in value)
    return next(held, {})


def _place(key: SubscriptionKey, folder: str) -> str:
    return f"{key.results}items/{folder}/"


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    if not one or not other:
        return True
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
