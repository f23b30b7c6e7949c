"""Workers that leave by themselves: no job is lost, no attempt is counted, and no job is given back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import Job, JobKey, State, Submission
from penstock.storage.hints import celery_queue
from penstock.storage.journal import journal
from penstock.storage.redis import queues, records, workers
from penstock.storage.redis.catalogues import CHECKING
from penstock.workers.app import Worker
from penstock.workers.claim_loop import Slots
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

ROOT = Path(__file__).parents[2]
END_S = 60


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, poll_s=600, idle_exit_s=0.001) as bench:
        yield bench


def read(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def is_idle(slots: Slots) -> bool:
    """Let the idle time pass, and ask the slots to leave."""
    time.sleep(0.002)
    return slots.leave()


@contextmanager
def worker_process(bench: Bench, folder: Path, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker of the model `chaos`, whose log is `log` in the folder."""
    folder.mkdir(exist_ok=True)
    names = {"data": folder, "redis_url": bench.settings.redis_url, "secret": "s", "poll_s": 0.1, **settings}
    names["object_store"] = bench.settings.store_url
    environment = {**os.environ, **{f"PENSTOCK_{name.upper()}": str(value) for name, value in names.items()}}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker_main"], env=environment, cwd=ROOT, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def events_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the log's records by event."""
    lines = [line for line in (folder / "log").read_text().splitlines() if line.startswith("{")]
    return {record["event"]: record for record in map(json.loads, lines)}


def draining(bench: Bench) -> bool:
    """Return True if the one living worker drains, and still runs a job."""
    return [(live.running, live.state.draining) for live in bench.store.run(workers.living())] == [(1, True)]


def submit(bench: Bench, job_id: str, **input: Any) -> JobKey:  # noqa: A002
    key = JobKey("default", job_id)
    given = {"text": job_id, **input}
    bench.journal.run(journal.submit(Submission(key, "chaos", "default", given, job_id, max_attempts=1), bench.limits))
    return key


def test_an_idle_worker_exits_with_zero_after_its_jobs_and_says_why(bench: Bench, tmp_path: Path) -> None:
    keys = [submit(bench, f"j{number}", takes_s=0.3) for number in range(3)]
    with worker_process(bench, tmp_path / "w", idle_exit_s=1) as worker:
        assert worker.wait(END_S) == 0
    assert [read(bench, key).state for key in keys] == [State.SUCCEEDED] * 3
    idle = events_in(tmp_path / "w")["worker.idle"]
    assert idle["jobs"] == 3
    assert idle["idle_s"] >= 1
    assert bench.store.run(workers.living()) == ()
    assert bench.store.run(queues.queue_stats("default")).workers == 0


def test_a_worker_claims_its_jobs_runs_them_to_their_end_and_leaves_the_others(bench: Bench, tmp_path: Path) -> None:
    keys = [submit(bench, f"j{number}", takes_s=0.5) for number in range(5)]
    with worker_process(bench, tmp_path / "w", max_worker_jobs=3, slots=2, drain_s=0) as worker:
        assert worker.wait(END_S) == 0
    jobs = [read(bench, key) for key in keys]
    assert sorted((job.state.value, job.attempt) for job in jobs) == [("queued", 0)] * 2 + [("succeeded", 1)] * 3
    assert events_in(tmp_path / "w")["worker.max_jobs"]["jobs"] == 3
    assert bench.store.client.exists(celery_queue("default")) == 1  # a hint for others


@pytest.mark.breadth
def test_a_worker_at_its_limit_leaves_hints_to_others(bench: Bench, tmp_path: Path) -> None:
    def consumers() -> int:
        return sum(client["cmd"] == "brpop" for client in bench.store.client.client_list())

    submit(bench, "long", takes_s=60)
    with worker_process(bench, tmp_path / "w", max_worker_jobs=1) as worker:
        wait_for(lambda: draining(bench), "it does not reach its limit")
        wait_for(lambda: consumers() == 0, "it consumes hints beside its last job", timeout_s=20)
        assert worker.poll() is None
        assert draining(bench)


