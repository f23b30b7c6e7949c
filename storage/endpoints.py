"""Webhook endpoints: where a tenant wants to be told of all its jobs. They live in the object store, secrets and all.

Each change is an object of its own, `tenants/T/endpoints/ID/<revision>.json`, put with `if_absent`: of two who change
an endpoint at once, the second sees the first one's change before it makes its own. The highest revision is the
endpoint. The ones before are emptied and keep their names for a day, so that nobody who is slow takes one of them; a
deleted endpoint's last revision says so. The keeper tidies both away.

Redis knows of each endpoint what the scripts need that write deliveries, and no secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.errors import ObjectExists, ObjectStoreUnavailable, UnknownEndpoint
from penstock.jobs import Webhook
from penstock.storage.base import ObjectStore
from penstock.storage.fields import dump, us
from penstock.storage.scripts import Command

VERSION = 1
LIMIT_BYTES = 100_000
#: What is left of a revision that was replaced.
EMPTY = b"{}"
#: What everybody who changes an endpoint may meet at most of others' changes.
TRIES = 20

_KEY = re.compile(r"tenants/(?P<tenant>[^/]+)/endpoints/(?P<id>[^/]+)/\d{8}\.json")


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """An endpoint's full name."""

    tenant: str
    id: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.id}"

    @property
    def prefix(self) -> str:
        """Where its revisions lie in the object store."""
        return f"tenants/{self.tenant}/endpoints/{self.id}/"


@dataclass(frozen=True, slots=True)
class Secret:
    """What an endpoint's deliveries are signed with, until `until_s` where it was replaced."""

    text: str = field(repr=False)
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A webhook endpoint. Times are seconds since the epoch by Redis' clock."""

    key: EndpointKey
    url: str
    #: The latest first.
    secrets: tuple[Secret, ...]
    created_s: float
    #: Events before this are not for it: when it was made, or enabled again.
    since_s: float
    events: tuple[str, ...] = Webhook("").events
    #: Only of jobs of these models; empty = of all.
    models: tuple[str, ...] = ()
    description: str = ""
    enabled: bool = True
    #: Why the service disabled it, where it was not asked to.
    disabled_reason: str | None = None
    #: Of the request that made it.
    fingerprint: str = ""
    revision: int = 1
    deleted: bool = False

    @property
    def secret(self) -> str:
        """What signs from now on."""
        return self.secrets[0].text

    def signing(self, at: float) -> tuple[str, ...]:
        """Return the secrets that sign a delivery at this time, the latest first."""
        return tuple(s.text for s in self.secrets if s.until_s is None or at < s.until_s)

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        return dump({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Endpoint:
        """Read what `to_bytes` wrote."""
        found: dict[str, Any] = json.loads(data)
        del found["version"]
        lists = {name: tuple(found[name]) for name in ("events", "models")}
        secrets = tuple(Secret(**secret) for secret in found["secrets"])
        return cls(**{**found, **lists, "key": EndpointKey(**found["key"]), "secrets": secrets})

    def told(self) -> str:
        """Return what Redis is told of it (JSON)."""
        names = ("url", "events", "models", "enabled", "revision", "deleted")
        return dump({"id": self.key.id, "since_us": us(self.since_s), **{name: getattr(self, name) for name in names}})


def endpoint_in(object_key: str) -> EndpointKey | None:
    """Return the endpoint of which this is a revision, if it is one."""
    found = _KEY.fullmatch(object_key)
    return None if found is None else EndpointKey(found["tenant"], found["id"])


def find_endpoint(objects: ObjectStore, key: EndpointKey) -> Endpoint | None:
    """Return an endpoint as it is, deleted ones too; None where there never was one."""
    for _ in range(TRIES):
        names = [info.key for info in objects.list(key.prefix)]
        if not names:
            return None
        data = objects.get_bytes(names[-1], limit_bytes=LIMIT_BYTES)
        if data != EMPTY:  # or a newer one has come meanwhile
            return Endpoint.from_bytes(data)
    raise ObjectStoreUnavailable("the endpoint changes all the time", retry_after_s=1)


def read_endpoint(objects: ObjectStore, key: EndpointKey) -> Endpoint:
    """Return an endpoint as it is; `UnknownEndpoint` without one."""
    found = find_endpoint(objects, key)
    if found is None or found.deleted:
        raise UnknownEndpoint
    return found


def list_endpoints(objects: ObjectStore, tenant: str) -> tuple[Endpoint, ...]:
    """Return a tenant's endpoints, the oldest first."""
    named = (endpoint_in(info.key) for info in objects.list(f"tenants/{tenant}/endpoints/"))
    found = [find_endpoint(objects, key) for key in dict.fromkeys(filter(None, named))]
    return tuple(sorted((e for e in found if e and not e.deleted), key=lambda e: (e.created_s, e.key.id)))


def put_endpoint(objects: ObjectStore, endpoint: Endpoint) -> bool:
    """Store a revision; False where somebody else has stored that revision before."""
    name, data = _name(endpoint), endpoint.to_bytes()
    try:
        objects.put_bytes(name, data, content_type="application/json", if_absent=True)
    except ObjectExists:
        return objects.get_bytes(name, limit_bytes=LIMIT_BYTES) == data  # our own put, whose answer was lost
    return True


def empty_revisions(objects: ObjectStore, endpoint: Endpoint) -> None:
    """Empty what was before a revision, old secrets with it. What fails here goes with the next change."""
    with suppress(ObjectStoreUnavailable):
        for info in list(objects.list(endpoint.key.prefix)):
            if info.key < _name(endpoint) and info.size_bytes > len(EMPTY):
                objects.put_bytes(info.key, EMPTY, content_type="application/json")


def forget_deleted(objects: ObjectStore, key: EndpointKey) -> None:
    """Delete the last trace of a deleted endpoint."""
    objects.delete_prefix(key.prefix)


def begin(key: EndpointKey, nonce: str) -> Command[float]:
    """Say that an endpoint is about to change, and return the time. What never publishes is settled by the keeper."""
    return Command("endpoint_begin", (key.tenant, key.id, nonce), lambda reply: int(reply) / 1_000_000)


def publish(key: EndpointKey, endpoint: Endpoint | None, nonce: str = "") -> Command[str]:
    """Tell Redis what an endpoint is now, which ends the change that began under the nonce."""
    return Command("endpoint_publish", (key.tenant, key.id, nonce, endpoint.told() if endpoint else ""), str)


def changing(age_s: float, limit: int) -> Command[tuple[tuple[EndpointKey, str], ...]]:
    """Return the changes that began so long ago and did not end, each with its nonce."""
    return Command("endpoint_changing", (us(age_s), limit), _changes)


def end_deliveries(key: EndpointKey, limit: int) -> Command[bool]:
    """End at most `limit` deliveries of a deleted endpoint; return whether there are more."""
    return Command("endpoint_end", (key.tenant, key.id, limit), bool)


def forget(key: EndpointKey) -> Command[str]:
    """Have Redis forget a deleted endpoint."""
    return Command("endpoint_forget", (key.tenant, key.id), str)


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.key.prefix}{endpoint.revision:08}.json"


def _changes(names: Iterable[str]) -> tuple[tuple[EndpointKey, str], ...]:
    parts = (name.split("/", 2) for name in names)
    return tuple((EndpointKey(tenant, endpoint), nonce) for tenant, endpoint, nonce in parts)
