"""The engine with a simulated device: `python -m benchmarks.engine [tiles] [pictures] [mixed]`.

A step of the device sleeps for as long as its prompts take, so that it leaves the processor free. `tiles`: scenes of
six bands of uint16, classes only, as many at a time as there are cores, read and normalised by IO processes, beside the
slower of the device and of decoding without a device. `pictures`: jobs of one ready picture beside the device. Rates
begin with the first step and end with the last. `mixed`: single images alone and beside scenes.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import structlog

from benchmarks.measuring import all_at_once, machine, never, say
from benchmarks.peers.figures import percentile
from benchmarks.scenery import record, write_scene
from penstock.catalogue.records import read_catalogue
from penstock.config import Settings
from penstock.intake.local_media import LocalMedia
from penstock.local.installation import processing_here
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.prompt_names import REDUCED
from penstock.workers.engine.base import Done, shapes_of
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import Processing, Work

#: Prompts per second of the devices.
TILES_S, PICTURES_S = 1000, (1000, 5000)
CORES = os.cpu_count() or 1
#: Jobs of one picture at a time, and pictures of a batch.
JOBS, BATCH = 64, 32
#: Tiles of 128 px with 16 px of halo: small, so that two cores can make hundreds per second.
CUT = "tile_px = 128\nhalo_px = 16\nstride_px = 16"
PICTURE = Prompt({"pixels": np.zeros((3, 224, 224), np.float32)}, cost=224 * 224)
#: The mixed load: one image or tile, tiles of a scene, images, images per burst, size and seconds of a batch.
IMAGE = Prompt({"pixels": np.zeros((3, 8, 8), np.float32)}, cost=64)
SCENE_TILES, IMAGES, BURST, MIXED_BATCH, BATCH_S = 529, 200, 5, 8, 0.02


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
    measured: dict[str, Callable[[], Iterator[str]]] = {"tiles": tiles, "pictures": pictures, "mixed": mixed_load}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*measured, []], help="parts to measure (default: all)")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say(f"{machine()}\n\n| what | figure | ratio | goal |\n| --- | --- | --- | --- |")
    for part in chosen.parts or measured:
        for line in measured[part]():
            say(line)


def tiles() -> Iterator[str]:
    """Measure scenes on a fast device beside decoding without a device."""
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as name:
        folder = Path(name)
        catalogue = folder / "models.toml"
        catalogue.write_text(record("device", runner="fake", source=folder, max_batch=4, cut=CUT))
        model = read_catalogue(catalogue)["device"]
        small, scene = (write_scene(folder / f"{size}.tif", size) for size in (512, 4096))
        with closing(processing_here(Settings(), isolated=True)) as processing:
            all_at_once(lambda number: _drain(processing, model, small, folder / f"first-{number}"), CORES)
            decoding = _decoding_rate(processing, model, scene, folder)
            device = _through(processing, model, scene, folder / "through", TILES_S)
        figure = f"decoding {decoding:.0f}/s, pipeline {device.rate:.3g}/s"
        yield f"| a device of {TILES_S} tiles/s | {figure} | {device.rate / min(TILES_S, decoding):.2f} | >= 0.90 |"


def _decoding_rate(processing: Processing, model: Model, scene: Path, folder: Path) -> float:
    """Return the tiles per second of all cores without a device."""
    counts: list[int] = []
    seconds = all_at_once(lambda n: counts.append(_drain(processing, model, scene, folder / f"decoding-{n}")), CORES)
    return sum(counts) / seconds


def _drain(processing: Processing, model: Model, scene: Path, out: Path) -> int:
    """Draw all prompts of a scene, and return their number."""
    with processing.open(work_of(model, scene, out), check=never, say=ignore) as session:
        return sum(1 for _ in session.prepared.prompts)


def _through(processing: Processing, model: Model, scene: Path, out: Path, speed: float) -> Device:
    """Return the device after as many scenes at a time as there are cores."""
    device = Device(speed, model.max_batch)
    with closing(BatchingEngine(Runners.of({"fake": lambda _: device}))) as engine:
        all_at_once(lambda number: run_scene(processing, engine, model, scene, out / str(number)), CORES)
    return device


def run_scene(processing: Processing, engine: BatchingEngine, model: Model, scene: Path, out: Path) -> None:
    """Map the classes of a scene with an engine and the IO processes, without the queue."""
    with processing.open(work_of(model, scene, out), check=never, say=ignore) as session:
        session.finish(engine.run(model, session.prepared.prompts, check=never, cost=session.prepared.cost))


def work_of(model: Model, scene: Path, out: Path) -> Work:
    """Return the job that maps the classes of a scene."""
    out.mkdir(parents=True, exist_ok=True)
    return Work(model, {"scene": "media://scene", "outputs": ["classes"]}, {"media://scene": LocalMedia(scene)}, out)


def pictures() -> Iterator[str]:
    """Measure jobs of one ready picture on devices of several speeds."""
    for speed in PICTURES_S:
        device, each = Device(speed, BATCH), max(4, 5 * speed // JOBS)
        with closing(BatchingEngine(Runners.of({"fake": lambda _, device=device: device}))) as engine:
            all_at_once(lambda _, engine=engine, each=each: _run_pictures(engine, each), JOBS)
        ratio = device.rate / speed
        yield f"| a device of {speed} pictures/s, {JOBS} jobs of one | {device.rate:.3g}/s | {ratio:.2f} | >= 0.90 |"


def _run_pictures(engine: BatchingEngine, count: int) -> None:
    model = echo(BATCH)
    for _ in range(count):
        for _ in engine.run(model, iter([PICTURE]), check=never, cost=PICTURE.cost, ready=True):
            pass


def mixed_load() -> Iterator[str]:
    """Measure single images alone and beside scenes, in batch durations."""
    device = Device(MIXED_BATCH / BATCH_S, MIXED_BATCH)
    with closing(BatchingEngine(Runners.of({"fake": lambda _: device}))) as engine:
        alone = _image_latencies_s(engine)
        ended = threading.Event()
        scene = threading.Thread(target=_run_tiles, args=(engine, ended))
        scene.start()
        beside = _image_latencies_s(engine)
        ended.set()
        scene.join()
    for name, found in (("alone", alone), (f"beside scenes of {SCENE_TILES} tiles", beside)):
        p50, p95 = (percentile(found, share) / BATCH_S for share in (0.5, 0.95))
        more = p95 - percentile(alone, 0.95) / BATCH_S
        what = f"{IMAGES} images, {BURST} per batch of {MIXED_BATCH}, {name}"
        yield f"| {what} | p50 / p95 {p50:.1f} / {p95:.1f} batches | {more:+.1f} batches | <= +2 |"


def _image_latencies_s(engine: BatchingEngine) -> list[float]:
    """Return the seconds from arrival to output of images that arrive in bursts, one for each batch."""

    def one() -> float:
        begun = time.perf_counter()
        for _ in engine.run(echo(MIXED_BATCH), iter([IMAGE]), check=never, cost=IMAGE.cost):
            pass
        return time.perf_counter() - begun

    with ThreadPoolExecutor(IMAGES) as pool:
        begun, coming = time.perf_counter(), []
        for burst in range(IMAGES // BURST):
            time.sleep(max(0.0, begun + burst * BATCH_S - time.perf_counter()))
            coming += [pool.submit(one) for _ in range(BURST)]
        return [future.result() for future in coming]


def _run_tiles(engine: BatchingEngine, ended: threading.Event) -> None:
    """Run scenes one after the other while images arrive."""
    while not ended.is_set():
        prompts = iter([IMAGE] * SCENE_TILES)
        for _ in engine.run(echo(MIXED_BATCH), prompts, check=never, cost=IMAGE.cost * SCENE_TILES):
            if ended.is_set():
                break


def echo(max_batch: int) -> Model:
    """Return a model of the simulated device."""
    return Model(
        name="echo", title="Echo", runner="fake", processor="none", source="-", revision="1", max_batch=max_batch
    )  # fmt: skip


def ignore(_: str) -> None:
    """Ignore an event."""


if __name__ == "__main__":
    main(sys.argv[1:])
