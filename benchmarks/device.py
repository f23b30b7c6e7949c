"""The pipeline beside min(device alone, decoding on all cores): `python -m benchmarks.device [tiles] [pictures]`.

The device is simulated: a step sleeps for as long as its prompts take, so that the device leaves the processor free.
Tiles are those of scenes of six bands of uint16, classes only, as many scenes at a time as there are cores, read and
normalised by IO processes; decoding is the same without a device. Pictures lie ready, one per job. Rates begin with the
first step and end with the last.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.scenery import record, write_scene
from penstock.config import Settings
from penstock.intake.local_media import LocalMedia
from penstock.local.installation import processing_here
from penstock.models import Model, read_catalogue
from penstock.processors.base import Output, Prompt
from penstock.processors.prompt_names import REDUCED
from penstock.workers.engine.base import Done, shapes_of
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import Processing, Work

PARTS = ("tiles", "pictures")
TILES_S, PICTURES_S = (1, 10, 100, 1000), (10, 100, 1000, 5000)
CORES = os.cpu_count() or 1
#: Jobs of one picture at a time, and pictures of a batch.
JOBS, BATCH = 64, 32
#: Tiles of 128 px with 16 px of halo: small, so that two cores can make hundreds per second.
CUT = "tile_px = 128\nhalo_px = 16\nstride_px = 16"
PICTURE = Prompt({"pixels": np.zeros((3, 224, 224), np.float32)}, cost=224 * 224)
GOAL = ">= 0.90"


@dataclass
class Device:
    """A runner whose steps take the same time for each prompt, and do nothing else."""

    speed: float
    max_batch: int
    memory_bytes: int = 0
    takes_numbers: bool = True
    steps: list[tuple[float, float, int]] = field(default_factory=list)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shapes."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's shape."""
        shape: tuple[int, ...] = prompt.data["pixels"].shape
        return shape

    def step(self, states: Sequence[tuple[int, ...]]) -> Sequence[Done]:
        """Sleep, and answer with class 0 everywhere."""
        begun = time.perf_counter()
        time.sleep(len(states) / self.speed)
        answers = [Done(Output({REDUCED: np.zeros((1, *shape[1:]), np.uint8)})) for shape in states]
        self.steps.append((begun, time.perf_counter(), len(states)))
        return answers

    def close(self) -> None:
        """Free nothing."""

    @property
    def rate(self) -> float:
        """Prompts per second from the first step to the last."""
        return sum(size for _, _, size in self.steps) / (self.steps[-1][1] - self.steps[0][0])


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--speeds", nargs="*", type=int, default=[], help="prompts per second (default: several)")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say("| device alone | decoding | pipeline | of the slower | processor time | goal |")
    say("| --- | --- | --- | --- | --- | --- |")
    for part in chosen.parts or PARTS:
        for line in {"tiles": tiles, "pictures": pictures}[part](chosen.speeds):
            say(line)


def tiles(speeds: Sequence[int] = ()) -> Iterator[str]:
    """Measure scenes on devices of several speeds, each beside decoding, which is measured again in between."""
    with tempfile.TemporaryDirectory(prefix="bench-device-") as name:
        folder = Path(name)
        model = model_in(folder)
        scenes = {size: write_scene(folder / f"{size}.tif", size) for size in (512, 1024, 4096)}
        with closing(processing_here(Settings(), isolated=True)) as processing:
            all_at_once(lambda number: drain(processing, model, scenes[512], folder / f"first-{number}"))
            for speed in speeds or TILES_S:
                scene = scenes[512 if speed == 1 else 1024 if speed == 10 else 4096]
                decoding = decoding_of(processing, model, scenes[4096], folder)
                gc.collect()  # a first full pass, over everything imported, is no tile's price
                device, spent_s = through(processing, model, scene, folder / str(speed), speed)
                yield row("tiles", speed, decoding, device, spent_s)


