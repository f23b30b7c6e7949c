"""Workers that come and leave by themselves: the driver of `penstock up` starts them, and some are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psutil

from penstock.processors.registry import Registry
from penstock.storage.journal.stored_models import put_published
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.scripts import JobStore
from penstock.up.children import Child, Ledger, Supervisor
from penstock.up.driver import Driver
from penstock.up.scaling import Range
from penstock.workers.processing import InThread
from tests.chaos.arena import Arena, Summary
from tests.chaos.clients import jobs
from tests.chaos.echo import MODEL, Chaos
from tests.chaos.processes import Death, Fleet
from tests.chaos.run import Run

WORKERS = Range(0, 3)
IDLE_EXIT_S = 1.5
TICK_S = 0.05
#: Seconds in which the idle workers of a burst have left.
LEFT_S = 60.0


class Came(Child):
    """A worker of the driver. It notes its death as the other processes of the arena do."""

    def __init__(self, fleet: Fleet, number: int, worker_id: str, ledger: Ledger) -> None:
        # They end with the test run, even with one that is killed.
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.chaos.worker_main", worker_id]
        environment = fleet.environment_of("worker")
        log = fleet.folder / f"came{number}.log"
        super().__init__(f"came{number}", command, env={**os.environ, **environment}, log=log, ledger=ledger, stop_s=20)
        self.deaths: list[Death] = []
        self.signals: list[tuple[float, int, int]] = []

    def alive(self) -> bool:
        """Return True while the process runs, and note its death."""
        code = self.exit_code()
        if code is not None and not self.deaths:
            self.deaths.append(Death(time.time(), self.name, self.pid, code))
        return code is None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.signals.append((time.time(), self.pid, number))
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            psutil.Process(self.pid).send_signal(number)


class Comings:
    """A driver at work in a thread, which starts and watches the workers."""

    def __init__(self, arena: Arena) -> None:
        self._fleet, self._ledger = arena.fleet, Ledger(arena.fleet.folder / "children.json")
        self._supervisor = Supervisor(self._say)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="driver")

    @property
    def living(self) -> list[Came]:
        """The workers that run at the moment."""
        return [came for came in list(self._fleet.came) if not came.deaths]

    def start(self) -> None:
        """Begin to drive."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further worker, and end those that run."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        # In this thread alone: a process whose parent's thread ends is killed.
        settings = self._fleet.settings
        with closing(JobStore.open(settings.redis_address)) as store:
            driver = Driver(settings, store, self._supervisor, self._say, WORKERS, self._came)
            while not self._ended.wait(TICK_S):
                driver.tick()
        self._supervisor.stop(hurry=lambda: False)

    def _came(self, number: int, worker_id: str, _: float) -> Came:
        came = Came(self._fleet, number, worker_id, self._ledger)
        self._fleet.came.append(came)
        return came

    def _say(self, who: str, what: str) -> None:
        with (self._fleet.folder / "driver.log").open("a") as log:
            log.write(f"{time.time():.3f} {who}: {what}\n")


def comings_and_goings(run: Run) -> Summary:
    """Bursts of jobs on workers that come when jobs want them and leave when they are idle, under SIGKILL."""
    bursts, count, kills = run.pick(2, 6), run.pick(40, 300), run.pick(2, 8)
    begun = time.monotonic()
    with run.arena(workers=0, published=publish, idle_exit_s=IDLE_EXIT_S) as arena, _driven(arena) as comings:
        for _ in range(bursts):
            arena.submit(jobs(count, arena.receiver, takes_s=0.2))
            killed = 0

            def strike() -> None:
                nonlocal killed
                if comings.living and arena.running():
                    arena.draws.choice(comings.living).signal(signal.SIGKILL)
                    killed += 1

            arena.repeat(strike, every_s=(0.5, 1.5), enough=lambda: killed >= kills)  # noqa: B023  (of this burst)
            arena.finish()
            arena.until(lambda: not comings.living, within_s=LEFT_S)
        codes = [death.code for death in arena.deaths() if death.name.startswith("came")]
        left = codes.count(0)
        assert set(codes) <= {0, -signal.SIGKILL}, f"workers ended with {codes}"
        assert left >= bursts, f"of {len(codes)} workers {left} left by themselves"
        return run.done("comings_and_goings", arena, begun, bursts=bursts, came=len(codes), left=left)


def publish(objects: ObjectStore) -> None:
    """Publish the model of the jobs, so that they are accepted without a worker."""
    put_published(objects, InThread(Registry().register("chaos", Chaos)).entry(MODEL), owner="chaos")


@contextmanager
def _driven(arena: Arena) -> Iterator[Comings]:
    comings = Comings(arena)
    comings.start()
    try:
        yield comings
    finally:
        comings.stop()
