"""Webhook endpoints: URLs that receive the events of all jobs of a tenant. Stored in the object store.

Each change is an object of its own, `tenants/T/endpoints/ID/<revision>.json`, put with `if_absent`: of two concurrent
changes, the second is applied to the result of the first. The highest revision is the endpoint. Earlier revisions are
emptied and keep their names for a day, so that a slow writer cannot reuse them. The last revision of a deleted endpoint
is marked as deleted. The keeper removes both.

The secrets are stored with it. Redis has an entry of each endpoint, without secrets, for the scripts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog

from penstock.errors import ObjectExists, ObjectStoreUnavailable, RecordTooNew, UnknownEndpoint
from penstock.formats import OWN, carrying, known, unknown
from penstock.jobs import TenantKey, Webhook
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.fields import MICRO, dump, us
from penstock.storage.redis.record import readable_version
from penstock.storage.redis.scripts import Arg, Command, query

LIMIT_BYTES = 100_000
#: The content of a revision that was replaced.
EMPTY = b"{}"
#: Concurrent changes after which a change of an endpoint gives up.
TRIES = 20

log = structlog.get_logger(__name__)

_KEY = re.compile(r"tenants/(?P<tenant>[^/]+)/endpoints/(?P<id>[^/]+)/\d{8}\.json")


class EndpointKey(TenantKey):
    """The unique name of an endpoint."""

    __slots__ = ()

    @property
    def prefix(self) -> str:
        """The prefix of its revisions in the object store."""
        return f"tenants/{self.tenant}/endpoints/{self.id}/"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that signs an endpoint's deliveries; a replaced secret signs until `until_s`."""

    text: str = field(repr=False)
    until_s: float | None = None
    #: Fields of newer formats, which are carried unchanged.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the secret as JSON-ready data."""
        return {**self.extra, "text": self.text, "until_s": self.until_s}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Secret:
        """Return the secret of `to_json`'s data."""
        found = cls(**known(cls, data))
        return replace(found, extra=unknown(data, found.to_json()))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A webhook endpoint. Times are seconds since the epoch by Redis' clock."""

    key: EndpointKey
    url: str
    #: Latest first.
    secrets: tuple[Secret, ...]
    created_s: float
    #: Time of its creation, or of its latest enabling: it receives no earlier events.
    since_s: float
    events: tuple[str, ...] = Webhook("").events
    #: Models whose jobs' events it receives; empty = all models.
    models: tuple[str, ...] = ()
    description: str = ""
    #: Form of the bodies: `webhook` or `cloudevents`.
    format: str = "webhook"
    enabled: bool = True
    #: Reason for which the service disabled it by itself.
    disabled_reason: str | None = None
    #: Hash of the request that created it.
    fingerprint: str = ""
    revision: int = 1
    deleted: bool = False
    #: Oldest format that can send its events.
    version: int = 1
    #: Fields of newer formats, which are carried unchanged. Those under `entry` also go into its entry in Redis.
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def secret(self) -> str:
        """The latest secret."""
        return self.secrets[0].text

    def signing(self, at: float) -> tuple[str, ...]:
        """Return the secrets that sign a delivery at this time, latest first."""
        return tuple(s.text for s in self.secrets if s.until_s is None or at < s.until_s)

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump(carrying(self.extra, self._own())).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Endpoint:
        """Return the endpoint of an object's bytes."""
        stored: dict[str, Any] = json.loads(data)
        key = EndpointKey(stored["key"]["tenant"], stored["key"]["id"])
        version = readable_version(f"webhook endpoint {key.id}", stored)
        lists = {name: tuple(stored[name]) for name in ("events", "models")}
        secrets = tuple(map(Secret.from_json, stored["secrets"]))
        found = cls(**{**known(cls, stored), **lists, "key": key, "secrets": secrets}, version=version)
        return replace(found, extra=unknown(stored, found._own()))

    def entry(self) -> str:
        """Return its entry in Redis (JSON)."""
        names = ("url", "events", "models", "enabled", "revision", "deleted")
        own = {"id": self.key.id, "since_us": us(self.since_s), **{name: getattr(self, name) for name in names}}
        version = {} if self.version == 1 else {"version": self.version}
        return dump({**self.extra.get("entry", {}), **own, **version})

    def _own(self) -> dict[str, Any]:
        left_out = OWN | {"format"} if self.format == "webhook" else OWN  # the release before rejects the field
        row = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {"version": self.version, **row, "secrets": [secret.to_json() for secret in self.secrets]}


