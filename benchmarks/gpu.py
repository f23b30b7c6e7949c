"""Utilisation of a GPU compared with bare torch: `python -m benchmarks.gpu [PART ...]`.

`scenes`: with the engine and IO processes, without the queue, one and several at a time, compared with the loop of
`bare_scene`. `tiles`: prepared prompts in memory, compared with the network alone on data that is on the device.
`images` and `text`: jobs of one image or text each; images inside the worker and in a process of the model's own, texts
token by token. `contexts`: the memory of a process beside its weights. All networks except
csmask have random weights. A busy share is the part of the time between first and last step in which a step ran.
Without a GPU, `text` runs a network of 90 million parameters on one thread of the CPU.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import structlog
import torch
import transformers

from benchmarks import gpu_models
from benchmarks.engine import run_scene
from benchmarks.measuring import all_at_once, in_turns, machine, median_ratio, never, say
from benchmarks.scene import Bench, run_bare
from benchmarks.scenery import MEAN, STD
from penstock.catalogue.records import read_catalogue
from penstock.config import Settings
from penstock.local.installation import processing_here
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.prompt_names import PIXELS, RADIOMETRY, REDUCE, VALID
from penstock.processors.reductions import Reduction
from penstock.workers.engine.base import Runner, Step
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.memory import CONTEXT_BYTES
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.program import ProgramRunner
from penstock.workers.processing import Processing

#: Concurrent scenes.
SEVERAL = 4
PARTS = ("scenes", "tiles", "images", "contexts", "text")
#: Concurrent jobs of images and texts.
IMAGE_JOBS, TEXT_JOBS = 64, (1, 8, 32)
NEW_TOKENS, TURNS = 64, 3


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure (default: all)")
    parser.add_argument("--size", type=int, default=10_980, help="size of the scenes in pixels")
    parser.add_argument("--networks", nargs="*", choices=gpu_models.SCENES, default=gpu_models.SCENES, help="of scenes")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to test this program on a CPU")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    say(f"{machine()}, {device}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    names = chosen.networks
    measured = {
        "scenes": partial(scenes, names=names), "tiles": partial(tiles, names=names), "images": images,
        "contexts": contexts, "text": text,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), 512 if chosen.quick else chosen.size, 0, (0, 0), 1)
        gpu_models.write_catalogue(bench.catalogue, bench.folder, small=chosen.quick)
        say("| what | here | bare | figure |\n| --- | --- | --- | --- |")
        for part in chosen.parts or PARTS:
            for line in measured[part](bench):
                say(line)
            gc.collect()


@dataclass
class Watch:
    """Recorder of the steps of runners."""

    steps: list[tuple[float, float]] = field(default_factory=list)

    def engine(self) -> BatchingEngine:
        """Return an engine whose runners are watched."""
        runners = Runners.installed()

        def watched(model: Model) -> Any:
            return _Watched(runners.load(model), self.steps)

        return BatchingEngine(Runners.of(dict.fromkeys(runners.specs, watched)))

    @property
    def busy(self) -> float:
        """Busy share: part of the time between first and last step in which a step ran."""
        return sum(stop - start for start, stop in self.steps) / (self.steps[-1][1] - self.steps[0][0])


class _Watched:
    def __init__(self, runner: Runner, steps: list[tuple[float, float]]) -> None:
        self._runner, self._steps = runner, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        begun = time.perf_counter()
        done = self._runner.step(states)
        self._steps.append((begun, time.perf_counter()))
        return done


def scenes(bench: Bench, names: Sequence[str]) -> Iterator[str]:
    """Measure scenes: one alone, then several concurrently."""
    models = read_catalogue(bench.catalogue)
    small, scene = bench.scene("small", 1024), bench.scene("whole", bench.size_px)
    for name in names:
        bare, watch = run_bare(bench, name, scene), Watch()
        theirs = f"{bare['seconds']:.1f} s, busy {bare['busy_s'] / bare['seconds']:.2f}"
        with closing(watch.engine()) as engine, closing(processing_here(Settings(), isolated=True)) as processing:
            _scenes(engine, processing, models[name], [small], bench.folder)
            for count in (1, SEVERAL):
                watch.steps.clear()
                seconds = _scenes(engine, processing, models[name], [scene] * count, bench.folder) / count
                here = f"{seconds:.1f} s each, {bench.size_px**2 / seconds / 1e6:.0f} Mpx/s"
                ratio = f"{seconds / bare['seconds']:.2f} of it, device busy {watch.busy:.2f}"
                yield f"| {name}, {bench.size_px} px, {count} at a time | {here} | {theirs} | {ratio} |"


def _scenes(engine: BatchingEngine, processing: Processing, model: Model, files: Sequence[Path], folder: Path) -> float:
    """Return the total seconds of the scenes."""
    out = Path(tempfile.mkdtemp(dir=folder))
    one = lambda number: run_scene(processing, engine, model, files[number], out / str(number))  # noqa: E731
    return all_at_once(one, len(files))


def tiles(bench: Bench, names: Sequence[str]) -> Iterator[str]:
    """Measure prepared prompts: several jobs of tiles that reuse the memory of their tiles."""
    models = read_catalogue(bench.catalogue)
    side, count, jobs = gpu_models.TILE_PX, 100, 4
    tile = np.random.default_rng(1).normal(size=(6, side, side)).astype(np.float32)
    for name in names:
        bare_s, watch = _bare(models[name], tile), Watch()
        with closing(watch.engine()) as engine:
            run = _prompts(engine, models[name], _numbers(side))
            all_at_once(lambda _, run=run: run(2 * count // 5), jobs)
            watch.steps.clear()
            seconds = all_at_once(lambda _, run=run: run(count), jobs) / (jobs * count)
        here = f"{seconds * 1000:.2f} ms a tile, in a step {watch.busy:.2f} of the time"
        working = f"network at work {bare_s / seconds:.2f} of the time"
        yield f"| {name}, ready tiles of {side} px | {here} | {bare_s * 1000:.2f} ms | {working} |"


def _numbers(side: int) -> Prompt:
    """Return a tile as a scene's job sends it for a map of classes: six bands of uint16, a mask and the radiometry."""
    numbers = np.random.default_rng(1).integers(1, 6000, (6, side, side), dtype=np.uint16)
    bands = np.float64([1e-4, 0.0, MEAN, STD])[:, None].repeat(6, axis=1)
    data = {PIXELS: numbers, VALID: np.ones((side, side), bool), RADIOMETRY: bands, REDUCE: Reduction.CLASSES.value}
    return Prompt(data, cost=numbers.size)


