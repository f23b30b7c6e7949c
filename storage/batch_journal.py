"""What happens to a batch where both stores must agree: flows as in `journal.py`, performed by the same shells.

accepted   reserve in Redis -> put the request -> confirm in Redis
over       put the outcome, or read the one that was first -> note that one in Redis
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.batches import Batch, BatchEnd, BatchKey, BatchManifest
from penstock.errors import BatchGone, IdempotencyMismatch, UnknownBatch
from penstock.storage import batch_manifests as manifests
from penstock.storage import batches
from penstock.storage.base import ObjectStore
from penstock.storage.journal import Flow
from penstock.storage.scripts import Command

#: After this the keeper looks whether a reservation's manifest is there.
RESERVATION_S = 30.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch, and whether this request made it."""

    batch: Batch
    created: bool


def accept(manifest: BatchManifest) -> Flow[Accepted]:
    """Accept a batch whose lines are stored, or return the one that the same request made before.

    Raises `IdempotencyMismatch` where the key was used with another body, `BatchGone` where that batch was purged.
    """
    key = manifest.key
    batch: Batch = yield batches.open_batch(manifest, reserved=True)
    _require_same(manifest, batch.manifest)
    wanted = batch.manifest  # of a request that was interrupted, or of ourselves
    stored: BatchManifest = yield lambda objects: manifests.put_manifest(objects, wanted)
    if stored != wanted:  # Redis had lost this batch
        yield batches.forget(key, purged=False)
        yield from revive(key)
        batch = yield batches.read(key)
        _require_same(manifest, stored)
    if batch.reserved:  # made anew where the object store took so long that the keeper forgot the reservation
        batch = yield from _known(key, batches.confirm(key))
    return Accepted(batch, created=stored == manifest)


def read(key: BatchKey) -> Flow[Batch]:
    """Return a batch, made anew where Redis lost it; `UnknownBatch` or `BatchGone` without one."""
    return (yield from _known(key, batches.read(key)))


def cancel(key: BatchKey) -> Flow[Batch]:
    """Ask for a batch's end and return it; one that is over comes back unchanged."""
    batch = yield from read(key)
    if batch.end is not None or batch.cancel_requested:
        return batch
    yield lambda objects: manifests.mark(objects, key, "cancel")
    return (yield from _known(key, batches.request_cancel(key)))


def delete(key: BatchKey) -> Flow[Batch | None]:
    """Have a batch and its members purged: None. One that is not over is canceled and returned: its end purges it."""
    yield from read(key)
    yield lambda objects: manifests.mark(objects, key, "deleted")
    batch = yield from cancel(key)
    if batch.end is None:
        return batch
    yield batches.end(key, batch.end, deleted=True)
    return None


def finish(key: BatchKey, ended: BatchEnd) -> Flow[BatchEnd]:
    """End a batch, and return how it ended: as the first said who came so far."""
    stored: BatchEnd = yield lambda objects: manifests.put_end(objects, key, ended)
    yield batches.end(key, stored)
    # Looked for after the end is noted: who marks it later finds the batch over.
    if (yield _marked(key, "deleted")):
        yield batches.end(key, stored, deleted=True)
    return stored


def revive(key: BatchKey) -> Flow[bool]:
    """Make a batch anew in Redis from its objects; False without a manifest. Nothing if it is there."""
    manifest: BatchManifest | None = yield lambda objects: manifests.read_manifest(objects, key)
    if manifest is None:
        return False
    cursor = yield lambda objects: manifests.read_cursor(objects, key)
    cancel: bool = yield _marked(key, "cancel")
    ended: BatchEnd | None = yield lambda objects: manifests.read_end(objects, key)
    try:
        yield batches.open_batch(manifest, cursor=cursor, cancel=cancel)
    except BatchGone:
        return False
    if ended is not None:
        deleted: bool = yield _marked(key, "deleted")
        yield batches.end(key, ended, deleted=deleted)
    return True


def settle_reservation(batch: Batch) -> Flow[bool]:
    """Confirm a reservation that was left alone if its manifest is there, forget it otherwise.

    Its lines stay, for whoever is slow and puts the manifest now; the keeper tidies those of which no batch was made.
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


def _marked(key: BatchKey, what: str) -> Callable[[ObjectStore], bool]:
    return lambda objects: manifests.marked(objects, key, what)


def _require_same(wanted: BatchManifest, found: BatchManifest) -> None:
    if wanted.fingerprint != found.fingerprint:
        raise IdempotencyMismatch("the Idempotency-Key was used before, by a request with another body")
