"""Drivers on a real Valkey: they start what is missing, together and once, and say why workers end."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.cli.doctor import _processes
from penstock.config import Settings
from penstock.errors import JobStoreError, ObjectStoreUnavailable
from penstock.jobs import JobKey, Submission
from penstock.models import CatalogueEntry
from penstock.scaling import ScalingBounds
from penstock.storage.redis import catalogues, queues, records
from penstock.storage.redis.fleet import fleet, forget_start, pools, start_workers
from penstock.storage.redis.records import JobStore, QueueLimits
from penstock.storage.redis.scripts import Command, Runs
from penstock.up.children import RECORD, WELL_AFTER_S, Child, Ledger, Supervisor, failing
from penstock.up.driver import STANDBY_AFTER_S, Driver
from penstock.up.processes import KeptProcess
from penstock.up.scaling import Range
from penstock.up.supervisor import REDIS_S, impatient_store
from tests.support.claims import claim_one
from tests.support.polling import wait_for
from tests.support.service import ECHO
from tests.support.valkey import ValkeyProcess

LIMITS = QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3)
QUEUES = ("default",)
T = TypeVar("T")


class Process(KeptProcess):
    """A process that lives until the test ends it."""

    stop_s, code, failures = 1.0, 0, 0

    def __init__(self, folder: Path, number: int, worker_id: str) -> None:
        self.name, self.log, self.worker_id, self.lives = f"worker-{number}", folder / f"{number}.log", worker_id, False

    def start(self) -> None:
        self.lives = True

    def alive(self) -> bool:
        return self.lives

    def exit_code(self) -> int | None:
        return self.code

    def note_failures(self, failures: int, why: str) -> None:  # noqa: ARG002  (the interface has it)
        self.failures = failures


class Machine:
    """A driver with processes that do nothing."""

    def __init__(
        self, store: Runs, folder: Path, workers: Range, *, standby: Process | None = None, **settings: object
    ) -> None:
        self.now, self.said, self.started = 1000.0, list[str](), list[Process]()
        self.settings = Settings(**{"data": folder, "slots": 1, "idle_exit_s": 5, **settings})  # type: ignore[arg-type]
        say = self.hear

        def worker(number: int, worker_id: str, _: float) -> Process:
            self.started.append(Process(folder, number, worker_id))
            return self.started[-1]

        supervisor = Supervisor(say, clock=lambda: self.now)
        self.driver = Driver(self.settings, store, supervisor, say, workers, worker, standby, clock=lambda: self.now)

    def hear(self, who: str, what: str) -> None:
        self.said.append(f"{who}: {what}")

    def pass_time(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.driver.tick()


def submit(store: JobStore, *ids: str, queue: str = "default") -> None:
    for job_id in ids:
        store.run(records.submit(Submission(JobKey("default", job_id), "echo", queue, {}, job_id), LIMITS))


def publish(store: JobStore, entry: CatalogueEntry = ECHO) -> None:
    store.run(catalogues.publish([entry], worker="earlier", queues=QUEUES, alive_s=600))


def report(store: JobStore, worker: str, queue: str = "default") -> None:
    store.run(queues.seen(queue, worker, 1, alive_s=60))


def claim(store: JobStore, worker: str, slot: str) -> None:
    claim_one(store, "default", slot=slot, worker=worker, models=["echo"])


def test_workers_start_when_jobs_want_them_and_never_more(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    machine = Machine(store, tmp_path, Range(0, 3))
    machine.pass_time()
    assert machine.started == []
    submit(store, "a", "b")
    machine.pass_time()
    machine.pass_time()
    assert [process.name for process in machine.started] == ["worker-1", "worker-2"]
    for process in machine.started:
        report(store, process.worker_id)
    assert store.run(fleet(QUEUES)).together.starting == 0
    submit(store, "c", "d", "e")
    machine.pass_time()
    machine.pass_time()
    assert len(machine.started) == 3


def test_a_first_worker_starts_to_publish_the_models(store: JobStore, tmp_path: Path) -> None:
    machine = Machine(store, tmp_path, Range(0, 3))
    machine.pass_time()
    machine.pass_time()
    assert len(machine.started) == 1


@pytest.mark.parametrize("away", [False, True])
def test_no_worker_starts_to_publish_models_that_the_object_store_has(
    store: JobStore, tmp_path: Path, away: bool
) -> None:
    """An emptied Redis knows no model; the object store does, or nobody knows while it is away."""

    def accepts() -> bool:
        if away:
            raise ObjectStoreUnavailable
        return True

    machine = Machine(store, tmp_path, Range(0, 3))
    machine.driver.accepts = accepts
    machine.pass_time()
    assert machine.started == []
    submit(store, "a")
    machine.pass_time()
    assert len(machine.started) == 1


@pytest.mark.alone
@pytest.mark.breadth
def test_a_redis_that_hangs_stops_the_supervisor_for_about_a_second(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        store = impatient_store(Settings(data=tmp_path, redis_url=url))
        machine = Machine(store, tmp_path, Range(0, 3))
        begun_s = time.monotonic()
        machine.pass_time()
        assert time.monotonic() - begun_s < 2 * REDIS_S
        store.close()


def test_workers_that_always_run_come_first(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    machine = Machine(store, tmp_path, Range(1, 3))
    submit(store, "a", "b", "c")
    machine.pass_time()
    assert machine.started == []
    report(store, "kept")
    machine.pass_time()
    assert [process.name for process in machine.started] == ["worker-2", "worker-3"]


class Standby(Process):
    """A standby that counts its starts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0, "")
        self.name, self.starts = "standby", 0

    def start(self) -> None:
        super().start()
        self.starts += 1

    def end(self, code: int | None) -> None:
        """End, with None as if its process were a worker now."""
        self.lives, self.code = False, code  # type: ignore[assignment]


