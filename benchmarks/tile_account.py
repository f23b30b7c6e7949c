"""The processor time of a tile, part by part: `python -m benchmarks.tile_account [--rounds N] [--size PX]`.

First the parts in one process without any transfer, then the same tiles through IO processes, without and with a
device that costs nothing: a simulated one that sleeps 1 ms for each tile. Processor time is counted in the kernel's
ticks, for all threads; medians of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import structlog

from benchmarks.device import all_at_once, drain, model_in, say, through, work_of
from benchmarks.scenery import write_scene
from penstock.config import Settings
from penstock.local.installation import processing_here
from penstock.models import Model
from penstock.processors.base import Output
from penstock.processors.prompt_names import REDUCED
from penstock.processors.registry import Registry
from penstock.workers.artifacts import Sink, discard_preview
from penstock.workers.processing import NO_CHECKPOINTS, Files, Processing, first_half

PARTS = ("open and check", "decode, cut and pad", "stitch, count, write, save", "COG and statistics")
WORKER, IO = "{}: worker", "{}: IO processes"
SPEED = 1000


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tile_account", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=4096, help="side of the scenes in pixels")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-account-") as name:
        folder = Path(name)
        model, scene = model_in(folder), write_scene(folder / "scene.tif", chosen.size)
        with closing(processing_here(Settings(), isolated=True)) as processing:
            all_at_once(lambda number: drain(processing, model, scene, folder / f"first-{number}"))
            for number in range(chosen.rounds):
                out = folder / f"round-{number}"
                parts = zip(PARTS, parts_of(model, scene, out), strict=True)
                for part, seconds in [*parts, *transferred(processing, model, scene, out)]:
                    found.setdefault(part, []).append(seconds)
    say("| processor time of a tile | us |")
    say("| --- | --- |")
    for part, seconds in found.items():
        say(f"| {part} | {1e6 * median(seconds):.0f} |")


def parts_of(model: Model, scene: Path, out: Path) -> list[float]:
    """Return the seconds of each of `PARTS` for a tile, in this process; the answers of the device lie ready."""
    work, processor = work_of(model, scene, out / "parts"), Registry.installed().processor_for(model)
    sink = Sink(work.folder, say=lambda _: None, save=NO_CHECKPOINTS.save, show=discard_preview)
    times = [time.process_time()]
    prepared = first_half(processor, work, Files(work.media, NO_CHECKPOINTS.found, work.requests))
    times.append(time.process_time())
    shapes = [prompt.data["pixels"].shape for prompt in prepared.prompts]
    times.append(time.process_time())

    def outputs() -> Iterator[Output]:
        for shape in shapes:
            yield Output({REDUCED: np.zeros((1, *shape[1:]), np.uint8)})
        times.append(time.process_time())

    processor.post_process(outputs(), prepared.context, sink)
    times.append(time.process_time())
    return [(after - before) / len(shapes) for before, after in pairwise(times)]


def transferred(processing: Processing, model: Model, scene: Path, out: Path) -> Iterator[tuple[str, float]]:
    """Yield the seconds of a tile in the worker and in the IO processes, by what they do."""
    counts: list[int] = []
    before = here_and_there()
    all_at_once(lambda number: counts.append(drain(processing, model, scene, out / f"decode-{number}")))
    yield from _each("decoding alone", before, sum(counts))
    gc.collect()  # a first full pass, over everything imported, is no tile's price
    before = here_and_there()
    device, _ = through(processing, model, scene, out, SPEED)
    yield from _each("pipeline", before, sum(size for _, _, size in device.steps))


def _each(what: str, before: tuple[float, float], tiles: int) -> Iterator[tuple[str, float]]:
    for name, begun, ended in zip((WORKER, IO), before, here_and_there(), strict=True):
        yield name.format(what), (ended - begun) / tiles


def here_and_there() -> tuple[float, float]:
    """Return the seconds of this process and of all below it, also of those that have ended."""
    below = 0.0
    for process in psutil.Process().children(recursive=True):
        below += sum(process.cpu_times()[:4])
    return time.process_time(), below


if __name__ == "__main__":
    main(sys.argv[1:])
