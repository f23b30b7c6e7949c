"""The modes of queues in the object store, where they outlive Redis: a paused queue stays paused after a recovery.

A change is written to Redis and then to the object store, before the request is answered. A Redis that was emptied, or
that was restarted and may have older data, gets the stored modes before any mode is stored.
"""

from __future__ import annotations

from penstock.errors import RedisUnavailable
from penstock.formats import WRITES
from penstock.jobs import QueueMode
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import queues
from penstock.storage.redis.scripts import Runs

#: The object with the queues that are not open.
KEY = "queues.json"
#: Tries to store the modes while other processes change them, or while Redis restarts.
_TRIES = 10


def set_mode(queue: str, mode: QueueMode) -> Flow[None]:
    """Open, pause or drain a queue, in both stores. Safe to repeat."""
    for _ in range(_TRIES):
        yield from restore()
        yield queues.set_mode(queue, mode)
        if (yield from _store()):
            return
    raise RedisUnavailable("the job store is starting, or others change the modes of queues", retry_after_s=2)


def restore() -> Flow[None]:
    """Restore the stored modes in a Redis that was restarted or emptied, once per run of the server."""
    if (yield queues.modes()) is None:
        yield queues.restore_modes((yield _read))


def store_modes(store: Runs, objects: ObjectStore) -> bool:
    """Store the modes of Redis if they differ from the stored ones; return True where they do.

    Such modes were set by an older release, or by an API process that died before it stored them. Does nothing before
    `restore` has run on a restarted Redis.
    """
    modes = store.run(queues.modes())
    if modes is None or modes == read_modes(objects):
        return False
    Journal(store, objects).run(_store())
    return True


def read_modes(objects: ObjectStore) -> dict[str, str]:
    """Return the stored modes of the queues that are not open."""
    return _read(objects) or {}


def _store() -> Flow[bool]:
    """Store the modes of Redis; return False if they changed meanwhile, or if Redis was restarted."""
    modes: dict[str, str] | None = yield queues.modes()
    if modes is None:
        return False
    yield lambda objects: put_json(objects, KEY, {"version": WRITES, "modes": modes})
    return bool((yield queues.modes()) == modes)


def _read(objects: ObjectStore) -> dict[str, str] | None:
    """Return the stored modes; None where none were ever stored."""
    found: dict[str, dict[str, str]] | None = read_json(objects, KEY)
    return None if found is None else found["modes"]
