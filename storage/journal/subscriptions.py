"""Subscriptions: each new item of a STAC catalogue becomes a job. They lie in the object store, and Redis has no part.

tenants/T/subscriptions/NAME/definition/00000001.json   the subscription, changed by requests
tenants/T/subscriptions/NAME/progress/00000001.json     the keeper's progress (`subscription_progress`)
tenants/T/subscription-results/NAME/...                 a STAC collection of its results
subscribers/T.json                                      mark of a tenant with subscriptions, by which keepers find it
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog

from penstock.errors import ObjectStoreUnavailable, RecordTooNew, StateConflict, UnknownSubscription
from penstock.formats import OWN, WRITES, carrying, known, unknown
from penstock.jobs import JobKey, Priority, TenantKey
from penstock.storage.journal.json_objects import put_json
from penstock.storage.journal.revisions import put_next, read_latest
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.fields import dump
from penstock.storage.redis.record import readable_version

#: Bytes of a stored subscription, at most: its area is the largest part.
LIMIT_BYTES = 8 << 20
#: Concurrent changes after which a change gives up.
TRIES = 20
_SUBSCRIBERS = "subscribers/"
#: Namespace of the jobs' ids: UUIDv5 of the subscription's uid, the item and its version.
_NAMESPACE = uuid.UUID("5b7f2c1e-6f0a-5d0b-9c55-0c2f7e3a9d41")

log = structlog.get_logger(__name__)


class SubscriptionKey(TenantKey):
    """The unique name of a subscription: its tenant, and the name that the tenant chose."""

    __slots__ = ()

    @property
    def definition(self) -> str:
        """The prefix of the subscription's revisions."""
        return f"tenants/{self.tenant}/subscriptions/{self.id}/definition/"

    @property
    def progress(self) -> str:
        """The prefix of the revisions of its progress."""
        return f"tenants/{self.tenant}/subscriptions/{self.id}/progress/"

    @property
    def results(self) -> str:
        """The prefix of its results."""
        return f"tenants/{self.tenant}/subscription-results/{self.id}/"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription. Times are seconds since the epoch."""

    key: SubscriptionKey
    #: A new one for each creation: jobs of a deleted subscription of the same name are others.
    uid: str
    #: Address of the STAC API.
    stac: str
    collections: tuple[str, ...]
    model: str
    #: Seconds between two looks at the catalogue, and before the last one at which late items are still found.
    every_s: float
    look_back_s: float
    #: Items before this time are left out.
    since_s: float
    created_s: float
    #: GeoJSON in EPSG:4326; None = everywhere.
    area: Mapping[str, Any] | None = None
    #: CQL2 text (`intake.item_filter`).
    filter: str | None = None
    #: The rest of each job's input.
    input: Mapping[str, Any] = field(default_factory=dict)
    priority: Priority = "normal"
    #: Jobs in a UTC day, at most.
    max_jobs_a_day: int | None = None
    #: Receiver of the results, and the condition without which it is not told.
    webhook: str | None = None
    condition: str | None = None
    paused: bool = False
    deleted: bool = False
    #: Hash of the request that created it.
    fingerprint: str = ""
    revision: int = 1
    #: Oldest format that can act on it, and the fields of newer formats, which are carried unchanged.
    version: int = WRITES
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def job_key(self, item: str, version: str) -> JobKey:
        """Return the key of the job of an item's version: always the same, so that no version becomes two jobs."""
        return JobKey(self.key.tenant, str(uuid.uuid5(_NAMESPACE, f"{self.uid} {item} {version}")))

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump(carrying(self.extra, self._own())).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Subscription:
        """Return the subscription of an object's bytes; raise `RecordTooNew` for a format that cannot be read."""
        stored: dict[str, Any] = json.loads(data)
        key = SubscriptionKey(stored["key"]["tenant"], stored["key"]["id"])
        version = readable_version(f"subscription {key.id}", stored)
        rest = {"key": key, "collections": tuple(stored["collections"]), "version": version}
        found = cls(**{**known(cls, stored), **rest})
        return replace(found, extra=unknown(stored, found._own()))

    def _own(self) -> dict[str, Any]:
        return {"version": self.version, **{name: value for name, value in asdict(self).items() if name not in OWN}}


