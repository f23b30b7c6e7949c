"""A worker that is of no more use says so and ends, so that a fresh one takes its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Canceled, Fenced
from penstock.jobs import Claim, JobKey, Submission
from penstock.storage.redis import queues
from penstock.workers import app
from penstock.workers.app import Worker
from penstock.workers.attempts import Attempt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, slots=1) as bench:
        yield bench


@pytest.fixture
def worker(bench: Bench) -> Iterator[Worker]:
    engine = BatchingEngine(Runners.installed())
    yield Worker(bench.settings, bench.slots, bench.pipeline.heartbeat, engine)
    engine.close()


def attempt() -> Attempt:
    submission = Submission(JobKey("default", "never"), "echo", "default", {}, "f")
    return Attempt(Claim(submission, attempt=1, crashes=0, fence=1, claimed_s=0, lease_s=30))


def test_a_worker_that_polls_is_not_silent(bench: Bench, worker: Worker) -> None:
    before = bench.slots.silent_s()
    bench.slots.work("default")
    assert bench.slots.silent_s() < before + 1
    assert worker.trouble() is None


def test_a_worker_with_a_free_slot_that_does_not_try_to_claim_is_silent(bench: Bench) -> None:
    bench.slots.work("default")
    first = bench.slots.silent_s()
    assert bench.slots.silent_s() > first >= 0
    bench.slots.drain()
    assert bench.slots.silent_s() == 0


def test_a_worker_that_drains_is_no_capacity_any_more(bench: Bench) -> None:
    def workers() -> int:
        return bench.store.run(queues.queue_stats("default")).workers

    bench.slots.start()
    ends = time.monotonic() + 30
    while workers() == 0:
        assert time.monotonic() < ends
    bench.slots.drain()
    bench.slots.join()
    assert workers() == 0


def test_a_long_job_is_no_silence(bench: Bench) -> None:
    bench.submit("a", {"text": bench.upload("hi")})
    bench.gate.shut()
    thread = threading.Thread(target=bench.slots.work, args=("default",))
    thread.start()
    assert bench.gate.entered.wait(30)
    assert bench.slots.silent_s() == 0
    bench.gate.opened.set()
    thread.join(60)


def test_redis_being_away_is_no_silence(bench: Bench, valkey: ValkeyProcess) -> None:
    valkey.kill()
    asked_at = time.monotonic()
    bench.slots.work("default")
    assert bench.slots.silent_s() < time.monotonic() - asked_at
    valkey.restart()


def test_an_attempt_that_ignores_its_loss_is_stuck_and_a_canceled_one_is_not(bench: Bench) -> None:
    heartbeat = bench.pipeline.heartbeat
    canceled, lost = attempt(), attempt()
    canceled.stop(Canceled())
    with heartbeat.watching(canceled):
        assert heartbeat.stuck_s() == 0
    lost.stop(Fenced())
    with heartbeat.watching(lost):
        assert heartbeat.stuck_s() > 0
    assert heartbeat.stuck_s() == 0


def test_trouble_ends_the_process(worker: Worker) -> None:
    told, killed = threading.Event(), threading.Event()
    lost = attempt()
    lost.stop(Fenced())
    lost.stopped_at = time.monotonic() - app.STUCK_S - 1
    with worker.heartbeat.watching(lost):
        assert worker.trouble() == "attempt_stuck"
        worker.watch(end=told.set, kill=killed.set)
    assert told.is_set()
    assert not killed.is_set()


def test_a_worker_whose_machine_stalled_is_of_use(worker: Worker) -> None:
    now = time.monotonic()
    lost = attempt()
    lost.stop(Fenced())
    lost.stopped_at = now - app.STUCK_S - 5
    with worker.heartbeat.watching(lost):
        assert worker.trouble() == "attempt_stuck"
        worker.pauses.tick(now - app.STUCK_S - 5)
        worker.pauses.tick(now)  # the process got no processor time for all of it
        assert worker.trouble() is None


def test_a_device_that_does_not_come_back_is_trouble(bench: Bench) -> None:
    class Stuck(BatchingEngine):
        def stuck_s(self) -> float:
            return app.STUCK_S + 1

    engine = Stuck(Runners.installed())
    assert Worker(bench.settings, bench.slots, bench.pipeline.heartbeat, engine).trouble() == "device_stuck"
    engine.close()
