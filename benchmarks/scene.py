"""Scenes with the whole service compared with a bare loop: `python -m benchmarks.scene [device] [cpu] [memory] [busy]`.

`device`: the runner waits for the duration of a batch without using the processor. `cpu`: a cheap network and csmask
run on this CPU. Service and loop (`bare_scene`) alternate in one run: same runner, tile size and threads, classes only.
`memory`: worker and IO process together. `busy`: busy times of the device as a timeline.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import structlog

from benchmarks.scenery import cheap_network, record, write_scene, write_sparse
from penstock.client import Client, Job
from penstock.config import Settings
from penstock.intake.local_media import LocalMedia
from penstock.local.installation import processing_here
from penstock.models import Model, read_catalogue
from penstock.storage.redis.catalogues import CHECKING
from penstock.workers.engine.base import Runner, RunnerFactory, Step
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import Work
from tests.support.stack import Stack, running, wait_for

FULL_PX = 10_980
#: Devices: seconds per tile of 768 px with halo, and tiles per batch.
DEVICES = ((0.4, 1), (0.1, 1), (0.1, 4))
#: The best tile size of a loop for csmask on 2048 px, where memory does not matter.
LARGE_TILE_PX = 1024
LOOK_EVERY_S = 0.1
COLUMNS = 100
PARTS = ("device", "cpu", "memory", "busy")


@dataclass(frozen=True, slots=True)
class Bench:
    """Paths and sizes of the benchmark."""

    folder: Path
    size_px: int
    crop_px: int
    sparse_px: tuple[int, int]
    rounds: int

    @property
    def catalogue(self) -> Path:
        """The file of the models."""
        return self.folder / "models.toml"

    def scene(self, name: str, size_px: int, **how: Any) -> Path:
        """Return a scene, created once."""
        path = self.folder / f"{name}-{size_px}.tif"
        return path if path.exists() else write_scene(path, size_px, **how)


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scene", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--size", type=int, default=4096, help="size of the scenes in pixels")
    parser.add_argument("--crop", type=int, default=1536, help="size of the scene for csmask in pixels")
    parser.add_argument("--sparse", type=int, nargs=2, default=(4096, 100_000), help="rows and columns")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of service and loop")
    parser.add_argument("--full", action="store_true", help="10,980 px, csmask on 4096 px, sparse 100,000 x 100,000")
    chosen = parser.parse_args(arguments)
    if chosen.full:
        chosen.size, chosen.crop, chosen.sparse, chosen.rounds = FULL_PX, 4096, (100_000, 100_000), 1
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say("| what | service | bare loop | figure | goal |\n| --- | --- | --- | --- | --- |")
    measured = {"device": on_a_device, "cpu": on_the_processor, "memory": in_memory, "busy": over_time}
    with tempfile.TemporaryDirectory(prefix="bench-scene-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), chosen.size, chosen.crop, tuple(chosen.sparse), chosen.rounds)
        for part in chosen.parts or PARTS:
            write_catalogue(bench, part)
            for line in measured[part](bench):
                say(line)


def write_catalogue(bench: Bench, part: str) -> None:
    """Write the models of a part: few enough to stay loaded beside csmask."""
    records = {
        "device": [
            record(
                f"device-{number}", runner="fake", source=bench.folder, max_batch=size, options=f"step_s = {s * size}"
            )
            for number, (s, size) in enumerate(DEVICES)
        ],
        "cpu": [record("cheap", runner="torch", source=cheap_network(bench.folder))],
        "memory": [record("instant", runner="fake", source=bench.folder)],
    }
    bench.catalogue.write_text("".join(records["device" if part == "busy" else part]))


def on_a_device(bench: Bench) -> Iterator[str]:
    """Compare with a device that leaves the processor free."""
    scenes = {"": bench.scene("whole", bench.size_px), ", 40 % nodata": bench.scene("part", bench.size_px, empty=0.4)}
    with serving(bench) as stack:
        for number, (step_s, size) in enumerate(DEVICES):
            for what, scene in scenes.items():
                goal = "<= 0.75" if what else "<= 1.00"
                title = f"{bench.size_px} px{what}, a device of {step_s} s a tile, batches of {size}"
                yield from compare(bench, stack, f"device-{number}", scene, title, {None: goal})


def on_the_processor(bench: Bench) -> Iterator[str]:
    """Compare with a network on the processor."""
    with serving(bench) as stack:
        scene, crop = bench.scene("whole", bench.size_px), bench.scene("crop", bench.crop_px)
        yield from compare(
            bench, stack, "cheap", scene, f"{bench.size_px} px, three convolutions here", {None: "<= 1.05"}
        )
        goals = {None: "<= 1.05", LARGE_TILE_PX: "<= 0.95"}
        yield from compare(bench, stack, "csmask", crop, f"{bench.crop_px} px, csmask here", goals)


def compare(
    bench: Bench, stack: Stack, model: str, scene: Path, title: str, goals: Mapping[int | None, str]
) -> Iterator[str]:
    """Yield a line for each tile size of the bare loop (None: the record's), with medians measured in turns."""
    served: list[float] = []
    bare: dict[int | None, list[float]] = {tile_px: [] for tile_px in goals}
    with stack.client() as client:
        serve(client, model, client.upload(bench.scene("small", 512)))
        media = client.upload(scene)
        for _ in range(bench.rounds):
            served.append(serve(client, model, media))
            for tile_px, seconds in bare.items():
                seconds.append(run_bare(bench, model, scene, tile_px)["seconds"])
    ours = median(served)
    for tile_px, seconds in bare.items():
        theirs, beside = median(seconds), f", the loop with tiles of {tile_px} px" if tile_px else ""
        yield f"| {title}{beside} | {ours:.1f} s | {theirs:.1f} s | {ours / theirs:.2f} | {goals[tile_px]} |"


def in_memory(bench: Bench) -> Iterator[str]:
    """Yield the memory peaks above the loaded model and a batch, each with a new service."""
    small = bench.scene("small", 1024)
    large = bench.scene("whole", bench.size_px)
    sparse = write_sparse(bench.folder / "sparse.tif", *bench.sparse_px)
    bare = run_bare(bench, "instant", large)
    batch_mb, whole_mb = bare["batch_mb"] - bare["idle_mb"], bare["peak_mb"] - bare["batch_mb"]
    for scene, title in ((large, f"{bench.size_px} px"), (sparse, f"{'{} x {}'.format(*bench.sparse_px)} px, sparse")):
        with serving(bench) as stack, stack.client() as client:
            # Memory that a first job leaves behind belongs to the service, not to the scene.
            serve(client, "instant", client.upload(small))
            with Peak(stack.pid("worker")) as peak:
                seconds = serve(client, "instant", client.upload(scene))
        above = sum(peak.most) - sum(peak.first) - batch_mb
        idle, most = ("{:.0f} + {:.0f} MB".format(*each) for each in (peak.first, peak.most))
        ours = f"worker + IO processes: {idle} idle, {most} at most, {seconds:.0f} s"
        theirs = f"{whole_mb:.0f} MB above a batch" if scene == large else ""
        yield f"| {title}: memory above a batch ({batch_mb:.0f} MB) | {ours} | {theirs} | {above:.0f} MB | <= 600 MB |"


def over_time(bench: Bench) -> Iterator[str]:
    """Yield the busy times of the device with the engine and an IO process, without the queue."""
    models = read_catalogue(bench.catalogue)
    for name, scene in (
        ("device-0", bench.scene("whole", bench.size_px)),
        ("device-2", bench.scene("whole", bench.size_px)),
        ("csmask", bench.scene("crop", bench.crop_px)),
    ):
        watch = Watch()
        begun, inferred, ended = watch.run(models[name], bench.scene("small", 512), scene, bench.folder / name)
        busy = sum(stop - start for start, stop in watch.steps)
        shares = f"{busy / (inferred - begun):.2f} of its way to the last tile, {busy / (ended - begun):.2f} of all"
        yield f"| {name}: device busy, {len(watch.steps)} batches | {ended - begun:.1f} s | | {shares} | >= 0.95 |"
        yield f"<!-- {name} `{timeline(watch.steps, begun, ended)}` -->"


def timeline(steps: Sequence[tuple[float, float]], begun: float, ended: float) -> str:
    """Return one character per hundredth of the time: `#` mostly busy, `+` half busy, `.` mostly idle."""
    each = (ended - begun) / COLUMNS
    marks = []
    for column in range(COLUMNS):
        start, stop = begun + column * each, begun + (column + 1) * each
        share = sum(max(0.0, min(stop, b) - max(start, a)) for a, b in steps) / each
        marks.append("#" if share > 0.9 else "+" if share > 0.1 else ".")
    return "".join(marks)


@contextmanager
def serving(bench: Bench) -> Iterator[Stack]:
    """Start a service with the models, warmed up."""
    data = Path(tempfile.mkdtemp(dir=bench.folder))
    names = set(read_catalogue(bench.catalogue))
    with running(data, config=f'models = ["{bench.catalogue}"]\n') as stack, stack.client() as client:
        wait_for(lambda: names <= _ready(client), "the models are not served")
        yield stack


def _ready(client: Client) -> set[str]:
    models = client.models()
    for model in models:
        if model.problem not in (None, CHECKING):
            raise RuntimeError(f"{model.name}: {model.problem}")
    return {model.name for model in models if model.problem is None and model.raw.get("ready", True)}


def serve(client: Client, model: str, media: str) -> float:
    """Return the seconds from submission to visible result."""
    begun = time.perf_counter()
    job: Job = client.wait(client.submit(model, {"scene": media, "outputs": ["classes"]}).id)
    if not job.succeeded:
        raise RuntimeError(str(job.error))
    return time.perf_counter() - begun


def run_bare(bench: Bench, model: str, scene: Path, tile_px: int | None = None) -> dict[str, float]:
    """Return the bare loop's figures for a scene, with the record's tile size or another one."""
    command = [sys.executable, "-m", "benchmarks.bare_scene", str(bench.catalogue), model, str(scene)]
    command += [str(bench.folder / "bare.tif"), *([str(tile_px)] if tile_px else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, float] = json.loads(done.stdout)
    return told


class Peak:
    """Sampler of the proportional memory (PSS) of a process and its children. A context manager."""

    def __init__(self, pid: int) -> None:
        self._root, self._over = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._look)
        #: Memory of the process and of its children in MB: at the start, and at the common peak.
        self.first = self.most = self._pss_mb()

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.most = max(self.most, self._pss_mb(), key=sum)

    def _pss_mb(self) -> tuple[float, float]:
        return _pss_mb(self._root), sum(_pss_mb(process) for process in self._root.children(recursive=True))


def _pss_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.Error:  # the process has just ended
        return 0.0


@dataclass
class Watch:
    """Runner of a scene that records the steps."""

    steps: list[tuple[float, float]] = field(default_factory=list)

    def run(self, model: Model, first: Path, scene: Path, folder: Path) -> tuple[float, float, float]:
        """Return the times of job start, last tile output, and result.

        The `first` scene loads everything.
        """
        runners = Runners.installed()
        request = {"scene": "media://scene", "outputs": ["classes"]}
        with (
            closing(processing_here(Settings(), isolated=True)) as processing,
            closing(BatchingEngine(Runners.of(dict.fromkeys(runners.specs, self._watched(runners.load))))) as engine,
        ):
            for each in (first, scene):
                self.steps.clear()
                begun = time.perf_counter()
                work = Work(model, request, {"media://scene": LocalMedia(each)}, folder / each.stem)
                with processing.open(work, check=_never, say=_say) as session:
                    session.finish(engine.run(model, session.prompts, check=_never, cost=session.cost))
            return begun, self.steps[-1][1], time.perf_counter()

    def _watched(self, make: RunnerFactory) -> Callable[[Model], Runner]:
        return lambda model: _Watched(make(model), self.steps)  # type: ignore[return-value]


class _Watched:
    """A runner with recorded steps."""

    def __init__(self, runner: Runner, steps: list[tuple[float, float]]) -> None:
        self._runner, self._steps = runner, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        begun = time.perf_counter()
        done = self._runner.step(states)
        self._steps.append((begun, time.perf_counter()))
        return done


def _never() -> None:
    """Check for cancellation that never cancels."""


def _say(_: str) -> None:
    """Ignore an event."""


def say(line: str) -> None:
    """Print a line immediately, because the benchmark takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