def model_in(folder: Path) -> Model:
    """Return a model of small tiles."""
    catalogue = folder / "models.toml"
    catalogue.write_text(record("device", runner="fake", source=folder, max_batch=4, cut=CUT))
    return read_catalogue(catalogue)["device"]


def decoding_of(processing: Processing, model: Model, scene: Path, folder: Path) -> float:
    """Return the tiles per second of all cores without a device."""
    counts: list[int] = []
    seconds = all_at_once(lambda n: counts.append(drain(processing, model, scene, folder / f"decoding-{n}")))
    return sum(counts) / seconds


def drain(processing: Processing, model: Model, scene: Path, out: Path) -> int:
    """Draw all prompts of a scene, and return their number."""
    with processing.open(work_of(model, scene, out), check=_never, say=_say) as session:
        return sum(1 for _ in session.prompts)


def through(
    processing: Processing, model: Model, scene: Path, out: Path, speed: float
) -> tuple[Device, float]:  # fmt: skip
    """Return the device after scenes, and this process's seconds of processor time per tile."""
    device = Device(speed, model.max_batch)
    with closing(BatchingEngine(Runners.of({"fake": lambda _: device}))) as engine:

        def one(number: int) -> None:
            with processing.open(work_of(model, scene, out / str(number)), check=_never, say=_say) as session:
                session.finish(engine.run(model, session.prompts, check=_never, cost=session.cost))

        begun_s = time.process_time()
        all_at_once(one)
    return device, (time.process_time() - begun_s) / sum(size for _, _, size in device.steps)


def work_of(model: Model, scene: Path, out: Path) -> Work:
    """Return the job that maps the classes of a scene."""
    out.mkdir(parents=True, exist_ok=True)
    return Work(model, {"scene": "media://scene", "outputs": ["classes"]}, {"media://scene": LocalMedia(scene)}, out)


def pictures(speeds: Sequence[int] = ()) -> Iterator[str]:
    """Measure jobs of one ready picture on devices of several speeds."""
    for speed in speeds or PICTURES_S:
        device = Device(speed, BATCH)
        model = Model(
            name="pictures", title="Pictures", runner="fake", processor="none", source="-", revision="1",
            max_batch=BATCH,
        )  # fmt: skip
        each = max(4, 5 * speed // JOBS)
        with closing(BatchingEngine(Runners.of({"fake": lambda _, device=device: device}))) as engine:

            def one(_: int, engine: BatchingEngine = engine, model: Model = model, each: int = each) -> None:
                for _ in range(each):
                    for _ in engine.run(model, iter([PICTURE]), check=_never, cost=PICTURE.cost, ready=True):
                        pass

            gc.collect()  # a first full pass, over everything imported, is no prompt's price
            begun_s = time.process_time()
            all_at_once(one, JOBS)
            spent_s = (time.process_time() - begun_s) / (JOBS * each)
        yield row("pictures", speed, None, device, spent_s)


def row(what: str, speed: float, decoding: float | None, device: Device, spent_s: float) -> str:
    """Return a line of the table."""
    slower = speed if decoding is None else min(speed, decoding)
    made = "ready" if decoding is None else f"{decoding:.0f}/s"
    rate = f"{device.rate:.0f}/s" if device.rate > 20 else f"{device.rate:.2f}/s"
    return f"| {speed:g} {what}/s | {made} | {rate} | {device.rate / slower:.2f} | {spent_s * 1e6:.0f} us | {GOAL} |"


def all_at_once(work: Callable[[int], Any], count: int = CORES) -> float:
    """Return the seconds of a task in concurrent threads."""
    with ThreadPoolExecutor(count) as pool:
        begun = time.perf_counter()
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()
        return time.perf_counter() - begun


def say(line: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _never() -> None:
    """Check for cancellation that never cancels."""


def _say(_: str) -> None:
    """Ignore an event."""


if __name__ == "__main__":
    main(sys.argv[1:])