def _prompts(engine: BatchingEngine, model: Model, prompt: Prompt, **how: bool) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in engine.run(model, iter([prompt] * count), check=never, **how):
            pass

    return run


def _bare(model: Model, tile: Any) -> float:
    """Return the seconds per tile in full batches with input and output on the device."""
    with closing(Runners.installed().load_here(model)) as runner:
        device: Any = runner.device if isinstance(runner, ProgramRunner) else getattr(runner, "_device")  # noqa: B009
        module: Any = runner.module if isinstance(runner, ProgramRunner) else getattr(runner, "_module")  # noqa: B009
        batch = torch.from_numpy(np.stack([tile] * runner.max_batch)).to(device.device)
        batch = batch.contiguous(memory_format=torch.channels_last)

        def forward(times: int) -> float:
            begun = time.perf_counter()
            with device.running():
                for _ in range(times):
                    module(batch)
            _synchronize()
            return (time.perf_counter() - begun) / times / len(batch)

        forward(5)
        return forward(40)


def images(bench: Bench) -> Iterator[str]:
    """Measure jobs of one prepared image each in turns, inside the worker and in a process of the model's own."""
    quick = bench.size_px <= 512
    each, batches = (1, 1) if quick else (40, 20)
    for name in gpu_models.IMAGE_MODELS[: 1 if quick else None]:
        model = read_catalogue(bench.catalogue)[name]
        pixels = np.random.default_rng(1).normal(size=(3, 224, 224)).astype(np.float32)
        with ExitStack() as stack:
            bare = stack.enter_context(closing(Runners.installed().load_here(model)))
            measures: dict[str, Callable[[], float]] = {"bare": partial(_bare_rate, bare, pixels, batches)}
            for own, place in ((False, "inside the worker"), (True, "in a process of its own")):
                placed = model.model_copy(update={"own_process": own})
                engine = stack.enter_context(closing(BatchingEngine(Runners.installed())))
                run = _prompts(engine, placed, Prompt({"pixels": pixels}, cost=pixels.size), ready=True)
                _one_by_one(run, 1 if quick else 20)
                measures[place] = partial(_rate, run, each)
            rates = in_turns(measures, 1 if quick else TURNS)
        theirs = rates.pop("bare")
        for place, ours in rates.items():
            what = f"{name}, images of 224 px, {IMAGE_JOBS} jobs of one at a time, {place}"
            ratio = median_ratio(ours, theirs)
            yield f"| {what} | {median(ours):.0f}/s | {median(theirs):.0f}/s | {ratio:.2f} of it |"


