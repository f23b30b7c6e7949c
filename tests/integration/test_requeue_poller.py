"""Lost leases and waiting jobs are found by each worker, without a keeper and without hints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.jobs import JobKey, State
from penstock.storage.redis import records
from penstock.workers.claim_loop import RequeuePoller
from tests.support.claims import claim_one
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, poll_s=600) as bench:
        yield bench


def lose(bench: Bench, key: JobKey, *, lease_s: float) -> None:
    """Have a worker die over a job."""
    claim = claim_one(bench.store, "default", slot="dead", lease_s=lease_s, worker="dead", models=["echo"])
    assert claim.key == key


def test_a_worker_alone_requeues_and_starts_a_job_whose_worker_died(bench: Bench, valkey: ValkeyProcess) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    lose(bench, key, lease_s=1)
    bench.slots.start()
    poller = RequeuePoller(bench.store, bench.settings.queues, bench.slots.notice)
    poller.start()
    try:
        valkey.restart()  # a look fails in between
        wait_for(lambda: bench.store.run(records.read(key)).state is State.SUCCEEDED, "the job never ran again")
    finally:
        poller.close()
        bench.slots.drain()
        bench.slots.join()
    [requeued] = [event for event in bench.store.run(records.events(key)) if event.type == "job.requeued"]
    [_, started] = [event for event in bench.store.run(records.events(key)) if event.type == "job.started"]
    assert requeued.data["reason"] == "lease_lost"
    assert 0 <= requeued.data["late_ms"] <= 2000
    assert started.at_s - requeued.at_s <= 1


@pytest.mark.alone
def test_only_queues_of_the_worker_are_noticed_and_a_busy_worker_claims_nothing_more(bench: Bench) -> None:
    noticed: list[str] = []
    bench.submit("a", {"text": bench.upload("hi")})
    RequeuePoller(bench.store, ("other",), noticed.append).poll()
    assert noticed == []
    RequeuePoller(bench.store, ("default", "other"), noticed.append).poll()
    assert noticed == ["default"]
    begun = time.monotonic()
    bench.slots.drain()
    bench.slots.notice("default")
    assert time.monotonic() - begun < 1
    assert bench.store.run(records.read(JobKey("default", "a"))).state is State.QUEUED