@pytest.mark.breadth
def test_a_leaving_worker_gives_its_jobs_back_at_a_sigterm(bench: Bench, tmp_path: Path) -> None:
    key = submit(bench, "long", takes_s=20)
    with worker_process(bench, tmp_path / "w", max_worker_jobs=1, drain_s=0) as worker:
        wait_for(lambda: "worker.max_jobs" in events_in(tmp_path / "w"), "it does not leave")
        wait_for(lambda: draining(bench), "it does not report that it drains")
        worker.send_signal(signal.SIGTERM)
        worker.wait(END_S)
    job = read(bench, key)
    assert (job.state, job.attempt, job.crashes) == (State.QUEUED, 1, 0)


def test_a_job_that_arrives_while_the_worker_leaves_stays_in_the_queue_with_a_hint(bench: Bench) -> None:
    hinted: list[str] = []
    slots = Slots(bench.settings, bench.store, bench.pipeline.served, bench.pipeline.run, hint=hinted.append)
    slots.start()
    wait_for(lambda: is_idle(slots), "it never leaves")
    key = bench.submit("late", {"text": bench.upload("hi")})
    assert slots.work("default") == 0
    slots.join()
    job = read(bench, key)
    assert (job.state, job.attempt, hinted) == (State.QUEUED, 0, ["default"])


def test_a_worker_that_claims_is_not_idle_before_the_claim_is_answered(bench: Bench, valkey: ValkeyProcess) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    bench.gate.shut()
    with valkey.hanging():
        claiming = threading.Thread(target=bench.slots.work, args=("default",))
        claiming.start()
        wait_for(bench.slots._claiming.locked, "it does not claim")
        answers: list[bool] = []
        leaving = threading.Thread(target=lambda: answers.append(is_idle(bench.slots)))
        leaving.start()
    leaving.join(30)
    assert answers == [False]
    bench.gate.opened.set()
    claiming.join(30)
    assert read(bench, key).state is State.SUCCEEDED


def test_a_sigterm_does_not_wait_for_a_claim_that_hangs(bench: Bench, valkey: ValkeyProcess) -> None:
    worker = Worker(bench.settings, bench.slots, bench.pipeline.heartbeat, bench.pipeline.engine)
    terminated = iter([False, True])  # the SIGTERM arrives while the worker wants to leave
    hangs: list[bool] = []
    try:
        with valkey.hanging():
            claiming = threading.Thread(target=bench.slots.work, args=("default",))
            claiming.start()
            wait_for(bench.slots._claiming.locked, "it does not claim")
            worker.drain_when(lambda: next(terminated), stop=lambda: hangs.append(bench.slots._claiming.locked()))
    finally:
        worker.ended.set()
    assert hangs == [True]
    claiming.join(30)


def test_a_worker_that_prepares_models_is_not_idle(bench: Bench) -> None:
    served = bench.pipeline.served
    served.update("echo", ready=False)
    assert not is_idle(bench.slots)  # its warm-up has not ended
    served.update("echo", problem=CHECKING)
    assert not is_idle(bench.slots)
    served.update("echo", problem="its files are missing")
    assert is_idle(bench.slots)


def test_a_worker_that_fetches_a_model_stays_and_is_idle_from_the_time_that_it_is_ready(bench: Bench) -> None:
    served, settings = bench.pipeline.served, bench.settings.model_copy(update={"idle_exit_s": 600})
    served.update("echo", problem="its files could not be fetched")
    slots = Slots(settings, bench.store, served, bench.pipeline.run)
    slots._busy_s -= 600
    with served.fetch():
        assert not slots.leave()
        served.update("echo", problem=None, ready=True)
    assert not slots.leave()
    slots._busy_s -= 600
    assert slots.leave()


def test_a_worker_whose_stores_do_not_answer_is_not_idle(bench: Bench, valkey: ValkeyProcess) -> None:
    away = True
    served = bench.pipeline.served
    slots = Slots(bench.settings, bench.store, served, bench.pipeline.run, store_away=lambda: away)
    assert not is_idle(slots)
    away = False
    valkey.stop()
    try:
        claimed_s = slots._busy_s
        slots.work("default")
        assert slots._busy_s > claimed_s
    finally:
        valkey.restart()
    assert is_idle(slots)
