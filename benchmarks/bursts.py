"""Bursts of jobs on workers that start on demand: their timeline, and their cost compared with an oracle's.

    python -m benchmarks.bursts [--containers] [--bursts 3]

`penstock up --workers 0..3` starts processes. With `--containers`, a loop starts the containers that `wanted_workers`
of the API lacks; this needs the images of infra/docker/build.py, podman, runc and root. Workers leave by themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil

from benchmarks.measuring import machine, say
from benchmarks.turns import RASTER
from penstock.client import Client, Job
from tests.support.containers import Container, Fleet, fleet, podman
from tests.support.geo.scenes import write_scene
from tests.support.polling import wait_for
from tests.support.stack import running

MOST = 3
IDLE_S = 5
#: Jobs of a burst: model, seconds of its one tile, number.
BURST = (("long", 12.0, 2), ("medium", 3.0, 4), ("short", 0.5, 14))
BURSTS = 3
SAMPLE_S = 0.2


@dataclass
class Life:
    """A worker: its id, and its times in seconds since 1970."""

    worker: str
    started_s: float
    ended_s: float = 0.0


@dataclass
class Workers(ABC):
    """The workers of a service. `run` samples them in a thread until `end` is called."""

    #: Times in seconds since 1970, and the number of living workers.
    alive: list[tuple[float, int]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._ended.wait(SAMPLE_S):
            self.alive.append((time.time(), self.sample()))

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()

    @abstractmethod
    def sample(self) -> int:
        """Return the number of living workers."""

    @abstractmethod
    def lives(self) -> list[Life]:
        """Return the lives of all workers so far, in the order of their starts."""

    def all_left(self) -> bool:
        """Return True if workers were started and none runs."""
        left = bool(self.alive) and self.alive[-1][1] == 0
        return left and bool(self.lives()) and all(life.ended_s for life in self.lives())


@dataclass
class Processes(Workers):
    """The processes that `penstock up` records in a file."""

    record: Path = Path()
    _lives: dict[int, Life] = field(default_factory=dict)

    def sample(self) -> int:
        """Return the number of living workers, and note new and ended ones."""
        with suppress(OSError, ValueError):
            for name, row in json.loads(self.record.read_text()).items():
                if name.startswith("worker") and row["pid"] not in self._lives:
                    with suppress(psutil.Error):
                        words = psutil.Process(row["pid"]).cmdline()
                        self._lives[row["pid"]] = Life(words[words.index("--id") + 1], row["started_s"])
        for pid, life in self._lives.items():
            if not life.ended_s and not _runs(pid):
                life.ended_s = time.time()
        return sum(not life.ended_s for life in self._lives.values())

    def lives(self) -> list[Life]:
        """Return the lives of all processes so far."""
        return list(self._lives.values())


@dataclass
class Containers(Workers):
    """Containers, which are started as long as there are fewer than the queue wants, and never ended."""

    fleet: Fleet = field(kw_only=True)
    workers: dict[str, Container] = field(default_factory=dict)

    def run(self) -> None:
        """Look at the queue until `end` is called."""
        with self.fleet.client() as client:
            while not self._ended.wait(SAMPLE_S):
                living = self.sample()
                self.alive.append((time.time(), living))
                for _ in range(min(client.queue().wanted_workers, MOST) - living):
                    name = f"worker-{len(self.workers) + 1}"
                    self.workers[name] = self.fleet.worker(name)

    def sample(self) -> int:
        """Return the number of living containers."""
        return len(podman("ps", "--filter", f"name=^{self.fleet.name}-worker-", "--format", "{{.Names}}").split())

    def all_left(self) -> bool:
        """Return True if containers were started and none runs."""
        return bool(self.workers) and self.alive[-1][1] == 0 and not self.sample()

    def lives(self) -> list[Life]:
        """Return the lives of all containers; all have ended."""
        return [Life(name, *worker.times_s()) for name, worker in self.workers.items()]


@dataclass(frozen=True)
class Ran:
    """A job that ended: its worker, and its times in seconds since 1970."""

    worker: str
    submitted_s: float
    started_s: float
    ended_s: float
    attempts: int
    succeeded: bool


@dataclass
class Outcome:
    """The jobs of all bursts, the most workers at once, and the exit codes of containers."""

    jobs: list[Ran] = field(default_factory=list)
    peak: int = 0
    exit_codes: set[int] = field(default_factory=set)


def process_bursts(number: int, outcome: Outcome) -> Iterator[str]:
    """Yield the lines of the report on a number of bursts, and write what happened into `outcome`."""
    with tempfile.TemporaryDirectory(prefix="bench-bursts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        catalogue = folder / "models.toml"
        catalogue.write_text(_catalogue())
        config = (
            f'models = ["{catalogue}"]\nslots = 1\nidle_exit_s = {IDLE_S}\n[scaling]\ntarget_wait_s = 10\n'
            f"max_workers = {MOST}\n"
        )
        with running(folder / "up", config=config, options=("--workers", f"0..{MOST}")) as stack:
            workers = Processes(record=stack.data / "children.json")
            with stack.client() as client:
                yield from _report(workers, client, _scene(folder), number, outcome)
            yield f"{'some' if 'killed' in stack.log.read_text() else 'no'} process was killed"


def container_bursts(number: int, outcome: Outcome) -> Iterator[str]:
    """Yield the lines of the report on a number of bursts, and write what happened into `outcome`."""
    settings = {
        "PENSTOCK_MODELS": '["/data/models.toml"]', "PENSTOCK_SLOTS": "1", "PENSTOCK_IDLE_EXIT_S": str(IDLE_S),
        "PENSTOCK_SCALING__TARGET_WAIT_S": "10", "PENSTOCK_SCALING__MAX_WORKERS": str(MOST),
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="bench-containers-", ignore_cleanup_errors=True) as name,
        fleet("bursts", Path(name) / "data", _catalogue(), **settings) as started,
    ):
        started.once("worker", "models", "publish")
        workers = Containers(fleet=started)
        with started.client() as client:
            yield from _report(workers, client, _scene(Path(name)), number, outcome)
        outcome.exit_codes = {int(worker.state()["ExitCode"]) for worker in workers.workers.values()}
        yield f"exit codes of the containers: {sorted(outcome.exit_codes)}"


def _catalogue() -> str:
    return "".join(RASTER.format(name=model, warm_up="false", step_s=step_s) for model, step_s, _ in BURST)


def _scene(folder: Path) -> Path:
    return write_scene(folder / "scene.tif", np.full((2, 128, 128), 100, np.uint8))


def _report(workers: Workers, client: Client, scene: Path, number: int, outcome: Outcome) -> Iterator[str]:
    sampler = threading.Thread(target=workers.run)
    sampler.start()
    ours = theirs = 0.0
    try:
        media = client.upload(scene)
        if isinstance(workers, Processes):
            wait_for(workers.all_left, "the worker that published the models does not leave")
        for place in range(1, number + 1):
            before, begun_s = len(workers.lives()), time.time()
            ran = burst(client, media)
            wait_for(workers.all_left, "the workers do not leave")
            lives = workers.lives()[before:]
            cost, best, count = compared(lives, ran)
            ours, theirs = ours + cost, theirs + best
            outcome.jobs += ran
            peak = max(living for at_s, living in workers.alive if at_s >= begun_s)
            outcome.peak = max(outcome.peak, peak)
            yield (
                f"burst {place}: {len(ran)} jobs, {len(lives)} workers, at most {peak} at a time, {cost:.0f} "
                f"worker-seconds; oracle: {count} workers, {best:.0f}; {cost / best:.2f} times"
            )
    finally:
        workers.end()
        sampler.join()
    jobs = outcome.jobs
    yield (
        f"{len(jobs)} jobs, {sum(job.succeeded for job in jobs)} succeeded, at most {max(j.attempts for j in jobs)} "
        "attempts"
    )
    yield f"worker-seconds: {ours:.0f}, oracle {theirs:.0f}: {ours / theirs:.2f} times (goal: at most 1.3)"


def burst(client: Client, media: str) -> list[Ran]:
    """Submit a burst, short jobs among long ones, and return its jobs when they have ended."""
    models = [model for model, _, number in BURST for _ in range(number)]
    order = np.random.default_rng(0).permutation(len(models))
    ids = [client.submit(models[place], {"scene": media}).id for place in order]
    return [_ran(client, client.wait(job_id)) for job_id in ids]


def _ran(client: Client, job: Job) -> Ran:
    [*_, started] = [event for event in client.event_list(job.id) if event.type == "job.started"]
    created, began, ended = (_seconds(job.raw[name]) for name in ("created_at", "started_at", "completed_at"))
    return Ran(str(started.data["worker"]), created, began, ended, job.attempt, job.succeeded)


def compared(lives: Sequence[Life], ran: Sequence[Ran]) -> tuple[float, float, int]:
    """Return our worker-seconds, the oracle's, and the number of its workers.

    The oracle knows the length of each job beforehand, and starts as few workers as end the burst no later than ours
    did. Each of its workers starts as fast as the fastest of ours, and leaves `IDLE_S` after its last job, at once.
    """
    own = {life.worker: [job for job in ran if job.worker == life.worker] for life in lives}
    busy = [life for life in lives if own[life.worker]]
    start_s = min(min(job.started_s for job in own[life.worker]) - life.started_s for life in busy)
    lengths = [job.ended_s - job.started_s for job in ran]
    ends_s = max(job.ended_s for job in ran) - min(job.submitted_s for job in ran)
    workers = next((n for n in range(1, MOST) if start_s + makespan_s(lengths, n) <= ends_s), MOST)
    cost = sum(life.ended_s - life.started_s for life in lives)
    return cost, workers * (start_s + IDLE_S) + sum(lengths), workers


def makespan_s(lengths: Sequence[float], workers: int) -> float:
    """Return the seconds that jobs of these lengths take, the longest first, each on the worker that is free first."""
    free = [0.0] * workers
    for length in sorted(lengths, reverse=True):
        free[free.index(min(free))] += length
    return max(free)


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main(arguments: Sequence[str]) -> None:
    """Run the bursts and print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bursts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--containers", action="store_true", help="containers in place of processes")
    parser.add_argument("--bursts", type=int, default=BURSTS)
    chosen = parser.parse_args(arguments)
    say(machine())
    for line in (container_bursts if chosen.containers else process_bursts)(chosen.bursts, Outcome()):
        say(line)


if __name__ == "__main__":
    main(sys.argv[1:])
