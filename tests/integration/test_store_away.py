"""An object store that is away while jobs run: results wait in scratch, and nothing is computed twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.jobs import Job, JobKey, State, Status
from penstock.storage.journal import journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.workers.attempts import STORE_AWAY
from penstock.workers.claim_loop import Slots
from penstock.workers.store_waits import StoreWaits
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess


@pytest.fixture(params=["manifest", "redis"])
def bench(valkey: ValkeyProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability=request.param, lease_s=3) as bench:
        yield bench


class Disk:
    """The disk of a bench's object store, which can be taken away and brought back."""

    def __init__(self, bench: Bench) -> None:
        assert isinstance(bench.objects, LocalStore)
        self._root = bench.objects.root
        self._elsewhere = self._root.with_name("elsewhere")

    def remove(self) -> None:
        self._root.rename(self._elsewhere)

    def restore(self) -> None:
        self._elsewhere.rename(self._root)


def read(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def starts(bench: Bench, key: JobKey) -> int:
    return sum(event.type == "job.started" for event in bench.store.run(records.events(key)))


@contextmanager
def working(bench: Bench) -> Iterator[threading.Thread]:
    """Run the jobs of the queue in a slot inside the block, and give its thread."""
    thread = threading.Thread(target=bench.slots.work, args=("default",))
    thread.start()
    try:
        yield thread
    finally:
        bench.gate.opened.set()
        bench.pipeline.heartbeat.drain()
        thread.join(60)


def waiting(bench: Bench, key: JobKey) -> Callable[[], bool]:
    return lambda: read(bench, key).progress.message == STORE_AWAY


def test_a_result_waits_for_the_store_and_is_computed_once(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")}, max_attempts=1)
    other = bench.submit("b", {"text": bench.upload("ho", upload_id="other")})
    disk = Disk(bench)
    bench.gate.shut()
    with working(bench) as worker:
        assert bench.gate.entered.wait(30)
        disk.remove()
        bench.gate.opened.set()
        wait_for(waiting(bench, key), "the job's progress does not say that it waits")
        assert bench.slots.work("default") == 0  # a free slot claims nothing
        assert read(bench, other).state is State.QUEUED
        disk.restore()
        worker.join(60)
        assert not worker.is_alive()
    for done, text in ((key, "hi"), (other, "ho")):
        job = read(bench, done)
        assert (job.state, job.text, job.attempt, job.crashes) == (State.SUCCEEDED, text, 1, 0)
        assert starts(bench, done) == 1
        assert len(bench.artifacts(done)) == 1
    assert bench.scratch() == []


def test_an_outcome_waits_for_the_store(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path) as bench:
        disk = Disk(bench)

        class Leaving(LocalStore):
            """A store that goes away after the artifacts, before the outcome."""

            def put_file(self, key: str, path: Path, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
                info = super().put_file(key, path, content_type=content_type, if_absent=if_absent)
                disk.remove()
                return info

        objects = Leaving(tmp_path / "objects")
        waits = StoreWaits(objects, 3600)
        pipeline = replace(bench.pipeline, objects=objects, waits=waits)
        key = bench.submit("a", {"text": bench.upload("hi")}, max_attempts=1)
        slots = Slots(bench.settings, bench.store, pipeline.served, pipeline.run)
        with working(replace(bench, slots=slots)) as worker:
            wait_for(waiting(bench, key), "the job's progress does not say that it waits")
            assert waits.away()
            restored_s = time.time()
            disk.restore()
            worker.join(60)
        job = read(bench, key)
        assert (job.state, job.attempt, starts(bench, key), len(bench.artifacts(key))) == (State.SUCCEEDED, 1, 1, 1)
        assert job.completed_s is not None
        assert job.completed_s >= restored_s - 0.1


@pytest.mark.breadth(but=("manifest",))
def test_media_that_the_store_holds_are_waited_for(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")}, max_attempts=1)
    disk = Disk(bench)
    disk.remove()
    with working(bench) as worker:
        wait_for(waiting(bench, key), "the attempt does not wait for its media")
        disk.restore()
        worker.join(60)
    assert (read(bench, key).state, read(bench, key).text) == (State.SUCCEEDED, "hi")


@pytest.mark.breadth(but=("manifest",))
def test_the_time_limit_does_not_run_while_the_store_is_away(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")}, max_attempts=1, execution_timeout_s=2)
    disk = Disk(bench)
    disk.remove()
    begun = time.monotonic()
    with working(bench) as worker:
        wait_for(waiting(bench, key), "the attempt does not wait for its media")
        wait_for(lambda: time.monotonic() > begun + 3, "the clock stands")
        bench.store.run(records.sweep(proposals=9))
        assert read(bench, key).state is State.RUNNING
        disk.restore()
        worker.join(60)
    assert (read(bench, key).state, read(bench, key).text) == (State.SUCCEEDED, "hi")


def test_a_canceled_job_waits_no_longer(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, durability="redis") as bench:
        key = bench.submit("a", {"text": bench.upload("hi")})
        disk = Disk(bench)
        disk.remove()
        with working(bench) as worker:
            wait_for(waiting(bench, key), "the attempt does not wait")
            bench.journal.run(journal.cancel(key))
            worker.join(60)
            assert read(bench, key).status is Status.CANCELED
        disk.restore()


def test_a_wait_has_an_end(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, store_wait_s=0.5) as bench:
        key = bench.submit("a", {"text": bench.upload("hi")}, max_attempts=2)
        disk = Disk(bench)
        disk.remove()
        with working(bench) as worker:
            worker.join(60)
            job = read(bench, key)
            assert (job.state, job.attempt) == (State.DELAYED, 1)
            assert job.error is not None
            assert job.error.code == "object_store_unavailable"
            disk.restore()
