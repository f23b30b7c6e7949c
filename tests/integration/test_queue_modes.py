"""Modes of queues outlive a loss of Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import Claim, JobKey, QueueMode, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.queue_modes import read_modes, set_mode, store_modes
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import queues
from penstock.storage.redis.records import JobStore, QueueLimits
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.claims import claim_up_to

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    """Return the two stores, which a keeper has compared."""
    desk = Journal(store, LocalStore(tmp_path / "objects"))
    recover_if_lost(store, desk.objects)
    return desk


def submit(desk: Journal, job_id: str, **given: Any) -> JobKey:
    key = JobKey("t", job_id)
    desk.run(journal.submit(Submission(key, "m", "q", {}, "f", **given), LIMITS))
    return key


def claim(desk: Journal, n: int = 1) -> list[Claim]:
    return claim_up_to(desk.store, n)


def test_a_paused_queue_stays_paused_where_only_the_object_store_was_saved(desk: Journal) -> None:
    waiting = submit(desk, "waiting")
    desk.run(set_mode("q", QueueMode.PAUSED))
    desk.run(set_mode("other", QueueMode.DRAINING))
    assert not store_modes(desk.store, desk.objects)
    assert isinstance(desk.store, JobStore)
    desk.store.client.flushall()
    assert not store_modes(desk.store, desk.objects)  # nothing is known of an emptied Redis
    recover_if_lost(desk.store, desk.objects)
    assert claim(desk) == []
    modes = {name: desk.store.run(queues.queue_stats(name)).mode for name in ("q", "other")}
    assert modes == {"q": QueueMode.PAUSED, "other": QueueMode.DRAINING}
    desk.run(set_mode("q", QueueMode.OPEN))
    assert [each.key for each in claim(desk)] == [waiting]
    assert read_modes(desk.objects) == {"other": "draining"}


def test_a_mode_that_an_older_release_has_set_is_stored_by_the_keeper(desk: Journal) -> None:
    desk.store.run(queues.set_mode("q", QueueMode.PAUSED))
    assert store_modes(desk.store, desk.objects)
    assert read_modes(desk.objects) == {"q": "paused"}


def test_a_server_keeps_its_modes_where_none_were_ever_stored(store: JobStore, tmp_path: Path) -> None:
    store.run(queues.set_mode("q", QueueMode.PAUSED))
    objects = LocalStore(tmp_path / "objects")
    recover_if_lost(store, objects)
    assert store_modes(store, objects)
    assert read_modes(objects) == {"q": "paused"}


class Overtaken(LocalStore):
    """A store with which another process changes a mode during the first put."""

    meanwhile: Callable[[], object] | None = None

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        if (act := self.meanwhile) is not None:
            self.meanwhile = None
            act()
        return super().put_bytes(key, data, content_type=content_type, if_absent=if_absent)


@pytest.mark.parametrize("loss", [False, True], ids=["another change", "a loss of Redis"])
def test_what_happens_while_modes_are_stored_is_stored_too(store: JobStore, tmp_path: Path, loss: bool) -> None:
    objects = Overtaken(tmp_path / "objects")
    desk = Journal(store, objects)
    desk.run(set_mode("earlier", QueueMode.PAUSED))
    objects.meanwhile = store.client.flushall if loss else lambda: store.run(queues.set_mode("b", QueueMode.DRAINING))
    desk.run(set_mode("a", QueueMode.PAUSED))
    others = {} if loss else {"b": "draining"}
    assert read_modes(objects) == store.run(queues.modes()) == {"earlier": "paused", "a": "paused", **others}
