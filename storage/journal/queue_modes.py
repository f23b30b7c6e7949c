"""The modes of queues in the object store, where they outlive Redis: a paused queue stays paused after a recovery."""

from __future__ import annotations

import json

from penstock.errors import ObjectNotFound
from penstock.formats import WRITES
from penstock.jobs import QueueMode
from penstock.storage.journal.manifests import LIMIT_BYTES
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import queues
from penstock.storage.redis.fields import dump
from penstock.storage.redis.scripts import Runs

#: The object with the queues that are not open.
KEY = "queues.json"


def store_modes(store: Runs, objects: ObjectStore) -> bool:
    """Store the modes that Redis has, unless it was emptied and not recovered; return True where they changed."""
    modes = store.run(queues.modes())
    if modes is None or modes == read_modes(objects):
        return False
    body = {"version": WRITES, "modes": modes}
    objects.put_bytes(KEY, dump(body).encode(), content_type="application/json")
    return True


def read_modes(objects: ObjectStore) -> dict[str, str]:
    """Return the stored modes of the queues that are not open."""
    try:
        found: dict[str, str] = json.loads(objects.get_bytes(KEY, limit_bytes=LIMIT_BYTES))["modes"]
    except ObjectNotFound:
        return {}
    return found


def restore_modes(store: Runs, objects: ObjectStore) -> None:
    """Give the queues of an emptied Redis their stored modes. A mode that this release does not know is left out."""
    for queue, mode in read_modes(objects).items():
        if mode in set(QueueMode):
            store.run(queues.set_mode(queue, QueueMode(mode)))
