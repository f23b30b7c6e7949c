"""Usage: each committed job counts once, whatever is repeated, fenced, purged or lost on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis

from penstock.config import Settings
from penstock.errors import DeviceQuotaExceeded, StorageQuotaExceeded
from penstock.jobs import Artifact, Claim, JobKey, State, Submission, Usage
from penstock.storage.journal import journal, usage_ledger
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records, upkeep, usage
from penstock.storage.redis.records import Command, JobStore, Outcome, QueueLimits, Quotas
from penstock.storage.redis.usage import UsageRow
from penstock.workers.keeper.purge import purge
from penstock.workers.keeper.recovery import recover, recover_if_lost
from penstock.workers.keeper.retention import TOMBSTONES_S, delete_leftovers
from tests.support.claims import claim_one
from tests.support.crashes import Crashed
from tests.support.valkey import ValkeyProcess

T = TypeVar("T")
LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)
USED = Usage(1.5, 10, 20, tokens_in=3, tokens_out=4, pixels=5)


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects")


@pytest.fixture
def desk(store: JobStore, objects: LocalStore) -> Journal:
    return Journal(store, objects)


def submit(desk: Journal, job_id: str, *, tenant: str = "t", model: str = "m", limits: QueueLimits = LIMITS) -> JobKey:
    key = JobKey(tenant, job_id)
    desk.run(journal.submit(Submission(key, model=model, queue="q", input={}, fingerprint="f"), limits))
    return key


def claim(desk: Journal) -> Claim:
    return claim_one(desk.store, models=["m", "m2"])


def end(desk: Journal, job_id: str, *, state: State = State.SUCCEEDED, used: Usage = USED, **given: Any) -> JobKey:
    key = submit(desk, job_id, **given)
    desk.run(journal.complete(claim(desk), Outcome(state, usage=used)))
    return key


def rows(desk: Journal, tenant: str | None = None) -> tuple[UsageRow, ...]:
    today = usage.day_at(time.time())
    names = desk.store.run(usage.days_with_usage(tenant, today - timedelta(days=1), today))
    return tuple(row for some in usage.chunks(names) for row in desk.store.run(usage.usage_of(some)))


def sums(desk: Journal) -> list[tuple[str, str, dict[str, int]]]:
    return sorted((row.tenant, row.model, dict(row.sums)) for row in rows(desk))


ONE = {"device_us": 1_500_000, "bytes_in": 10, "bytes_out": 20, "tokens_in": 3, "tokens_out": 4, "pixels": 5}


def times(n: int, **jobs: int) -> dict[str, int]:
    return {name: value * n for name, value in ONE.items()} | jobs


@pytest.mark.parametrize("durable", [True, False])
def test_jobs_count_by_tenant_model_and_end(desk: Journal, durable: bool) -> None:
    limits = QueueLimits(100, 50, 3600, 3, durable=durable)
    for n in range(3):
        end(desk, f"a{n}", limits=limits)
    end(desk, "b", model="m2", state=State.FAILED, used=Usage(0.25), limits=limits)
    end(desk, "c", tenant="u", limits=limits)
    desk.run(journal.cancel(submit(desk, "d", limits=limits)))
    assert sums(desk) == [
        ("t", "m", times(3, succeeded=3, canceled=1)), ("t", "m2", {"failed": 1, "device_us": 250_000}),
        ("u", "m", times(1, succeeded=1)),
    ]  # fmt: skip
    assert {row.model for row in rows(desk, "u")} == {"m"}
    assert rows(desk, "u")[0].jobs == {"canceled": 0, "expired": 0, "failed": 0, "succeeded": 1}


def test_an_attempt_that_is_repeated_or_fenced_does_not_count(desk: Journal) -> None:
    submit(desk, "a")
    held = claim(desk)
    desk.run(journal.complete(held, Outcome(State.DELAYED, usage=USED)))  # counts with the job's end
    assert sums(desk) == []
    while desk.store.run(records.read(held.key)).state is not State.QUEUED:
        desk.store.run(records.sweep())
    again = claim(desk)
    assert desk.run(journal.complete(held, Outcome(State.SUCCEEDED, usage=USED))).answer == "fenced"
    for _ in range(2):
        desk.run(journal.complete(again, Outcome(State.SUCCEEDED, usage=USED)))
    assert sums(desk) == [("t", "m", times(2, succeeded=1))]


def test_jobs_that_are_created_again_count_once(desk: Journal, store: JobStore) -> None:
    end(desk, "a")
    before = sums(desk)
    store.client.flushall()
    for _ in range(2):
        recover_if_lost(store, desk.objects)
        recover(store, desk.objects)
        assert sums(desk) == before


class Mortal:
    """Counts down the moves of a process in both stores, and ends it."""

    def __init__(self, moves: int) -> None:
        self.left = moves

    def move(self) -> None:
        if self.left == 0:
            raise Crashed
        self.left -= 1


class MortalStore:
    def __init__(self, store: JobStore, mortal: Mortal) -> None:
        self._store, self._mortal = store, mortal

    def run(self, command: Command[T]) -> T:
        self._mortal.move()
        return self._store.run(command)


class MortalObjects(LocalStore):
    def __init__(self, root: Path, mortal: Mortal) -> None:
        super().__init__(root)
        self._mortal = mortal

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        self._mortal.move()
        return super().put_bytes(key, data, content_type=content_type, if_absent=if_absent)

    def delete_many(self, keys: Sequence[str]) -> None:
        self._mortal.move()
        super().delete_many(keys)


@pytest.mark.parametrize("moves", range(10))
@pytest.mark.parametrize("flushed", [True, False])
def test_the_sums_survive_a_purge_that_ends_anywhere_and_the_loss_of_redis(
    desk: Journal, store: JobStore, tmp_path: Path, moves: int, flushed: bool
) -> None:
    keys = [end(desk, name) for name in ("a", "b")]
    end(desk, "c", tenant="u")
    end(desk, "kept")
    before = sums(desk)
    store.run(upkeep.recovering("x", begin=True))
    store.run(upkeep.recovering("x", begin=False))
    mortal = Mortal(moves)
    try:
        purge(MortalStore(store, mortal), MortalObjects(tmp_path / "objects", mortal), [*keys, JobKey("u", "c")])
    except Crashed:
        assert moves < 9
    for _ in range(2):
        if flushed:
            store.client.flushall()
            recover_if_lost(store, desk.objects)
            assert sums(desk) == before
        purge(store, desk.objects, keys)  # what is left of it
        assert sums(desk) == before
        compacted = usage_ledger.compact(store, desk.objects, "t", first_day=date(2026, 1, 1))
        assert sums(desk) == before
        recover(store, desk.objects)
        assert sums(desk) == before
        flushed = True
    assert not compacted  # the second time there is nothing to do


@pytest.mark.parametrize("moves", range(14))
def test_stored_sums_are_replaced_in_any_number_of_moves(
    desk: Journal, store: JobStore, tmp_path: Path, moves: int
) -> None:
    store.run(upkeep.recovering("x", begin=True))
    store.run(upkeep.recovering("x", begin=False))
    first_day = date(2026, 1, 1)
    for n in range(3):
        purge(store, desk.objects, [end(desk, f"a{n}")])
        if n == 0:
            assert usage_ledger.compact(store, desk.objects, "t", first_day=first_day)
    before, mortal = sums(desk), Mortal(moves)
    try:
        mortal_objects = MortalObjects(tmp_path / "objects", mortal)
        usage_ledger.compact(MortalStore(store, mortal), mortal_objects, "t", first_day=first_day)
    except Crashed:
        assert moves < 13
    for _ in range(2):
        recover(store, desk.objects)
        assert sums(desk) == before
        usage_ledger.compact(store, desk.objects, "t", first_day=first_day)
        store.client.flushall()
        recover_if_lost(store, desk.objects)
        assert sums(desk) == before
    assert [info.key for info in desk.objects.list("tenants/t/usage/")] == ["tenants/t/usage/sums/00000002.json"]


def test_old_days_are_deleted_in_both_stores(desk: Journal, store: JobStore) -> None:
    store.run(upkeep.recovering("x", begin=True))
    store.run(upkeep.recovering("x", begin=False))
    purge(store, desk.objects, [end(desk, "a")])
    today = usage.day_at(time.time())
    assert store.run(usage.trim(today)) == 0
    assert store.run(usage.trim(today + timedelta(days=2))) == 1
    assert sums(desk) == []
    assert usage_ledger.compact(store, desk.objects, "t", first_day=today + timedelta(days=2))
    store.client.flushall()
    recover_if_lost(store, desk.objects)
    assert sums(desk) == []


def test_a_tenant_at_its_device_seconds_of_a_day_is_refused_until_the_days_end(desk: Journal) -> None:
    limits = QueueLimits(100, 50, 3600, 3, durable=True, tenant_quotas={"t": Quotas(device_s_per_day=2.9)})
    end(desk, "a", limits=limits)
    end(desk, "b", limits=limits)
    with pytest.raises(DeviceQuotaExceeded, match=r"3\.0 device seconds") as refusal:
        submit(desk, "c", limits=limits)
    midnight_s = 86_400 - time.time() % 86_400
    assert abs((refusal.value.retry_after_s or 0) - midnight_s) < 5
    submit(desk, "a", limits=limits)  # was accepted before
    submit(desk, "c", tenant="u", limits=limits)


def test_a_tenant_that_keeps_enough_is_refused_until_it_deletes(desk: Journal, store: JobStore) -> None:
    limits = QueueLimits(100, 50, 3600, 3, durable=True, quotas=Quotas(kept_bytes=1000))
    store.run(usage.note_kept("t", 985))
    key = end(desk, "a", limits=limits)
    assert store.run(usage.quota_state("t")).kept_bytes == 1005
    with pytest.raises(StorageQuotaExceeded, match="1005 bytes"):
        submit(desk, "b", limits=limits)
    purge(store, desk.objects, [key])
    submit(desk, "b", limits=limits)
    assert store.run(usage.keep_upload("t", "up", 100, 1000)) == 985
    assert store.run(usage.keep_upload("t", "up", 15, 1000)) is None
    assert store.run(usage.keep_upload("t", "up", 15, 1000)) is None  # the same one
    assert store.run(usage.quota_state("t")).kept_bytes == 1000


def test_what_is_counted_as_kept_expires_without_a_keeper(desk: Journal, store: JobStore) -> None:
    end(desk, "a")
    assert store.run(usage.keep_upload("t", "up", 15, 1000)) is None
    for key in ("penstock:tenant:t:kept", "penstock:tenant:t:kept:uploads"):
        assert 0 < store.client.ttl(key) <= 172_800
        store.client.expire(key, 1000)
    end(desk, "b")
    assert store.run(usage.keep_upload("t", "up2", 15, 1000)) is None
    for key in ("penstock:tenant:t:kept", "penstock:tenant:t:kept:uploads"):
        assert store.client.ttl(key) <= 1000  # busy tenants do not put it off


def test_a_tenant_without_objects_is_admitted_after_a_keepers_look(
    desk: Journal, store: JobStore, tmp_path: Path
) -> None:
    limits = QueueLimits(100, 50, 3600, 3, quotas=Quotas(kept_bytes=1000))
    assert store.run(usage.keep_upload("t", "up", 1000, 1000)) is None  # announced, and never sent
    with pytest.raises(StorageQuotaExceeded, match="delete jobs or batches; uploads go with time"):
        submit(desk, "a", limits=limits)
    delete_leftovers(store, desk.objects, Settings(data=tmp_path))
    assert store.run(usage.quota_state("t")).kept_bytes == 0
    submit(desk, "a", limits=limits)


def test_artifacts_of_a_job_are_counted_once(desk: Journal, store: JobStore) -> None:
    submit(desk, "a")
    artifact = Artifact("x", "k", 7, "text/plain", "0" * 64)
    desk.run(journal.complete(claim(desk), Outcome(State.SUCCEEDED, artifacts=(artifact,), usage=Usage(bytes_out=7))))
    assert store.run(usage.quota_state("t")).kept_bytes == 7


def test_a_keepers_look_notes_what_is_kept_and_compacts_the_stored_sums(
    desk: Journal, store: JobStore, tmp_path: Path
) -> None:
    store.run(upkeep.recovering("x", begin=True))
    store.run(upkeep.recovering("x", begin=False))
    for n in range(3):
        purge(store, desk.objects, [end(desk, f"a{n}")])
    desk.objects.put_bytes("tenants/t/uploads/u/a.tif", b"x" * 1000, content_type="image/tiff")
    before = sums(desk)
    delete_leftovers(store, desk.objects, Settings(data=tmp_path))
    assert len(list(desk.objects.list("tenants/t/usage/steps/"))) == 3  # they keep these jobs from an older Redis
    delete_leftovers(store, desk.objects, Settings(data=tmp_path, retention_s=9e9), at=time.time() + TOMBSTONES_S + 1)
    kept = list(desk.objects.list("tenants/t/"))
    assert [info.key for info in kept] == ["tenants/t/uploads/u/a.tif", "tenants/t/usage/sums/00000001.json"]
    assert store.run(usage.quota_state("t")).kept_bytes >= 1000
    assert sums(desk) == before
    store.client.flushall()
    recover_if_lost(store, desk.objects)
    assert sums(desk) == before


def test_a_redis_with_older_data_counts_no_purged_job_again(
    desk: Journal, store: JobStore, valkey: ValkeyProcess
) -> None:
    store.run(upkeep.recovering("x", begin=True))
    store.run(upkeep.recovering("x", begin=False))
    first_day = date(2026, 1, 1)
    purge(store, desk.objects, [end(desk, "a0")])
    keys = [end(desk, f"b{n}") for n in range(2)]
    before = sums(desk)
    copy = _copy(valkey.url)
    for key in keys:  # each into a sum that the older data does not know
        purge(store, desk.objects, [key])
        assert usage_ledger.compact(store, desk.objects, "t", first_day=first_day)
    _restore(valkey.url, copy)
    for _ in range(2):
        assert sums(desk) == before
        recover(store, desk.objects)
        usage_ledger.compact(store, desk.objects, "t", first_day=first_day)
        assert sums(desk) == before
        purge(store, desk.objects, keys)  # the older data has their records
        usage_ledger.compact(store, desk.objects, "t", first_day=first_day)
    assert sums(desk) == before
    store.client.flushall()
    recover_if_lost(store, desk.objects)
    assert sums(desk) == before


def _copy(url: str) -> dict[bytes, bytes]:
    with Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.keys("*")}


def _restore(url: str, copy: dict[bytes, bytes]) -> None:
    with Redis.from_url(url) as client:
        client.flushall()
        for key, value in copy.items():
            client.restore(key, 0, value)
