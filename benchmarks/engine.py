"""Overhead of the engine and sharing of a device: `python -m benchmarks.engine`.

The device is a runner that waits without using the processor, so that the benchmark measures the service, not a
network.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np
import structlog

from benchmarks.small_images import small_images
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import load_fake
from penstock.workers.engine.runners import Runners

#: One image or tile with arbitrary content.
IMAGE = Prompt({"pixels": np.zeros((3, 8, 8), np.float32)}, cost=64)
TILES, IMAGES = 529, 200
#: Images per burst, as in the test of the mixed load; a batch holds eight.
BURST, BATCH = 5, 8
PARTS = ("overhead", "mixed", "images")


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--batch-ms", type=float, default=20, help="duration of a batch in the mixed load")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    measured = {
        "overhead": overhead,
        "mixed": lambda: mixed_load(chosen.batch_ms / 1000),
        "images": small_images,
    }
    say("| what | figure | goal |\n| --- | --- | --- |")
    for part in chosen.parts or PARTS:
        for line in measured[part]():
            say(line)


def overhead() -> Iterator[str]:
    """Measure prompts on a runner that returns immediately."""
    for batch in (1, 8, 32):
        model = a_model(max_batch=batch)
        with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
            engine.load(model, check=_never)
            one = median(_per_prompt_us(engine, model, jobs=1, prompts=10_000) for _ in range(5))
            many = median(_per_prompt_us(engine, model, jobs=64, prompts=200) for _ in range(5))
            short = median(_per_prompt_us(engine, model, jobs=2000, prompts=1) for _ in range(5))
        figure = f"{one:.0f} / {many:.0f} us"
        yield f"| a prompt through the engine, batches of {batch}, one job / 64 jobs at a time | {figure} | < 100 us |"
        yield f"| a job of one prompt, batches of {batch}, 64 at a time | {short:.0f} us | |"


def _per_prompt_us(engine: BatchingEngine, model: Model, *, jobs: int, prompts: int) -> float:
    def job() -> None:
        for _ in engine.run(model, iter([IMAGE] * prompts), check=_never, cost=IMAGE.cost * prompts):
            pass

    with ThreadPoolExecutor(64) as pool:
        begun = time.perf_counter()
        for future in [pool.submit(job) for _ in range(jobs)]:
            future.result()
        return (time.perf_counter() - begun) / (jobs * prompts) * 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """Images that arrive in bursts, one burst per batch duration."""

    engine: BatchingEngine
    model: Model
    every_s: float

    def image_latencies_s(self) -> list[float]:
        """Return the seconds from arrival to output for each image."""
        with ThreadPoolExecutor(IMAGES) as pool:
            begun, coming = time.perf_counter(), []
            for burst in range(IMAGES // BURST):
                time.sleep(max(0.0, begun + burst * self.every_s - time.perf_counter()))
                coming += [pool.submit(self._one) for _ in range(BURST)]
            return sorted(future.result() for future in coming)

    def _one(self) -> float:
        begun = time.perf_counter()
        for _ in self.engine.run(self.model, iter([IMAGE]), check=_never, cost=IMAGE.cost):
            pass
        return time.perf_counter() - begun

    def scene(self, ended: threading.Event) -> None:
        """Run scenes one after the other while images arrive."""
        while not ended.is_set():
            for _ in self.engine.run(self.model, iter([IMAGE] * TILES), check=_never, cost=IMAGE.cost * TILES):
                if ended.is_set():
                    break


def mixed_load(step_s: float) -> Iterator[str]:
    """Measure single images alone and beside scenes, in batch durations."""
    with closing(BatchingEngine(Runners.of({"fake": load_fake}))) as engine:
        load = Load(engine, a_model(max_batch=BATCH, step_s=step_s), every_s=step_s)
        alone = load.image_latencies_s()
        ended = threading.Event()
        scene = threading.Thread(target=load.scene, args=(ended,))
        scene.start()
        beside = load.image_latencies_s()
        ended.set()
        scene.join()
    what = f"{IMAGES} images, {BURST} per batch of {BATCH} ({step_s * 1000:.0f} ms)"
    for name, found in (("alone", alone), (f"beside scenes of {TILES} tiles", beside)):
        p50, p95 = (found[round(share * len(found)) - 1] / step_s for share in (0.5, 0.95))
        more = f" ({p95 - alone[round(0.95 * len(alone)) - 1] / step_s:+.1f})"
        yield f"| {what}, {name}: p50 / p95 | {p50:.1f} / {p95:.1f}{more} batches | <= +2 |"


def a_model(*, max_batch: int, step_s: float = 0.0) -> Model:
    """Return a model that returns its input."""
    return Model(
        name="echo", title="Echo", runner="fake", processor="none", source="-", revision="1",
        max_batch=max_batch, options={"step_s": step_s},
    )  # fmt: skip


def say(line: str) -> None:
    """Print a line immediately, because the benchmark takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _never() -> None:
    """Check for cancellation that never cancels."""


if __name__ == "__main__":
    main(sys.argv[1:])
