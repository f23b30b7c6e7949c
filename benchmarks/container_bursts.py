"""Bursts of jobs on containers of workers: a loop starts what `wanted_workers` lacks, and workers leave by themselves.

Needs the images of infra/docker/build.py, podman, runc and root.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.bursts import BURST, BURSTS, IDLE_S, MODEL, MOST, Life, Ran, burst, compared, timeline
from tests.support.containers import Container, Fleet, fleet, podman
from tests.support.geo.scenes import write_scene
from tests.support.polling import wait_for

LOOK_EVERY_S = 0.5


@dataclass
class Starter:
    """Starts containers as long as there are fewer than the queue wants, and never ends one."""

    fleet: Fleet
    workers: dict[str, Container] = field(default_factory=dict)
    alive: list[tuple[float, int]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look at the queue every `LOOK_EVERY_S` until `end` is called."""
        with self.fleet.client() as client:
            while not self._ended.wait(LOOK_EVERY_S):
                living = len(self._living())
                self.alive.append((time.time(), living))
                for _ in range(min(client.queue().wanted_workers, MOST) - living):
                    name = f"worker-{len(self.workers) + 1}"
                    self.workers[name] = self.fleet.worker(name)

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()

    def all_left(self) -> bool:
        """Return True if workers were started and none runs."""
        return bool(self.workers) and self.alive[-1][1] == 0 and not self._living()

    def exit_codes(self) -> set[int]:
        """Return the exit codes of all workers."""
        return {int(worker.state()["ExitCode"]) for worker in self.workers.values()}

    def lives(self) -> list[Life]:
        """Return the lives of all workers; all have ended."""
        return [Life(name, *worker.times_s()) for name, worker in self.workers.items()]

    def _living(self) -> list[str]:
        return podman("ps", "--filter", f"name=^{self.fleet.name}-worker-", "--format", "{{.Names}}").split()


@dataclass
class Outcome:
    """The jobs of all bursts, the most workers at once, and the exit codes of the workers."""

    jobs: list[Ran] = field(default_factory=list)
    peak: int = 0
    exit_codes: set[int] = field(default_factory=set)


def container_bursts(number: int, outcome: Outcome) -> Iterator[str]:
    """Yield the lines of the report on a number of bursts, and note what happened in `outcome`."""
    catalogue = "".join(MODEL.format(name=model, step_s=step_s) for model, step_s, _ in BURST)
    settings = {
        "PENSTOCK_MODELS": '["/data/models.toml"]', "PENSTOCK_SLOTS": "1", "PENSTOCK_IDLE_EXIT_S": str(IDLE_S),
        "PENSTOCK_SCALING__TARGET_WAIT_S": "10", "PENSTOCK_SCALING__MAX_WORKERS": str(MOST),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-containers-", ignore_cleanup_errors=True) as name:
        scene = write_scene(Path(name) / "scene.tif", np.full((2, 128, 128), 100, np.uint8))
        with fleet("bursts", Path(name) / "data", catalogue, **settings) as started:
            started.once("worker", "models", "publish")
            yield from _report(Starter(started), scene, number, outcome)


def _report(starter: Starter, scene: Path, number: int, outcome: Outcome) -> Iterator[str]:
    looking = threading.Thread(target=starter.run)
    looking.start()
    ours = theirs = 0.0
    try:
        with starter.fleet.client() as client:
            media = client.upload(scene)
            for place in range(1, number + 1):
                before, begun_s = len(starter.workers), time.time()
                ran = burst(client, media)
                wait_for(starter.all_left, "the workers do not leave")
                lives = starter.lives()[before:]
                cost, best, workers = compared(lives, ran)
                ours, theirs = ours + cost, theirs + best
                outcome.jobs += ran
                yield f"burst {place}: {timeline(starter.alive, begun_s)}"
                yield (
                    f"  {len(ran)} jobs, {len(lives)} containers, {cost:.0f} worker-seconds; "
                    f"oracle: {workers} workers, {best:.0f}; {cost / best:.2f} times"
                )
    finally:
        starter.end()
        looking.join()
    outcome.peak = max(living for _, living in starter.alive)
    outcome.exit_codes = starter.exit_codes()
    jobs = outcome.jobs
    yield (
        f"{len(jobs)} jobs, {sum(job.succeeded for job in jobs)} succeeded, at most {max(j.attempts for j in jobs)} "
        f"attempts; exit codes of the containers: {sorted(outcome.exit_codes)}"
    )
    yield f"worker-seconds: {ours:.0f}, oracle {theirs:.0f}: {ours / theirs:.2f} times"


if __name__ == "__main__":
    for line in container_bursts(BURSTS, Outcome()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
