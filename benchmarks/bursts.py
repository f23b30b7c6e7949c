"""Bursts of jobs on `penstock up --workers 0..3`: the workers' timeline, and their cost compared with an oracle's."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil

from penstock.client import Client, Job
from tests.support.geo.scenes import write_scene
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

MOST = 3
IDLE_S = 5
#: Jobs of a burst: model, seconds of its one tile, number.
BURST = (("long", 12.0, 2), ("medium", 3.0, 4), ("short", 0.5, 14))
BURSTS = 3
SAMPLE_S = 0.2
#: Seconds per character of the timeline.
COLUMN_S = 1.0

MODEL = """
[models.{name}]
title = "Sleeps for each tile"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
warm_up = false

[models.{name}.options]
step_s = {step_s}
tile_px = 256
halo_px = 8
bands = [{{ name = "one", mean = 100.0, std = 50.0 }}, {{ name = "other", mean = 120.0, std = 70.0 }}]
classes = [{{ id = 0, name = "a", colour = "#000000" }}, {{ id = 1, name = "b", colour = "#ffffff" }}]
default_radiometry = [{{ dtypes = ["uint8"], scale = 1.0 }}]
"""


@dataclass
class Life:
    """A worker's process: its id, and its times in seconds since 1970."""

    worker: str
    started_s: float
    ended_s: float = 0.0


@dataclass
class Watch:
    """Samples the processes of workers that `penstock up` records."""

    record: Path
    lives: dict[int, Life] = field(default_factory=dict)
    alive: list[tuple[float, int]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._ended.wait(SAMPLE_S):
            self._sample(time.time())

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()

    def _sample(self, now_s: float) -> None:
        with suppress(OSError, ValueError):
            for name, row in json.loads(self.record.read_text()).items():
                if name.startswith("worker") and row["pid"] not in self.lives:
                    with suppress(psutil.Error):
                        words = psutil.Process(row["pid"]).cmdline()
                        self.lives[row["pid"]] = Life(words[words.index("--id") + 1], row["started_s"])
        living = 0
        for pid, life in self.lives.items():
            if not life.ended_s:
                if _runs(pid):
                    living += 1
                else:
                    life.ended_s = now_s
        self.alive.append((now_s, living))


@dataclass(frozen=True)
class Ran:
    """A job that ended: its worker, and its times in seconds since 1970."""

    worker: str
    submitted_s: float
    started_s: float
    ended_s: float
    attempts: int
    succeeded: bool


def bursts() -> Iterator[str]:
    """Yield the lines of the report."""
    with tempfile.TemporaryDirectory(prefix="bench-bursts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        catalogue = folder / "models.toml"
        catalogue.write_text("".join(MODEL.format(name=model, step_s=step_s) for model, step_s, _ in BURST))
        config = (
            f'models = ["{catalogue}"]\nslots = 1\nidle_exit_s = {IDLE_S}\n[scaling]\ntarget_wait_s = 10\n'
            f"max_workers = {MOST}\n"
        )
        scene = write_scene(folder / "scene.tif", np.full((2, 128, 128), 100, np.uint8))
        with running(folder / "up", config=config, options=("--workers", f"0..{MOST}")) as stack:
            yield from _report(stack, scene)


def _report(stack: Stack, scene: Path) -> Iterator[str]:
    watch = Watch(stack.data / "children.json")
    sampling = threading.Thread(target=watch.run)
    sampling.start()
    ours = theirs = 0.0
    jobs: list[Ran] = []
    try:
        with stack.client() as client:
            wait_for(lambda: _all_left(watch), "the worker that published the models does not leave")
            media, before = client.upload(scene), set(watch.lives)
            for number in range(1, BURSTS + 1):
                begun_s = time.time()
                ran = burst(client, media)
                wait_for(lambda: _all_left(watch), "the workers do not leave")
                lives = [life for pid, life in watch.lives.items() if pid not in before]
                before, jobs = set(watch.lives), jobs + ran
                cost, best, workers = compared(lives, ran)
                ours, theirs = ours + cost, theirs + best
                yield f"burst {number}: {timeline(watch.alive, begun_s)}"
                yield (
                    f"  {len(ran)} jobs, {len(lives)} workers, {cost:.0f} worker-seconds; "
                    f"oracle: {workers} workers, {best:.0f}; {cost / best:.2f} times"
                )
    finally:
        watch.end()
        sampling.join()
    killed = "killed" in stack.log.read_text()
    yield (
        f"{len(jobs)} jobs, {sum(job.succeeded for job in jobs)} succeeded, at most {max(j.attempts for j in jobs)} "
        f"attempts, {'some' if killed else 'no'} process killed"
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


def timeline(alive: Sequence[tuple[float, int]], since_s: float) -> str:
    """Return the number of living workers, one digit for each `COLUMN_S`."""
    samples = [(at_s - since_s, number) for at_s, number in alive if at_s >= since_s]
    columns = range(int(samples[-1][0] / COLUMN_S) + 1) if samples else range(0)
    held = ([n for at_s, n in samples if int(at_s / COLUMN_S) == column] for column in columns)
    return "".join(str(numbers[0]) if numbers else "?" for numbers in held)


def _all_left(watch: Watch) -> bool:
    return bool(watch.lives) and watch.alive[-1][1] == 0 and all(life.ended_s for life in watch.lives.values())


def _runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    for line in bursts():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
