"""Batches that a warm-up measured, beside the largest that fit: `python -m benchmarks.batches`.

Pictures lie ready, one per job, with twice as many jobs at a time as the largest batch has room for. Both engines take
turns in one run; medians. Simulated devices sleep; the network is a small vision transformer of random weights on the
CPU.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import structlog
import transformers

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, shapes_of
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners

#: Largest batch, jobs at a time, and rounds.
BATCH, JOBS, ROUNDS = 32, 64, 5
PICTURE = Prompt({"pixels": np.zeros((3, 224, 224), np.float32)}, cost=224 * 224)
#: Seconds of a step by the number of its pictures.
DEVICES: dict[str, Callable[[int], float]] = {
    "full from 8 pictures on, 1,000/s": lambda size: max(size, 8) / 1000,
    "the same time for each picture, 1,000/s": lambda size: size / 1000,
    "slower above 8 pictures, 1,000/s": lambda size: size * (1 + max(0, size - 8) / 32) / 1000,
}


@dataclass
class Device:
    """A runner that sleeps for the time of its batch."""

    seconds: Callable[[int], float]
    max_batch: int = BATCH
    memory_bytes: int = 0

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes."""
        return shapes_of(prompt)

    def admit(self, _: Prompt) -> None:
        """Keep nothing."""

    def step(self, states: Sequence[None]) -> Sequence[Done]:
        """Sleep, and answer with nothing."""
        time.sleep(self.seconds(len(states)))
        return [Done(Output({}))] * len(states)

    def close(self) -> None:
        """Free nothing."""


def main() -> None:
    """Measure and print a table in Markdown."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say("| device | batch | measured in | pictures/s, 32 | pictures/s, measured | ratio | mean time of a job |")
    say("| --- | --- | --- | --- | --- | --- | --- |")
    for line in rows():
        say(line)


def rows() -> Iterator[str]:
    """Yield the table's lines."""
    for name, seconds in DEVICES.items():
        runners = Runners.of({"fake": lambda _, seconds=seconds: Device(seconds)})
        yield row(name, runners, _model("fake", Path("-")), each=20)
    with tempfile.TemporaryDirectory(prefix="bench-batches-") as folder:
        config = transformers.ViTConfig(
            hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768
        )
        transformers.ViTForImageClassification(config).save_pretrained(folder)
        yield row("vision transformer on the CPU", Runners.installed(), _model("transformers", Path(folder)), each=2)


def row(name: str, runners: Runners, model: Model, *, each: int) -> str:
    """Measure a device and return its line."""
    with closing(BatchingEngine(runners)) as largest, closing(BatchingEngine(runners)) as measured:
        for engine in (largest, measured):
            engine.fill(model, PICTURE, check=_never)
        begun = time.perf_counter()
        batch = measured.measure(model, PICTURE, BATCH, within_s=60, check=_never)
        took_s = time.perf_counter() - begun
        rates: dict[BatchingEngine, list[float]] = {largest: [], measured: []}
        for _ in range(ROUNDS):
            for engine in rates:
                rates[engine].append(_rate(engine, model, each))
    before, after = (median(rates[engine]) for engine in rates)
    waits = f"{JOBS / before * 1e3:.0f} -> {JOBS / after * 1e3:.0f} ms"
    return f"| {name} | {batch} | {took_s:.2f} s | {before:.0f} | {after:.0f} | {after / before:.2f} | {waits} |"


def _rate(engine: BatchingEngine, model: Model, each: int) -> float:
    """Return the pictures per second of jobs that begin one after the other in each of `JOBS` threads."""

    def work(_: int) -> None:
        for _ in range(each):
            for _ in engine.run(model, iter([PICTURE]), check=_never, cost=PICTURE.cost, ready=True):
                pass

    with ThreadPoolExecutor(JOBS) as pool:
        begun = time.perf_counter()
        list(pool.map(work, range(JOBS)))
        return JOBS * each / (time.perf_counter() - begun)


def _model(runner: str, source: Path) -> Model:
    return Model(
        name="pictures", title="Pictures", runner=runner, processor="image-classification", source=str(source),
        revision="1", device="cpu", max_batch=BATCH, measure_batch=True,
    )  # fmt: skip


def say(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _never() -> None:
    """Check for cancellation that never cancels."""


if __name__ == "__main__":
    main()