def endpoint_in(object_key: str) -> EndpointKey | None:
    """Return the endpoint whose revision has this key; None for any other object."""
    found = _KEY.fullmatch(object_key)
    return None if found is None else EndpointKey(found["tenant"], found["id"])


def find_endpoint(objects: ObjectStore, key: EndpointKey) -> Endpoint | None:
    """Return an endpoint, also a deleted one; None for an unknown endpoint."""
    for _ in range(TRIES):
        names = [info.key for info in objects.list(key.prefix)]
        if not names:
            return None
        data = objects.get_bytes(names[-1], limit_bytes=LIMIT_BYTES)
        if data != EMPTY:  # otherwise a newer revision was put meanwhile
            return Endpoint.from_bytes(data)
    raise ObjectStoreUnavailable("the endpoint changes all the time", retry_after_s=1)


def read_endpoint(objects: ObjectStore, key: EndpointKey) -> Endpoint:
    """Return an endpoint; `UnknownEndpoint` for an unknown or deleted one."""
    found = find_endpoint(objects, key)
    if found is None or found.deleted:
        raise UnknownEndpoint
    return found


def list_endpoints(objects: ObjectStore, tenant: str) -> tuple[Endpoint, ...]:
    """Return a tenant's endpoints, oldest first. One of a format that cannot be read is left out and logged."""
    named = (endpoint_in(info.key) for info in objects.list(f"tenants/{tenant}/endpoints/"))
    found = [each for key in dict.fromkeys(filter(None, named)) for each in _readable(objects, key)]
    return tuple(sorted((e for e in found if e and not e.deleted), key=lambda e: (e.created_s, e.key.id)))


def _readable(objects: ObjectStore, key: EndpointKey) -> Iterator[Endpoint | None]:
    try:
        yield find_endpoint(objects, key)
    except RecordTooNew as error:
        log.warning("endpoint.skipped", detail=error.detail)


def put_endpoint(objects: ObjectStore, endpoint: Endpoint) -> bool:
    """Store a revision; False where another writer has stored that revision."""
    name, data = _name(endpoint), endpoint.to_bytes()
    try:
        objects.put_bytes(name, data, content_type="application/json", if_absent=True)
    except ObjectExists:
        return objects.get_bytes(name, limit_bytes=LIMIT_BYTES) == data  # our own put, whose answer was lost
    return True


def empty_revisions(objects: ObjectStore, endpoint: Endpoint) -> None:
    """Empty the earlier revisions, with their secrets. After a failure the next change empties them."""
    with suppress(ObjectStoreUnavailable):
        for info in list(objects.list(endpoint.key.prefix)):
            if info.key < _name(endpoint) and info.size_bytes > len(EMPTY):
                objects.put_bytes(info.key, EMPTY, content_type="application/json")


def begin(key: EndpointKey, nonce: str) -> Command[float]:
    """Begin a change of an endpoint, and return the time. The keeper settles a change that is never published."""
    return Command("add", {"op": "endpoint_change", **_names(key), "nonce": nonce}, lambda reply: int(reply) / MICRO)


def publish(key: EndpointKey, endpoint: Endpoint | None, nonce: str = "") -> Command[str]:
    """Publish an endpoint to Redis, and end the change that began under the nonce."""
    return Command(
        "endpoint_publish", {**_names(key), "nonce": nonce, "entry": endpoint.entry() if endpoint else None}, str
    )


def changing(age_s: float, limit: int) -> Command[tuple[tuple[EndpointKey, str], ...]]:
    """Return the changes that are older and did not end, each with its nonce."""
    return query("endpoint_changes", _changes, age_us=us(age_s), limit=limit)


def end_deliveries(key: EndpointKey, limit: int) -> Command[bool]:
    """End at most `limit` deliveries of a deleted endpoint; return True where there are more."""
    return Command("endpoint_end", {**_names(key), "limit": limit}, bool)


def forget(key: EndpointKey) -> Command[str]:
    """Have Redis forget a deleted endpoint."""
    return Command("note", {"op": "forget_endpoint", **_names(key)}, str)


def _names(key: EndpointKey) -> dict[str, Arg]:
    return {"tenant": key.tenant, "endpoint": key.id}


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.key.prefix}{endpoint.revision:08}.json"


def _changes(names: Iterable[str]) -> tuple[tuple[EndpointKey, str], ...]:
    parts = (name.split("/", 2) for name in names)
    return tuple((EndpointKey(tenant, endpoint), nonce) for tenant, endpoint, nonce in parts)
