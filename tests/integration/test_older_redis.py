"""A Redis with older data, from a copy of its log or as a promoted replica: the keeper restores what it lacks."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from penstock.errors import JobGone
from penstock.jobs import Claim, Job, JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess, start_valkey

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)


@dataclass
class Site:
    """A server of its own with a job store and an object store."""

    valkey: ValkeyProcess
    journal: Journal

    def submit(self, name: str) -> Job:
        made = Submission(JobKey("default", name), model="m", queue="q", input={"x": 1}, fingerprint=name)
        return self.journal.run(journal.submit(made, LIMITS)).job

    def claim(self) -> Claim:
        command = records.claim(
            "q", slot="s", nonce=uuid.uuid4().hex, n=1, lease_s=30, max_tenant_running=9, worker="w", models=["m"]
        )
        (claim,) = self.journal.store.run(command)
        return claim

    def complete(self, claim: Claim) -> None:
        self.journal.run(journal.complete(claim, Outcome(State.SUCCEEDED, claim.key.id)))

    def states(self, *names: str) -> list[State]:
        return [self.journal.store.run(records.read(JobKey("default", name))).state for name in names]

    def recover(self) -> None:
        recover_if_lost(self.journal.store, self.journal.objects)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    server = start_valkey(tmp_path / "valkey")
    store = JobStore.open(server.url)
    yield Site(server, Journal(store, LocalStore(tmp_path / "objects")))
    store.close()
    server.stop()


def test_what_a_copy_of_its_log_lacks_is_restored(site: Site, tmp_path: Path) -> None:
    site.recover()
    for name in ("before", "ended since"):
        site.submit(name)
    first = site.claim()
    site.complete(first)
    shutil.copytree(site.valkey.folder / "appendonlydir", tmp_path / "copy")
    site.complete(site.claim())
    for name in ("canceled since", "live since", "deleted since"):
        site.submit(name)
    for name in ("canceled since", "deleted since"):
        site.journal.run(journal.cancel(JobKey("default", name)))
    site.journal.objects.delete_prefix(JobKey("default", "deleted since").prefix)

    site.valkey.stop()
    shutil.rmtree(site.valkey.folder / "appendonlydir")
    shutil.copytree(tmp_path / "copy", site.valkey.folder / "appendonlydir")
    site.valkey.restart()
    assert site.states("before", "ended since") == [State.SUCCEEDED, State.QUEUED]
    site.recover()

    assert site.states("before", "ended since", "canceled since", "live since") == [
        State.SUCCEEDED, State.SUCCEEDED, State.CANCELED, State.QUEUED,
    ]  # fmt: skip
    assert site.claim().key.id == "live since"
    assert not site.journal.run(journal.revive(JobKey("default", "deleted since")))


def test_what_a_promoted_replica_lacks_is_restored(site: Site, tmp_path: Path) -> None:
    site.recover()
    site.submit("copied")
    replica = start_valkey(tmp_path / "replica", replicaof=f"127.0.0.1 {site.valkey.port}")
    with Redis.from_url(replica.url, decode_responses=True) as client:
        wait_for(lambda: client.info("replication")["master_link_status"] == "up", "the replica has no link")
        client.replicaof("NO", "ONE")
    site.submit("not copied")
    promoted = JobStore.open(replica.url)
    try:
        other = Site(replica, Journal(promoted, site.journal.objects))
        assert not promoted.run(records.witness()).compared
        other.recover()
        assert other.states("copied", "not copied") == [State.QUEUED, State.QUEUED]
        assert promoted.run(records.witness()).compared
    finally:
        promoted.close()
        replica.stop()


def test_a_restart_that_lost_nothing_costs_a_look_and_no_change(site: Site) -> None:
    site.recover()
    site.submit("ended")
    site.complete(site.claim())
    site.submit("live")
    before = [site.journal.store.run(records.read(JobKey("default", name))) for name in ("ended", "live")]
    site.valkey.restart()
    assert not site.journal.store.run(records.witness()).compared
    site.recover()
    assert site.journal.store.run(records.witness()).compared
    assert [site.journal.store.run(records.read(JobKey("default", name))) for name in ("ended", "live")] == before


def test_a_purged_job_stays_away(site: Site) -> None:
    site.recover()
    key = site.submit("purged").key
    site.complete(site.claim())
    site.journal.store.run(records.delete(key))
    site.valkey.restart()
    site.recover()
    with pytest.raises(JobGone):
        site.journal.store.run(records.read(key))
