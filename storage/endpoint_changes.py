"""Changing webhook endpoints where two stores must agree: flows, as in `journal.py`.

    begin in Redis (so that the keeper looks after it) -> put the next revision -> tell Redis

Whoever dies between two steps leaves a change that the keeper settles: Redis is told what the object store says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.errors import IdempotencyMismatch, ObjectStoreUnavailable, StateConflict, UnknownEndpoint
from penstock.keys import new_webhook_secret
from penstock.storage import endpoints
from penstock.storage.base import ObjectStore
from penstock.storage.endpoints import TRIES, Endpoint, EndpointKey, Secret
from penstock.storage.journal import Flow
from penstock.storage.scripts import Command

T = TypeVar("T")

#: An endpoint as it is to be: of what is stored, and the time.
Edit = Callable[[Endpoint, float], Endpoint]

#: After this the keeper settles a change that did not end.
SETTLE_S = 30.0
#: How many secrets may sign at a time; each is a signature in the header.
MAX_SECRETS = 5
#: Of a deleted endpoint, that are ended in one call.
DELIVERIES = 500
#: How long a request that made an endpoint may be repeated under its Idempotency-Key.
REPEATABLE_S = 86_400.0


def create(wanted: Endpoint) -> Flow[tuple[Endpoint, bool]]:
    """Store a new endpoint, its times and secret made here; return it and whether it is new.

    The same request again, under the same id, returns what it made; another one is `IdempotencyMismatch`.
    """
    key, nonce = wanted.key, uuid.uuid4().hex
    at = yield from _redis(endpoints.begin(key, nonce))
    new = replace(wanted, secrets=(Secret(new_webhook_secret()),), created_s=at, since_s=at, revision=1)
    created = yield from _objects(lambda objects: endpoints.put_endpoint(objects, new))
    found = new if created else (yield from _objects(lambda objects: endpoints.find_endpoint(objects, key)))
    yield from _redis(endpoints.publish(key, found, nonce))
    if found is None or found.deleted or found.fingerprint != wanted.fingerprint or at > found.created_s + REPEATABLE_S:
        raise IdempotencyMismatch("the Idempotency-Key was used before, for another webhook endpoint")
    return found, created


def change(key: EndpointKey, edit: Edit) -> Flow[Endpoint]:
    """Make an endpoint what `edit` returns, and return that; `UnknownEndpoint` without one.

    `edit` is called again where somebody else changed the endpoint meanwhile.
    """
    nonce = uuid.uuid4().hex
    at = yield from _redis(endpoints.begin(key, nonce))
    for _ in range(TRIES):
        found = yield from _objects(lambda objects: endpoints.find_endpoint(objects, key))
        if found is None or found.deleted:
            yield from _redis(endpoints.publish(key, found, nonce))
            raise UnknownEndpoint
        new = edit(found, at)
        if new == found:
            yield from _redis(endpoints.publish(key, found, nonce))
            return found
        new = replace(new, revision=found.revision + 1)
        if (yield from _stored(new)):
            yield from _redis(endpoints.publish(key, new, nonce))
            return new
    raise ObjectStoreUnavailable("the endpoint changes all the time", retry_after_s=1)


def delete(key: EndpointKey) -> Flow[None]:
    """Delete an endpoint and end its pending deliveries; `UnknownEndpoint` without one."""
    yield from change(key, lambda found, _: replace(found, deleted=True, enabled=False, secrets=()))
    yield from _end_deliveries(key)


def settle(key: EndpointKey, nonce: str) -> Flow[None]:
    """Tell Redis what the object store says of an endpoint whose change did not end."""
    found = yield from _objects(lambda objects: endpoints.find_endpoint(objects, key))
    if found is not None and found.deleted:
        yield from _end_deliveries(key)
    yield from _redis(endpoints.publish(key, found, nonce))


def rotated(overlap_s: float) -> Edit:
    """Return the edit that gives an endpoint a new secret; the ones before sign for so long beside it.

    `StateConflict` where too many would.
    """
    new = Secret(new_webhook_secret())

    def edit(found: Endpoint, at: float) -> Endpoint:
        kept = [s for s in found.secrets if s.until_s is None or s.until_s > at] if overlap_s else []
        if len(kept) >= MAX_SECRETS:
            raise StateConflict(
                f"{MAX_SECRETS} secrets of the endpoint sign at the moment: wait until the first ends, or end all now "
                "with an overlap_s of 0"
            )
        ends = at + overlap_s
        old = (replace(s, until_s=ends if s.until_s is None else min(s.until_s, ends)) for s in kept)
        return replace(found, secrets=(new, *old))

    return edit


def disabled(url: str, reason: str) -> Edit:
    """Return the edit that disables an endpoint, unless it has another URL by now."""
    return lambda found, _: (
        replace(found, enabled=False, disabled_reason=reason) if found.enabled and found.url == url else found
    )


def _stored(endpoint: Endpoint) -> Flow[bool]:
    stored = yield from _objects(lambda objects: endpoints.put_endpoint(objects, endpoint))
    if stored:
        yield from _objects(lambda objects: endpoints.empty_revisions(objects, endpoint))
    return stored


def _end_deliveries(key: EndpointKey) -> Flow[None]:
    more = True
    while more:
        more = yield from _redis(endpoints.end_deliveries(key, DELIVERIES))


def _redis(command: Command[T]) -> Flow[T]:
    result: T = yield command
    return result


def _objects(call: Callable[[ObjectStore], T]) -> Flow[T]:
    result: T = yield call
    return result