#: Returns the changed subscription.
Edit = Callable[[Subscription], Subscription]


def create_subscription(objects: ObjectStore, wanted: Subscription) -> tuple[Subscription, bool]:
    """Store a new subscription; return it, and True where it is new.

    The same request again finds its subscription. `StateConflict` where the name is taken by another one.
    """
    put_json(objects, subscriber_key(wanted.key.tenant), {"tenant": wanted.key.tenant})
    for _ in range(TRIES):
        found = find_subscription(objects, wanted.key)
        if found is not None and not found.deleted:
            if found.fingerprint != wanted.fingerprint:
                raise StateConflict(f"there is another subscription {wanted.key.id!r}: delete it, or choose a name")
            return found, False
        new = replace(wanted, revision=1 if found is None else found.revision + 1)
        if put_next(objects, new.key.definition, new.revision, new.to_bytes()):
            return new, True
    raise ObjectStoreUnavailable("the subscription changes all the time", retry_after_s=1)


def find_subscription(objects: ObjectStore, key: SubscriptionKey) -> Subscription | None:
    """Return a subscription, also a deleted one; None for an unknown name."""
    found = read_latest(objects, key.definition, limit_bytes=LIMIT_BYTES)
    return None if found is None else Subscription.from_bytes(found.data)


def read_subscription(objects: ObjectStore, key: SubscriptionKey) -> Subscription:
    """Return a subscription; `UnknownSubscription` for an unknown or deleted one."""
    found = find_subscription(objects, key)
    if found is None or found.deleted:
        raise UnknownSubscription(f"there is no subscription {key.id!r}")
    return found


def change_subscription(objects: ObjectStore, key: SubscriptionKey, edit: Edit) -> Subscription:
    """Change a subscription by `edit`, and return the changed one; `UnknownSubscription` without one."""
    for _ in range(TRIES):
        found = read_subscription(objects, key)
        new = edit(found)
        if new == found:
            return found
        new = replace(new, revision=found.revision + 1)
        if put_next(objects, key.definition, new.revision, new.to_bytes()):
            return new
    raise ObjectStoreUnavailable("the subscription changes all the time", retry_after_s=1)


def list_subscriptions(objects: ObjectStore, tenant: str) -> tuple[Subscription, ...]:
    """Return a tenant's subscriptions by name. One of a format that cannot be read is left out and logged."""
    found = [each for key in subscription_keys(objects, tenant) if (each := readable(objects, key)) is not None]
    return tuple(each for each in found if not each.deleted)


def readable(objects: ObjectStore, key: SubscriptionKey) -> Subscription | None:
    """Return a subscription, also a deleted one; None for an unknown one, and for one of a newer format."""
    try:
        return find_subscription(objects, key)
    except RecordTooNew as error:
        log.warning("subscription.skipped", subscription=str(key), detail=error.detail)
        return None


def subscription_keys(objects: ObjectStore, tenant: str) -> tuple[SubscriptionKey, ...]:
    """Return the keys of a tenant's subscriptions by name, also of deleted ones."""
    names = (info.key.split("/", 4)[3] for info in objects.list(f"tenants/{tenant}/subscriptions/"))
    return tuple(SubscriptionKey(tenant, name) for name in dict.fromkeys(names))


def subscribers(objects: ObjectStore) -> Iterator[str]:
    """Yield the tenants that have, or had, subscriptions."""
    for info in list(objects.list(_SUBSCRIBERS)):
        yield info.key.removeprefix(_SUBSCRIBERS).removesuffix(".json")


def subscriber_key(tenant: str) -> str:
    """Return the key of the mark of a tenant with subscriptions."""
    return f"{_SUBSCRIBERS}{tenant}.json"
