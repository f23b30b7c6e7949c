"""The transitions of a batch that involve both stores: flows as in `journal.py`, performed by the same shells.

submit     reserve in Redis -> put the request -> confirm in Redis
end        put the outcome, or read the stored one -> write the stored outcome to Redis
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.batches import Batch, BatchEnd, BatchKey, BatchManifest, event_of, webhook_body
from penstock.errors import BatchGone, IdempotencyMismatch, UnknownBatch
from penstock.storage.journal import batch_manifests as manifests
from penstock.storage.journal.journal import Flow
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import batches
from penstock.storage.redis.scripts import Command

#: Seconds after which the keeper settles a reservation.
RESERVATION_S = 30.0
#: Seconds after a batch's end during which a loss of Redis has its webhook sent again.
ANNOUNCED_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """A batch after a submit; `created` is False when the same request had created it before."""

    batch: Batch
    created: bool


def submit(manifest: BatchManifest) -> Flow[SubmittedBatch]:
    """Create a batch whose lines are stored, or return the one that the same request created before.

    Raises `IdempotencyMismatch` where the key was used with another body, `BatchGone` where that batch was purged.
    """
    key = manifest.key
    batch: Batch = yield batches.open_batch(manifest, reserved=True)
    _require_same(manifest, batch.manifest)
    wanted = batch.manifest  # our own manifest, or that of an interrupted request
    stored: BatchManifest = yield lambda objects: manifests.put_manifest(objects, wanted)
    if stored != wanted:  # Redis had lost this batch
        yield batches.forget(key, purged=False)
        yield from revive(key)
        batch = yield batches.read(key)
        _require_same(manifest, stored)
    if batch.reserved:  # created again if the keeper forgot the reservation
        batch = yield from _known(key, batches.confirm(key))
    return SubmittedBatch(batch, created=stored == manifest)


def read(key: BatchKey) -> Flow[Batch]:
    """Return a batch, created again if Redis lost it; `UnknownBatch` or `BatchGone` without one."""
    return (yield from _known(key, batches.read(key)))


def cancel(key: BatchKey) -> Flow[Batch]:
    """Request a batch's end and return the batch; an ended batch comes back unchanged."""
    batch = yield from read(key)
    if batch.end is not None or batch.cancel_requested:
        return batch
    yield lambda objects: manifests.set_flag(objects, key, "cancel")
    return (yield from _known(key, batches.request_cancel(key)))


def delete(key: BatchKey) -> Flow[Batch | None]:
    """Have an ended batch purged with its members; return None. Cancel and return a live batch: its end purges it."""
    yield from read(key)
    yield lambda objects: manifests.set_flag(objects, key, "deleted")
    batch = yield from cancel(key)
    if batch.end is None:
        return batch
    yield batches.end(key, batch.end, deleted=True)
    return None


def finish(key: BatchKey, ended: BatchEnd) -> Flow[BatchEnd]:
    """End a batch, and return its stored end, which is the first one."""
    stored: BatchEnd = yield lambda objects: manifests.put_end(objects, key, ended)
    # Before Redis has the end, which closes the batch: after a crash in between, the keeper repeats both.
    yield from _announce(key, stored)
    yield batches.end(key, stored)
    # Read after the end is written: a later `delete` finds the batch ended.
    if (yield _flag(key, "deleted")):
        yield batches.end(key, stored, deleted=True)
    return stored


def revive(key: BatchKey) -> Flow[bool]:
    """Make a batch anew in Redis from its objects; False without a manifest. Nothing if it is there."""
    manifest: BatchManifest | None = yield lambda objects: manifests.read_manifest(objects, key)
    if manifest is None:
        return False
    cursor = yield lambda objects: manifests.read_cursor(objects, key)
    cancel: bool = yield _flag(key, "cancel")
    ended: BatchEnd | None = yield lambda objects: manifests.read_end(objects, key)
    try:
        yield batches.open_batch(manifest, cursor=cursor, cancel=cancel)
    except BatchGone:
        return False
    if ended is not None:
        now_us: int = yield batches.clock()
        if now_us / 1e6 - ended.completed_s < ANNOUNCED_AGAIN_S:  # it may be that no webhook was made before the loss
            yield from _announce(key, ended)
        deleted: bool = yield _flag(key, "deleted")
        yield batches.end(key, ended, deleted=deleted)
    return True


def _announce(key: BatchKey, ended: BatchEnd) -> Flow[None]:
    manifest: BatchManifest | None = yield lambda objects: manifests.read_manifest(objects, key)
    if manifest is not None and manifest.webhook is not None:
        yield batches.announce(key, event_of(ended), manifest.webhook, webhook_body(manifest, ended))


def settle_reservation(batch: Batch) -> Flow[bool]:
    """Confirm an abandoned reservation if its manifest is stored, forget it otherwise.

    Its lines stay for a slow client that still puts the manifest; the keeper removes lines without a batch.
    """
    stored: BatchManifest | None = yield lambda objects: manifests.read_manifest(objects, batch.key)
    if stored is not None:
        yield batches.confirm(batch.key)
        return True
    yield batches.forget(batch.key, purged=False)
    return False


def _known(key: BatchKey, command: Command[Batch]) -> Flow[Batch]:
    batch: Batch
    try:
        batch = yield command
    except UnknownBatch:
        if not (yield from revive(key)):
            raise
        batch = yield command
    return batch


def _flag(key: BatchKey, what: str) -> Callable[[ObjectStore], bool]:
    return lambda objects: manifests.has_flag(objects, key, what)


def _require_same(wanted: BatchManifest, found: BatchManifest) -> None:
    if wanted.fingerprint != found.fingerprint:
        raise IdempotencyMismatch("the Idempotency-Key was used before, by a request with another body")
