"""A recovery of very many ended jobs: they are restored while they are listed, and their names are not all kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.jobs import JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.storage.redis.records import Command, JobStore
from penstock.workers.keeper.recovery import CONCURRENCY, LOOKED_UP, TOGETHER, restore
from tests.support.bare_store import LIMITS

#: More ended jobs than a recovery restores and looks up at a time.
MANY = 3 * CONCURRENCY * TOGETHER + 2 * LOOKED_UP
DURABLE = replace(LIMITS, durable=True)
ENDED = JobKey("default", "ended0000")


class Listed(LocalStore):
    """A store that notes at the end of each listing how many jobs Redis has."""

    def __init__(self, root: Path, redis: JobStore) -> None:
        super().__init__(root)
        self.had: list[int] = []
        self._redis = redis

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List as any store, and note."""
        yield from super().list(prefix)
        if prefix == "tenants/":
            self.had.append(int(self._redis.client.zcard("penstock:tenant:default:jobs")))


def test_ended_jobs_are_restored_while_they_are_listed(store: JobStore, tmp_path: Path) -> None:
    objects = Listed(tmp_path / "objects", store)
    desk = Journal(store, objects)
    live = JobKey("default", "live")
    for key in (ENDED, live):
        desk.run(journal.submit(Submission(key, "m", "q", {"x": 1}, "f"), DURABLE))
    desk.run(journal.cancel(ENDED))
    copy(objects)
    store.client.flushall()
    assert restore(store, objects) == MANY + 1
    [listed] = objects.had
    assert listed > MANY / 4
    assert store.client.zcard("penstock:tenant:default:jobs") == MANY + 1
    assert store.run(records.read(live)).state is State.QUEUED
    assert store.run(records.read(JobKey("default", f"ended{MANY - 1:04}"))).state is State.CANCELED
    assert restore(store, objects) == 0


def test_a_reservation_is_confirmed_where_its_manifest_is_stored(store: JobStore, tmp_path: Path) -> None:
    desk = Journal(store, LocalStore(tmp_path / "objects"))
    wanted = Submission(ENDED, "m", "q", {"x": 1}, "f")
    begun = journal.submit(wanted, DURABLE)
    reserve = next(begun)
    assert isinstance(reserve, Command)
    mark = begun.send(desk.perform(reserve))
    desk.perform(begun.send(desk.perform(mark)))  # the put; the confirm is lost
    assert store.run(records.read(ENDED)).state is State.RESERVED
    assert restore(store, desk.objects) == 1
    assert store.run(records.read(ENDED)).state is State.QUEUED
    assert restore(store, desk.objects) == 0


def copy(objects: LocalStore) -> None:
    """Store the ended job under many ids."""
    names = [info.key for info in objects.list(ENDED.prefix)]
    texts = {name: objects.get_bytes(name, limit_bytes=2**20).decode() for name in names}
    unsynced = LocalStore(objects.root, sync=lambda _: None)
    for job_id in (f"ended{number:04}" for number in range(1, MANY)):
        for name, text in texts.items():
            body = text.replace(ENDED.id, job_id).encode()
            unsynced.put_bytes(name.replace(ENDED.id, job_id), body, content_type="application/json")
