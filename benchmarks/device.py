"""A simulated GPU behind the interpreter: `python -m benchmarks.device [--turns 3] [--pictures 20] [--quick]`.

A forward pass is several hundred launches. Each needs the interpreter for some 20 us and gives it away for a moment, as
torch does; the device works on what was launched, in order, without the interpreter. Rates and launches are those of
ViT-B/16 in bfloat16 on an H100: 3210 pictures a second in bare batches of 32.

64 jobs of one prepared picture each at a time, in turns: the model inside the worker, and in a process of its own. A
share is their rate divided by that of bare batches, which one thread of a process of its own runs one after the other.
`--slower 3` makes device and launches three times as slow, which shows what is left of the share on a machine with
more processor for each picture.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import structlog

from benchmarks.measuring import all_at_once, in_turns, machine, median_ratio, never, say
from penstock.models import Model
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Hosting, RunnerSpec, shapes_of
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners

JOBS, BATCH, SIDE_PX = 64, 32, 224
#: Launches of a pass, the seconds that each needs the interpreter, and the seconds of the device for each picture.
LAUNCHES, LAUNCH_S, PICTURE_S = 300, 20e-6, 1 / 3210
ROOT = Path(__file__).parents[1]
NAME = "simulated-device"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A runner of the simulated device: prompts have `pixels`, outputs 1000 `logits`."""

    max_batch: int
    slower: float
    memory_bytes: int = 0
    #: Buffers that are filled again, as torch keeps its pinned memory.
    buffers: list[Array] = field(default_factory=list)

    def bucket(self, prompt: Prompt) -> object:
        """Return the picture's shape."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Array:
        """Return a copy, as a runner copies small pictures into pinned memory."""
        pixels = prompt.data["pixels"]
        copy = self.buffers.pop() if self.buffers else np.empty_like(pixels)
        np.copyto(copy, pixels)
        return copy

    def step(self, states: Sequence[Array]) -> list[Done]:
        """Launch a pass and wait for the device."""
        self.run(len(states))
        self.buffers.extend(states)
        return [Done(Output({"logits": np.zeros(1000, np.float32)})) for _ in states]

    def run(self, pictures: int) -> None:
        """Launch a pass over so many pictures and wait for the device."""
        kernel_s, free_at = pictures * PICTURE_S * self.slower / LAUNCHES, 0.0
        for _ in range(LAUNCHES):
            now = time.perf_counter()
            until = now + LAUNCH_S * self.slower
            while now < until:
                now = time.perf_counter()
            free_at = max(now, free_at) + kernel_s
            os.sched_yield()  # a call that gives the interpreter away
        time.sleep(max(0.0, free_at - time.perf_counter()))

    def close(self) -> None:
        """Free nothing."""


def load(model: Model) -> Simulated:
    """Return the runner."""
    return Simulated(model.max_batch, float(model.options["slower"]))


SPEC = RunnerSpec(load, hosting=lambda _model: Hosting())


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3, help="turns, each with all measures (default: 3)")
    parser.add_argument("--pictures", type=int, default=40, help="pictures of each job in a turn (default: 40)")
    parser.add_argument("--slower", type=float, default=1.0, help="factor of the device's and the launches' time")
    parser.add_argument("--quick", action="store_true", help="few pictures: shows only that all runs")
    parser.add_argument("--bare", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.bare:
        say(str(bare(chosen.bare, 3 if chosen.quick else 50)))
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say(f"{machine()}\n\n| {JOBS} jobs of a picture at a time, batches of {BATCH} | rate | bare batches | ratio |")
    say("| --- | --- | --- | --- |")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-device-")))
        _install(folder)
        engine = stack.enter_context(closing(BatchingEngine(Runners.installed().register(NAME, SPEC))))
        each = 2 if chosen.quick else chosen.pictures
        measures: dict[str, Callable[[], float]] = {
            name: _rate(engine, _model(name, own, chosen.slower), each)
            for name, own in (("inside the worker", False), ("in a process of its own", True))
        }
        measures["bare"] = lambda: _bare_rate(chosen.slower, quick=chosen.quick)
        rates = in_turns(measures, 1 if chosen.quick else chosen.turns)
    theirs = rates.pop("bare")
    for name, ours in rates.items():
        say(f"| {name} | {median(ours):.0f}/s | {median(theirs):.0f}/s | {median_ratio(ours, theirs):.2f} |")


def bare(slower: float, batches: int) -> float:
    """Return the pictures per second of batches of prepared pictures, one after the other."""
    runner, pixels = Simulated(BATCH, slower), _pixels()
    runner.run(BATCH)
    begun = time.perf_counter()
    for _ in range(batches):
        runner.step([pixels] * BATCH)
    return batches * BATCH / (time.perf_counter() - begun)


def _bare_rate(slower: float, *, quick: bool) -> float:
    words = [sys.executable, "-m", "benchmarks.device", "--bare", str(slower), *(["--quick"] if quick else [])]
    return float(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def _rate(engine: BatchingEngine, model: Model, each: int) -> Callable[[], float]:
    prompt = Prompt({"pixels": _pixels()}, cost=SIDE_PX**2)

    def one(_: int) -> None:
        for _ in range(each):
            list(engine.run(model, iter([prompt]), check=never, ready=True))

    def rate() -> float:
        return JOBS * each / all_at_once(one, JOBS)

    engine.load(model, check=never)
    all_at_once(one, 8)
    return rate


def _pixels() -> Array:
    return np.random.default_rng(1).normal(size=(3, SIDE_PX, SIDE_PX)).astype(np.float32)


def _model(name: str, own_process: bool, slower: float) -> Model:
    return Model(
        name=name.replace(" ", "-"), title=name, runner=NAME, processor="none", source="-", revision="1",
        max_batch=BATCH, own_process=own_process, options={"slower": slower},
    )  # fmt: skip


def _install(folder: Path) -> None:
    """Write a package's entry point that names the runner, for the model's process."""
    info = folder / "simulated_device-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-device\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[penstock.runners]\n{NAME} = benchmarks.device:SPEC\n")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])


if __name__ == "__main__":
    main(sys.argv[1:])
