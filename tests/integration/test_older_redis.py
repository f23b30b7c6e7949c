"""A Redis with older data, from a copy of its log or as a promoted replica: the keeper restores what it lacks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from penstock.errors import JobGone
from penstock.jobs import Claim, Job, JobKey, QueueMode, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.manifests import put_cancel
from penstock.storage.journal.queue_modes import read_modes, set_mode, store_modes
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import queues, records, upkeep
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.purge import purge
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.claims import claim_one
from tests.support.echo_processor import Bench, open_bench
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
        return claim_one(self.journal.store)

    def complete(self, claim: Claim) -> None:
        self.journal.run(journal.complete(claim, Outcome(State.SUCCEEDED, claim.key.id)))

    def states(self, *names: str) -> list[State]:
        return [self.journal.store.run(records.read(JobKey("default", name))).state for name in names]

    def recover(self) -> None:
        recover_if_lost(self.journal.store, self.journal.objects)

    def copy_log(self) -> Path:
        """Copy the server's log and return the copy."""
        return Path(shutil.copytree(self._log, self.valkey.folder / "copy"))

    def put_back(self, copy: Path) -> None:
        """Start the server anew with a copy of its log."""
        self.valkey.stop()
        shutil.rmtree(self._log)
        shutil.copytree(copy, self._log)
        self.valkey.restart()

    @property
    def _log(self) -> Path:
        return self.valkey.folder / "appendonlydir"

    def modes(self, *names: str) -> list[QueueMode]:
        return [self.journal.store.run(queues.queue_stats(name)).mode for name in names]


@pytest.fixture
def bench(site: Site, tmp_path: Path) -> Iterator[Bench]:
    """Return a worker on both stores, which a keeper has compared."""
    site.recover()
    with open_bench(site.valkey.url, tmp_path) as bench:
        yield bench


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    server = start_valkey(tmp_path / "valkey")
    store = JobStore.open(server.url)
    yield Site(server, Journal(store, LocalStore(tmp_path / "objects")))
    store.close()
    server.stop()


def test_what_a_copy_of_its_log_lacks_is_restored(site: Site) -> None:
    site.recover()
    for name in ("before", "ended since"):
        site.submit(name)
    first = site.claim()
    site.complete(first)
    copy = site.copy_log()
    site.complete(site.claim())
    for name in ("canceled since", "live since", "deleted since"):
        site.submit(name)
    for name in ("canceled since", "deleted since"):
        site.journal.run(journal.cancel(JobKey("default", name)))
    site.journal.objects.delete_prefix(JobKey("default", "deleted since").prefix)

    site.put_back(copy)
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
        assert not promoted.run(upkeep.witness()).compared
        other.recover()
        assert other.states("copied", "not copied") == [State.QUEUED, State.QUEUED]
        assert promoted.run(upkeep.witness()).compared
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
    assert not site.journal.store.run(upkeep.witness()).compared
    site.recover()
    assert site.journal.store.run(upkeep.witness()).compared
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


def test_before_the_comparison_no_job_runs_that_has_ended_or_was_deleted(site: Site, bench: Bench) -> None:
    ended, deleted, canceled = (
        bench.submit(name, {"text": bench.upload("hi")}) for name in ("ended", "deleted", "canceled")
    )
    copy = site.copy_log()
    assert bench.slots.work("default") == 3
    purge(bench.store, bench.objects, [deleted])
    before = bench.store.run(records.read(ended))
    bench.objects.delete(f"{canceled.prefix}outcome.json")  # an attempt that had not ended when its end was requested
    put_cancel(bench.objects, canceled, delete=False)

    site.put_back(copy)
    assert site.states("ended", "deleted", "canceled") == [State.QUEUED] * 3
    bench.gate.entered.clear()
    assert bench.slots.work("default") == 3
    assert not bench.gate.entered.is_set()  # nothing was computed
    after = bench.store.run(records.read(ended))
    assert (after.state, after.artifacts) == (State.SUCCEEDED, before.artifacts)
    assert bench.artifacts(ended) == [artifact.key for artifact in before.artifacts]
    assert bench.store.run(records.read(canceled)).state is State.CANCELED
    with pytest.raises(JobGone):
        bench.store.run(records.read(deleted))
    assert bench.keys(deleted.prefix) == []


@pytest.mark.parametrize("durability", ["manifest", "redis"])
def test_after_a_restart_that_lost_nothing_jobs_run_before_the_comparison(
    site: Site, tmp_path: Path, durability: str
) -> None:
    site.recover()
    with open_bench(site.valkey.url, tmp_path, durability=durability) as bench:
        bench.submit("live", {"text": bench.upload("hi")})
        site.valkey.restart()
        assert not bench.store.run(upkeep.witness()).compared
        assert bench.slots.work("default") == 1
        assert site.states("live") == [State.SUCCEEDED]


def test_queues_get_the_modes_that_a_copy_of_the_log_lacks(site: Site) -> None:
    site.recover()
    for name, mode in (("resumed", QueueMode.PAUSED), ("paused", QueueMode.OPEN), ("same", QueueMode.DRAINING)):
        site.journal.run(set_mode(name, mode))
    copy = site.copy_log()
    site.journal.run(set_mode("resumed", QueueMode.OPEN))
    site.journal.run(set_mode("paused", QueueMode.PAUSED))

    site.put_back(copy)
    assert site.modes("resumed", "paused") == [QueueMode.PAUSED, QueueMode.OPEN]
    assert not store_modes(site.journal.store, site.journal.objects)
    assert read_modes(site.journal.objects) == {"paused": "paused", "same": "draining"}
    site.recover()
    assert site.modes("resumed", "paused", "same") == [QueueMode.OPEN, QueueMode.PAUSED, QueueMode.DRAINING]
    assert not store_modes(site.journal.store, site.journal.objects)


def test_a_change_of_a_mode_before_the_comparison_keeps_the_stored_modes(site: Site) -> None:
    site.recover()
    copy = site.copy_log()
    site.journal.run(set_mode("paused", QueueMode.PAUSED))
    site.put_back(copy)
    site.journal.run(set_mode("other", QueueMode.DRAINING))
    assert read_modes(site.journal.objects) == {"paused": "paused", "other": "draining"}
    site.recover()
    assert site.modes("paused", "other") == [QueueMode.PAUSED, QueueMode.DRAINING]


def test_before_the_comparison_no_job_of_a_queue_runs_that_was_paused(site: Site, bench: Bench) -> None:
    bench.submit("waits", {"text": bench.upload("hi")})
    copy = site.copy_log()
    site.journal.run(set_mode("default", QueueMode.PAUSED))
    site.put_back(copy)
    bench.slots.work("default")
    assert not bench.gate.entered.is_set()
    job = bench.store.run(records.read(JobKey("default", "waits")))
    assert (job.state, site.modes("default")) == (State.QUEUED, [QueueMode.PAUSED])
    site.journal.run(set_mode("default", QueueMode.OPEN))
    assert bench.slots.work("default") == 1
    assert site.states("waits") == [State.SUCCEEDED]
