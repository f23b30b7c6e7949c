"""Recovery: what an emptied Redis, or one with older data, must not do again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import JobGone
from penstock.jobs import Claim, JobKey, Phase, Progress, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.purge import purge, retire
from penstock.workers.keeper.recovery import recover_if_lost
from tests.support.claims import claim_up_to
from tests.support.valkey import ValkeyProcess, start_valkey

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyProcess]:
    server = start_valkey(tmp_path / "valkey")
    yield server
    server.kill()


@pytest.fixture
def desk(own: ValkeyProcess, tmp_path: Path) -> Iterator[Journal]:
    """Return the two stores, which a keeper has compared."""
    store, objects = JobStore.open(own.url), LocalStore(tmp_path / "objects")
    recover_if_lost(store, objects)
    yield Journal(store, objects)
    store.close()


def submit(desk: Journal, job_id: str, **given: Any) -> JobKey:
    key = JobKey("t", job_id)
    desk.run(journal.submit(Submission(key, "m", "q", {}, "f", **given), LIMITS))
    return key


def claim(desk: Journal, n: int = 1) -> list[Claim]:
    return claim_up_to(desk.store, n)


def test_an_older_redis_runs_no_job_that_was_purged_meanwhile(
    own: ValkeyProcess, desk: Journal, tmp_path: Path
) -> None:
    store, log, copy = desk.store, own.folder / "appendonlydir", tmp_path / "copy"
    ended = submit(desk, "ended")
    desk.run(journal.complete(claim(desk)[0], Outcome(State.SUCCEEDED)))
    running, waiting, kept = submit(desk, "running"), submit(desk, "waiting"), submit(desk, "kept")
    held = {each.key: each for each in claim(desk)}
    shutil.copytree(log, copy)  # every answered write is in it

    held |= {each.key: each for each in claim(desk, 2)}
    for key in (running, waiting):
        desk.run(journal.complete(held[key], Outcome(State.SUCCEEDED)))
    assert purge(store, desk.objects, [ended, running, waiting]) == ()
    own.kill()
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    own.restart()

    [again] = claim(desk)  # a worker is faster than the keeper
    assert again.key in (waiting, kept)
    recover_if_lost(store, desk.objects)
    retire(store, desk.objects)
    for key in (ended, running, waiting):
        with pytest.raises(JobGone):
            desk.run(journal.read(key))
    assert store.run(records.heartbeat(held[running], Phase.INFERRING, Progress())) == "lost"
    assert desk.run(journal.read(kept)).state in (State.QUEUED, State.RUNNING)
    assert {each.key for each in [again, *claim(desk, 5)]} >= {kept}
    assert [info.key for info in desk.objects.list("tenants/t/jobs/") if "/kept/" not in info.key] == []
