"""One scene on 1, 2 and 4 workers.

`python -m benchmarks.parts [--size PX] [--seconds S ...] [--workers N ...] [--maps noisy regions]`

The runner waits for the duration of a tile without using the processor, as for a device of each worker. Times are from
the submission to the visible result, with the final write. The results' bytes are compared with those of one worker.
The map of two classes is noise, which is the hardest to compress, or has regions, as the maps of real networks have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.scenery import record, write_scene
from penstock.config import Settings
from penstock.intake.media import upload_key
from penstock.jobs import Job, JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import queues, records
from tests.support.polling import wait_for
from tests.support.valkey import start_valkey

ROOT = Path(__file__).parents[1]
LIMITS = records.QueueLimits(max_queued=100, max_tenant_jobs=100, retention_s=3600, max_crashes=3, durable=True)
#: Seconds between two looks at a job.
LOOK_S = 0.05
PATIENCE_S = 1800.0
MAPS = ("noisy", "regions")
GOALS: Mapping[int, float] = {2: 1.8, 4: 3.3}


@dataclass(frozen=True, slots=True)
class Service:
    """The stores of a service, and the environment of its workers."""

    store: records.JobStore
    objects: ObjectStore
    environment: Mapping[str, str]

    @contextmanager
    def workers(self, count: int) -> Iterator[None]:
        """Run workers, and a keeper, once all workers have reported."""
        words = [["worker"]] * count + [["keeper"]]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", *each], cwd=ROOT, env=self.environment,
                stderr=subprocess.DEVNULL,
            )
            for each in words
        ]  # fmt: skip
        try:
            wait_for(lambda: self._living() == count, "the workers do not report", timeout_s=120)
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait(30)
            wait_for(lambda: self._living() == 0, "ended workers count as alive", timeout_s=60)

    def run(self, model: str, upload: str) -> tuple[float, Job]:
        """Return the seconds from the submission of a scene to its result, and the job."""
        key = JobKey("default", f"{model}-{upload}-{time.monotonic_ns()}")
        request = {"scene": f"media://{upload}/scene.tif", "outputs": ["classes"]}
        begun = time.perf_counter()
        submission = Submission(key, model, "default", request, "f", execution_timeout_s=7200)
        Journal(self.store, self.objects).run(journal.submit(submission, LIMITS))
        while time.perf_counter() - begun < PATIENCE_S:
            job = self.store.run(records.read(key))
            if job.status.terminal:
                if job.state is not State.SUCCEEDED:
                    raise RuntimeError(str(job.error))
                return time.perf_counter() - begun, job
            time.sleep(LOOK_S)
        raise TimeoutError(f"{key} does not end")

    def _living(self) -> int:
        return self.store.run(queues.queue_stats("default")).workers


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument("--size", type=int, default=10_980, help="side of the scene in pixels")
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.4, 0.1], help="seconds of a tile")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers; the first is 1")
    parser.add_argument("--maps", nargs="+", choices=MAPS, default=MAPS, help="kinds of class maps")
    chosen = parser.parse_args(arguments)
    _say(
        "| map | seconds a tile | workers | parts | time | times as fast | goal | bytes | planned, shared, joined | "
        "load of the machine |"
    )
    _say("| --- " * 10 + "|")
    with tempfile.TemporaryDirectory(prefix="bench-parts-", ignore_cleanup_errors=True) as folder:
        measure(Path(folder), chosen.size, chosen.seconds, chosen.workers, chosen.maps)


def measure(folder: Path, size_px: int, seconds: Sequence[float], counts: Sequence[int], maps: Sequence[str]) -> None:
    """Measure all numbers of workers with each map and duration of a tile, and print a line for each."""
    scenes = {"small": write_scene(folder / "small.tif", 512)}
    scenes |= {kind: write_scene(folder / f"{kind}.tif", size_px, regions=kind == "regions") for kind in maps}
    alone: dict[tuple[str, float], tuple[float, list[str]]] = {}
    with serving(folder, seconds) as service:
        for name, path in scenes.items():
            service.objects.put_file(upload_key("default", name, "scene.tif"), path, content_type="image/tiff")
        for count in counts:
            with service.workers(count):
                for (number, each), kind in product(enumerate(seconds), maps):
                    for _ in range(2 * count):  # so that every worker has loaded the model
                        service.run(f"device-{number}", "small")
                    load = os.getloadavg()[0]
                    took_s, job = service.run(f"device-{number}", kind)
                    sums = [artifact.sha256 for artifact in job.artifacts]
                    first_s, expected = alone.setdefault((kind, each), (took_s, sums))
                    same = "equal" if sums == expected else "DIFFERENT"
                    parts = job.parts.number if job.parts else 1
                    goal = f">= {GOALS[count]}" if count in GOALS else ""
                    _say(
                        f"| {kind} | {each:g} | {count} | {parts} | {took_s:.1f} s | {first_s / took_s:.2f} | {goal} "
                        f"| {same} | {_steps(job)} | {load:.1f} before, {os.getloadavg()[0]:.1f} after |"
                    )


def _steps(job: Job) -> str:
    """Return the seconds until the job was split, in which its parts ran, and in which one worker joined them."""
    if job.parts is None or job.completed_s is None:
        return ""
    first, last = job.attempts[0], job.attempts[-1]
    split_s = first.ended_s or first.started_s
    spans = (split_s - first.started_s, last.started_s - split_s, job.completed_s - last.started_s)
    return ", ".join(f"{span:.1f} s" for span in spans)


@contextmanager
def serving(folder: Path, seconds: Sequence[float]) -> Iterator[Service]:
    """Start a Valkey and open an object store, for models with these seconds of a tile."""
    catalogue = folder / "models.toml"
    catalogue.write_text(
        "".join(
            record(f"device-{number}", runner="fake", source=folder, options=f"step_s = {each}")
            for number, each in enumerate(seconds)
        )
    )
    valkey = start_valkey(folder)
    environment = {
        **os.environ, "PENSTOCK_REDIS_URL": valkey.url, "PENSTOCK_DATA": str(folder), "PENSTOCK_SECRET": "s",
        "PENSTOCK_MODELS": f'["{catalogue}"]', "PENSTOCK_SLOTS": "1",
    }  # fmt: skip
    settings = Settings(data=folder, redis_url=valkey.url)
    try:
        with closing(records.JobStore.open(valkey.url)) as store:
            yield Service(store, open_store(settings.store_url, settings), environment)
    finally:
        valkey.stop()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