def test_the_next_standby_starts_some_time_after_a_worker(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    standby = Standby(tmp_path)
    machine = Machine(store, tmp_path, Range(0, 2), standby=standby)
    machine.pass_time(1)
    assert standby.starts == 0
    machine.pass_time(STANDBY_AFTER_S)
    assert standby.starts == 1
    assert store.run(fleet(QUEUES)).together.claiming == 0
    submit(store, "a")
    machine.pass_time()
    standby.end(None)
    machine.pass_time(1)
    machine.pass_time(STANDBY_AFTER_S - 1)
    assert (len(machine.started), standby.starts) == (1, 1)
    machine.pass_time()
    assert standby.starts == 2
    assert not [said for said in machine.said if said.startswith("standby")]


def test_a_standby_that_keeps_ending_starts_ever_later(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    standby = Standby(tmp_path)
    machine = Machine(store, tmp_path, Range(0, 2), standby=standby)
    machine.pass_time(STANDBY_AFTER_S)
    for failures, pause_s in enumerate((0.5, 1.0, 2.0), start=1):
        assert standby.starts == failures
        standby.end(-9)
        machine.pass_time(0.01)
        assert standby.failures == failures
        machine.pass_time(pause_s - 0.1)
        assert standby.starts == failures
        machine.pass_time(0.1)
    assert standby.starts == 4
    submit(store, "a")
    machine.pass_time()
    assert len(machine.started) == 1  # workers do not wait for it


def test_no_standby_starts_where_no_further_worker_may_run(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    standby = Standby(tmp_path)
    machine = Machine(store, tmp_path, Range(0, 1), standby=standby)
    submit(store, "a")
    for _ in range(3):
        machine.pass_time(STANDBY_AFTER_S)
    assert (len(machine.started), standby.starts) == (1, 0)
    worker = machine.started[0]
    report(store, worker.worker_id)
    claim(store, worker.worker_id, "slot")  # no job waits
    worker.lives, worker.code = False, 0
    machine.pass_time()
    assert (len(machine.started), standby.starts) == (1, 1)


def test_two_machines_start_workers_for_one_need_once(valkey: ValkeyProcess, store: JobStore, tmp_path: Path) -> None:
    other = JobStore.open(valkey.url)
    publish(store)
    machines = [Machine(store, tmp_path / "a", Range(0, 2)), Machine(other, tmp_path / "b", Range(0, 2))]
    submit(store, "a", "b", "c")
    for _ in range(3):
        for machine in machines:
            machine.pass_time()
    assert sorted(len(machine.started) for machine in machines) == [1, 2]
    other.close()


def test_a_worker_of_another_queue_is_of_no_use_to_this_one(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    report(store, "elsewhere", "cpu")
    machine = Machine(store, tmp_path, Range(0, 1), queues=["cpu", "gpu"])
    submit(store, "a", queue="gpu")
    machine.pass_time()
    assert len(machine.started) == 1


def test_a_worker_that_is_busy_in_one_queue_is_of_no_use_to_another(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    machine = Machine(store, tmp_path, Range(0, 4), queues=["cpu", "gpu"])
    submit(store, "a", queue="cpu")
    submit(store, "b", queue="gpu")
    machine.pass_time()
    machine.pass_time()
    assert len(machine.started) == 2


def test_the_jobs_of_a_draining_worker_are_no_work_for_others(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    submit(store, "a", "b", "c", "d")
    claim(store, "draining", "s1")
    claim(store, "claiming", "s2")
    claim(store, "claiming", "s3")
    store.client.zadd("penstock:workers:seen", {"draining": 1e17, "claiming": 1e17})
    report(store, "claiming")
    machine = Machine(store, tmp_path, Range(0, 2), slots=2)
    machine.pass_time()
    assert len(machine.started) == 1  # for the fourth job
    machine.pass_time()
    assert len(machine.started) == 1


def test_of_two_starts_for_the_same_look_one_is_refused_and_a_repeated_one_is_not(store: JobStore) -> None:
    seen = store.run(fleet(QUEUES))
    start = start_workers(QUEUES, ["a", "b"], after=seen.starts, alive_s=60)
    assert store.run(start)
    assert store.run(start)  # its answer was lost
    assert not store.run(start_workers(QUEUES, ["c"], after=seen.starts, alive_s=60))
    now = store.run(fleet(QUEUES))
    assert (now.together.starting, now.together.claiming) == (2, 0)
    report(store, "a")
    store.run(forget_start(QUEUES, "b"))
    now = store.run(fleet(QUEUES))
    assert (now.together.starting, now.together.claiming) == (0, 1)
    assert store.run(fleet(["other"])).together.starting == 0


def test_a_worker_that_runs_its_last_jobs_is_counted_apart(store: JobStore) -> None:
    submit(store, "a")
    claim(store, "w", "s")
    store.client.zadd("penstock:workers:seen", {"w": 1e17})
    now = store.run(fleet(QUEUES)).together
    assert (now.claiming, now.draining, now.draining_jobs) == (0, 1, 1)


def test_a_worker_that_leaves_is_no_failure_and_one_that_was_of_no_use_makes_a_pause(
    store: JobStore, tmp_path: Path
) -> None:
    publish(store)
    machine = Machine(store, tmp_path, Range(0, 1))
    submit(store, "a")
    machine.pass_time()
    [process] = machine.started
    report(store, process.worker_id)
    process.log.write_text('{"event": "worker.idle", "jobs": 3}\n{"event": "other"}\n')
    store.client.hset("penstock:tenant:default:job:a", "created_us", 1)  # it has waited through the idle time
    machine.pass_time()
    process.lives = False
    store.run(queues.leave("default", process.worker_id))
    machine.pass_time()
    assert "worker-1: left after 3 jobs: it had no job for a while" in machine.said
    assert len(machine.started) == 2
    second = machine.started[1]
    second.log.write_text('{"event": "worker.idle", "jobs": 0}\n')
    second.lives = False
    machine.pass_time()
    assert machine.said[-1].endswith("it could run no waiting job; next start in 30 s, or when more wait")
    machine.pass_time(29)
    assert len(machine.started) == 2
    machine.pass_time(1)
    assert len(machine.started) == 3


def test_a_worker_that_dies_at_once_is_tried_again_after_a_pause_and_doctor_says_why(
    store: JobStore, tmp_path: Path
) -> None:
    publish(store)
    submit(store, "a")
    said, ledger = list[str](), Ledger(tmp_path / RECORD)
    settings = Settings(data=tmp_path, slots=1)

    def worker(number: int, _: str, __: float) -> Child:
        command = [sys.executable, "-c", "raise SystemExit('libfast.so is missing')"]
        log = tmp_path / "logs" / f"worker-{number}.log"
        return Child(f"worker-{number}", command, env=dict(os.environ), log=log, ledger=ledger, stop_s=1)

    def say(who: str, what: str) -> None:
        said.append(f"{who}: {what}")

    driver = Driver(settings, store, Supervisor(say), say, Range(0, 1), worker)
    wait_for(_ticking(driver, lambda: len(failing(tmp_path / RECORD)) == 1), "nothing fails")
    wait_for(_ticking(driver, lambda: failing(tmp_path / RECORD)[0].failures >= 2), "it is not tried again")
    assert "worker-1: ended; last log line: libfast.so is missing (next start in 0.5 s)" in said
    assert "worker-1: ended; last log line: libfast.so is missing (next start in 1.0 s)" in said
    assert store.run(fleet(QUEUES)).together.starting == 0
    [finding] = _processes(settings)
    assert (finding.ok, finding.name) == (False, "process worker-1")
    assert "libfast.so is missing" in finding.detail


class LostAnswer:
    """A store that loses the answer to the first reservation of a start, and fails at the next command too."""

    def __init__(self, store: JobStore) -> None:
        self.store, self.fails = store, 2

    def run(self, command: Command[T]) -> T:
        answer = self.store.run(command)
        if self.fails and (command.script == "start_workers" or self.fails < 2):
            self.fails -= 1
            raise JobStoreError("the connection was lost")
        return answer


def test_a_start_with_a_lost_answer_does_not_count(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    submit(store, "a")
    machine = Machine(LostAnswer(store), tmp_path, Range(0, 1))
    machine.pass_time()
    assert machine.started == []
    machine.pass_time()
    machine.pass_time()
    assert len(machine.started) == 1
    assert store.run(fleet(QUEUES)).together.starting == 1


def test_a_worker_that_ends_before_it_reports_does_not_count(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    submit(store, "a")
    machine = Machine(store, tmp_path, Range(0, 1))
    machine.pass_time()
    machine.started[0].lives = False  # it was asked to end
    machine.pass_time()
    assert len(machine.started) == 2


def test_doctor_forgets_the_failures_of_a_worker_that_lives_for_a_while(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    submit(store, "a")
    machine = Machine(store, tmp_path, Range(0, 1))
    machine.pass_time()
    machine.started[0].code, machine.started[0].lives = 1, False
    machine.pass_time()
    assert machine.started[0].failures == 1
    machine.pass_time()
    healed = machine.started[1]
    healed.failures = 1  # both have one row in the record
    machine.pass_time(WELL_AFTER_S)
    assert healed.failures == 1
    machine.pass_time()
    assert healed.failures == 0


@pytest.mark.parametrize("pooled", [True, False])
def test_a_job_in_a_queue_that_nobody_serves_says_so(store: JobStore, tmp_path: Path, *, pooled: bool) -> None:
    publish(store)
    if pooled:
        Machine(store, tmp_path, Range(0, 1)).pass_time()
    submit(store, "a")
    problem = store.run(records.read(JobKey("default", "a"))).model_problem
    assert problem == (None if pooled else "no worker serves this queue")
    assert store.run(pools()) == ({"default"} if pooled else set())
    report(store, "w")
    assert store.run(records.read(JobKey("default", "a"))).model_problem is None


def test_workers_of_all_machines_stay_within_the_queues_bounds(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    scaling = ScalingBounds(max_workers=3)
    machines = [Machine(store, tmp_path / name, Range(0, 2), scaling=scaling) for name in "ab"]
    submit(store, *(f"j{number}" for number in range(9)))
    for _ in range(3):
        for machine in machines:
            machine.pass_time()
    assert sum(len(machine.started) for machine in machines) == 3


def test_a_bound_of_the_queue_below_that_of_the_machine_holds(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    machine = Machine(store, tmp_path, Range(0, 4), scaling=ScalingBounds(max_workers=2))
    submit(store, "a", "b", "c", "d")
    machine.pass_time()
    machine.pass_time()
    assert len(machine.started) == 2


def test_without_a_bound_of_the_queue_each_machine_starts_as_many_as_it_may(store: JobStore, tmp_path: Path) -> None:
    publish(store)
    machines = [Machine(store, tmp_path / name, Range(0, 8)) for name in "ab"]
    submit(store, *(f"j{number}" for number in range(20)))
    for _ in range(3):
        for machine in machines:
            machine.pass_time()
    assert [len(machine.started) for machine in machines] == [8, 8]


def _ticking(driver: Driver, condition: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        driver.tick()
        return condition()

    return look
