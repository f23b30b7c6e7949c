"""Changes of webhook endpoints, which involve both stores: flows, as in `journal.py`.

    begin in Redis (for the keeper) -> put the next revision -> publish to Redis

The keeper settles a change that was interrupted between two steps: it publishes the stored endpoint to Redis.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.errors import IdempotencyMismatch, ObjectStoreUnavailable, StateConflict, UnknownEndpoint
from penstock.storage.journal import endpoints
from penstock.storage.journal.endpoints import TRIES, Endpoint, EndpointKey, Secret
from penstock.storage.journal.journal import Flow
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.scripts import Command
from penstock.storage.signing import new_webhook_secret

T = TypeVar("T")

#: Returns the changed endpoint, from the stored endpoint and the time.
Edit = Callable[[Endpoint, float], Endpoint]

#: Seconds after which the keeper settles a change that did not end.
SETTLE_S = 30.0
#: Secrets that may sign at a time; each adds a signature to the header.
MAX_SECRETS = 5
#: Deliveries of a deleted endpoint that one call ends.
DELIVERIES = 500
#: Seconds for which the request that created an endpoint may be repeated under its Idempotency-Key.
REPEATABLE_S = 86_400.0


def create(wanted: Endpoint) -> Flow[tuple[Endpoint, bool]]:
    """Store a new endpoint, with its times and secret; return it, and True where it is new.

    The same request again, under the same id, returns its endpoint; another request is `IdempotencyMismatch`.
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
    """Change an endpoint by `edit`, and return the changed one; `UnknownEndpoint` without an endpoint.

    `edit` is called again where another request changed the endpoint meanwhile.
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
    """Publish the stored endpoint to Redis, after a change that did not end."""
    found = yield from _objects(lambda objects: endpoints.find_endpoint(objects, key))
    if found is not None and found.deleted:
        yield from _end_deliveries(key)
    yield from _redis(endpoints.publish(key, found, nonce))


def rotated(overlap_s: float) -> Edit:
    """Return the edit that adds a new secret; earlier secrets also sign for `overlap_s` more seconds.

    `StateConflict` where too many secrets would sign.
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
    """Return the edit that disables an endpoint, unless its URL has changed."""
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
