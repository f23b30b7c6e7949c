"""Scenes with the service and a bare loop: `python -m benchmarks.scene [device] [cpu] [memory] [workers]`.

`device`: the runner waits 0.4 s for each tile without using the processor. `cpu`: a cheap network and csmask
run on this CPU. Service and loop (`bare_scene`) alternate in one run: same runner, tile size and threads, classes only.
`memory`: peak memory of worker and IO processes together. `workers`: one scene on 1, 2 and 4 workers, each with
the device of 0.4 s a tile. Seconds are from the submission to the visible result.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import structlog

from benchmarks.measuring import in_turns, machine, median_ratio, memory_bytes, metering, say, tree
from benchmarks.scenery import cheap_network, record, write_scene, write_sparse
from benchmarks.turns import ready_models
from penstock.catalogue.records import read_catalogue
from penstock.client import Client, Job
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

#: Seconds of the device for a tile of 768 px with halo.
STEP_S = 0.4
#: The best tile size of a loop for csmask on 2048 px, where memory does not matter.
LARGE_TILE_PX = 1024
#: Numbers of workers, and how many times as fast as with one worker a scene must be.
WORKERS: Mapping[int, str] = {1: "", 2: ">= 1.8", 4: ">= 3.3"}
PARTS = ("device", "cpu", "memory", "workers")


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
    parser.add_argument("--crop", type=int, default=2048, help="size of the scene for csmask in pixels")
    parser.add_argument("--sparse", type=int, nargs=2, default=(4096, 100_000), help="rows and columns")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of service and loop")
    parser.add_argument("--quick", action="store_true", help="512 px, one round: shows only that all runs")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.size, chosen.crop, chosen.sparse, chosen.rounds = 512, 512, (1024, 2048), 1
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say(f"{machine()}\n\n| what | service | bare loop | figure | goal |\n| --- | --- | --- | --- | --- |")
    measured = {"device": on_a_device, "cpu": on_the_processor, "memory": in_memory, "workers": on_workers}
    with tempfile.TemporaryDirectory(prefix="bench-scene-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), chosen.size, chosen.crop, tuple(chosen.sparse), chosen.rounds)
        for part in chosen.parts or PARTS:
            write_catalogue(bench, part)
            for line in measured[part](bench):
                say(line)


def write_catalogue(bench: Bench, part: str) -> None:
    """Write the model of a part."""
    match part:
        case "cpu":
            written = record("cheap", runner="torch", source=cheap_network(bench.folder))
        case "memory":
            written = record("instant", runner="fake", source=bench.folder)
        case _:
            written = record("device", runner="fake", source=bench.folder, options=f"step_s = {STEP_S}")
    bench.catalogue.write_text(written)


def on_a_device(bench: Bench) -> Iterator[str]:
    """Compare with a device that leaves the processor free."""
    scenes = {"": bench.scene("whole", bench.size_px), ", 40 % nodata": bench.scene("part", bench.size_px, empty=0.4)}
    with serving(bench) as stack:
        for what, scene in scenes.items():
            goal = "<= 0.75" if what else "<= 1.00"
            title = f"{bench.size_px} px{what}, a device of {STEP_S} s a tile"
            yield from compare(bench, stack, "device", scene, title, {None: goal})


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
    """Yield a line for each tile size of the bare loop (None: the record's)."""
    with stack.client() as client:
        serve(client, model, client.upload(bench.scene("small", 512)))
        media = client.upload(scene)
        measures: dict[str, Callable[[], float]] = {"ours": lambda: serve(client, model, media)[0]}
        for tile_px in goals:
            measures[str(tile_px)] = partial(_bare_seconds, bench, model, scene, tile_px)
        taken = in_turns(measures, bench.rounds)
    for tile_px, goal in goals.items():
        ours, theirs, beside = taken["ours"], taken[str(tile_px)], f", the loop with tiles of {tile_px} px"
        seconds = f"{median(ours):.1f} s | {median(theirs):.1f} s | {median_ratio(ours, theirs):.2f}"
        yield f"| {title}{beside if tile_px else ''} | {seconds} | {goal} |"


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
            worker = partial(tree, [stack.pid("worker")])
            idle_mb = memory_bytes(worker()) / 1e6
            with metering(worker) as meter:
                seconds, _ = serve(client, "instant", client.upload(scene))
        peak_mb = meter.peak_bytes / 1e6
        ours = f"worker and IO processes: {idle_mb:.0f} MB idle, {peak_mb:.0f} MB at most, {seconds:.0f} s"
        theirs = f"{whole_mb:.0f} MB above a batch" if scene == large else ""
        above = f"{peak_mb - idle_mb - batch_mb:.0f} MB"
        yield f"| {title}: memory above a batch ({batch_mb:.0f} MB) | {ours} | {theirs} | {above} | <= 600 MB |"


def on_workers(bench: Bench) -> Iterator[str]:
    """Yield the time of one scene on several workers; the results' bytes must be equal."""
    scene, alone = bench.scene("whole", bench.size_px), (0.0, [""])
    for count, goal in WORKERS.items():
        with serving(bench, "--workers", str(count)) as stack, stack.client() as client:
            wait_for(lambda count=count: client.queue().workers == count, "the workers do not report")
            small, media = client.upload(bench.scene("small", 512)), client.upload(scene)
            for _ in range(2 * count):  # so that every worker has loaded the model
                serve(client, "device", small)
            seconds, job = serve(client, "device", media)
        sums = [artifact.sha256 for artifact in job.artifacts]
        alone = alone if alone[0] else (seconds, sums)
        same = "equal" if sums == alone[1] else "DIFFERENT"
        figure = f"{alone[0] / seconds:.2f} times as fast, bytes {same}"
        yield f"| {bench.size_px} px, {STEP_S} s a tile, {count} workers | {seconds:.1f} s | | {figure} | {goal} |"


@contextmanager
def serving(bench: Bench, *options: str) -> Iterator[Stack]:
    """Start a service with the models, warmed up."""
    data = Path(tempfile.mkdtemp(dir=bench.folder))
    names = set(read_catalogue(bench.catalogue))
    with (
        running(data, config=f'models = ["{bench.catalogue}"]\n', options=options) as stack,
        stack.client() as client,
    ):
        wait_for(lambda: names <= ready_models(client), "the models are not served")
        yield stack


def serve(client: Client, model: str, media: str) -> tuple[float, Job]:
    """Return the seconds from the submission to the visible result, and the job."""
    begun = time.perf_counter()
    job: Job = client.wait(client.submit(model, {"scene": media, "outputs": ["classes"]}).id)
    if not job.succeeded:
        raise RuntimeError(str(job.error))
    return time.perf_counter() - begun, job


def _bare_seconds(bench: Bench, model: str, scene: Path, tile_px: int | None) -> float:
    return run_bare(bench, model, scene, tile_px)["seconds"]


def run_bare(bench: Bench, model: str, scene: Path, tile_px: int | None = None) -> dict[str, float]:
    """Return the bare loop's figures for a scene, with the record's tile size or another one."""
    command = [sys.executable, "-m", "benchmarks.bare_scene", str(bench.catalogue), model, str(scene)]
    command += [str(bench.folder / "bare.tif"), *([str(tile_px)] if tile_px else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, float] = json.loads(done.stdout)
    return told


if __name__ == "__main__":
    main(sys.argv[1:])