def contexts(bench: Bench) -> Iterator[str]:
    """Measure the device memory that a model's process takes beside its weights."""
    if not torch.cuda.is_available():
        return
    model = read_catalogue(bench.catalogue)[gpu_models.IMAGE_MODELS[0]].model_copy(update={"own_process": True})
    free, _ = torch.cuda.mem_get_info()
    with closing(Runners.installed().load(model)) as runner:
        taken = free - torch.cuda.mem_get_info()[0]
        beside = taken - (runner.memory_bytes - CONTEXT_BYTES)
    yield f"| a model's process beside its weights | {beside / 2**20:.0f} MiB | {CONTEXT_BYTES / 2**20:.0f} MiB | |"


def _rate(run: Callable[[int], None], each: int) -> float:
    return IMAGE_JOBS * each / _one_by_one(run, each)


def _one_by_one(run: Callable[[int], None], each: int) -> float:
    """Return the seconds for concurrent clients that each wait for one image before the next."""
    return all_at_once(lambda _: [run(1) for _ in range(each)], IMAGE_JOBS)


def _bare_rate(runner: Any, pixels: Any, batches: int) -> float:
    """Return the images per second from array in memory to scores, in full batches one after the other."""
    batch = torch.from_numpy(np.stack([pixels] * runner.max_batch))

    def loop(times: int) -> float:
        begun = time.perf_counter()
        with runner.device.running():
            for _ in range(times):
                runner.network(pixel_values=batch.to(runner.device.device)).logits.float().cpu()
        return times * len(batch) / (time.perf_counter() - begun)

    loop(1)
    return loop(batches)


def text(bench: Bench) -> Iterator[str]:
    """Measure texts in turns: token by token, and by the library's `generate` of all of them in one batch."""
    model = read_catalogue(bench.catalogue)["llama"]
    ids = np.arange(5, 5 + 32, dtype=np.int64)
    prompt = Prompt({"input_ids": ids, "max_new_tokens": NEW_TOKENS}, cost=1)
    network = transformers.AutoModelForCausalLM.from_pretrained(model.source, dtype=gpu_models.TEXT_DTYPE)
    network = network.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    with closing(BatchingEngine(Runners.installed())) as engine:
        for jobs in TEXT_JOBS:
            engine.load(model, check=never)
            measures: dict[str, Callable[[], float]] = {
                "bare": partial(_generated, network, ids, jobs),
                "ours": partial(_engine_rate, _prompts(engine, model, prompt, ready=True), jobs),
            }
            rates = {name: median(found[1:]) for name, found in in_turns(measures, 1 + TURNS).items()}
            bare, rate = rates["bare"], rates["ours"]
            what = f"llama of {gpu_models.weights(model) / 1e9:.1f} GB, {jobs} texts at a time, token by token"
            yield f"| {what} | {rate:.0f} tokens/s | {bare:.0f} tokens/s | {rate / bare:.2f} of it |"


def _engine_rate(run: Callable[[int], None], jobs: int) -> float:
    return jobs * NEW_TOKENS / all_at_once(lambda _: run(1), jobs)


def _generated(network: Any, ids: Any, texts: int) -> float:
    """Return the tokens per second of the library's `generate` with all texts in one batch."""
    batch = torch.from_numpy(ids)[None].repeat(texts, 1).to(network.device)
    how = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    begun = time.perf_counter()
    network.generate(batch, attention_mask=torch.ones_like(batch), **how)
    _synchronize()
    return texts * NEW_TOKENS / (time.perf_counter() - begun)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
