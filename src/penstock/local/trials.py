"""The trials of `penstock models tune`: each candidate runs in a new process, which makes its peak memory measurable.

`python -m penstock.local.trials` reads an `Order` from standard input, measures it and prints a trial as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import count, repeat
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from penstock.cores import cores
from penstock.errors import ConfigError, PenstockError
from penstock.local.precision import WITH_DTYPE
from penstock.local.tuning import Candidate, Space, Trial, batch_sizes, thread_counts, tile_sizes, tuned
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.registry import Registry
from penstock.workers.engine.cpu_passes import let_threads_sleep, use_huge_pages
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.processing import InThread
from penstock.workers.warmup import LargestPrompt

#: Seconds between two measurements of a trial's memory.
_POLL_EVERY_S = 0.05
#: Prompts of a trial, at least: the first of them fill caches.
_LEAST_PROMPTS = 3


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiling of a raster model."""

    halo_px: int
    stride_px: int
    #: Overlap of tiles for `hann`; None for `halo`.
    overlap_px: int | None

    @classmethod
    def of(cls, model: Model) -> Tiles | None:
        """Return the tiling of a model; None for one without tiles. Raises `ConfigError` for wrong options."""
        if model.processor not in ("raster-regression", "raster-segmentation"):
            return None
        from penstock.processors.geo.options import RegressionOptions, SegmentationOptions, read_options

        kind = RegressionOptions if model.processor == "raster-regression" else SegmentationOptions
        options = read_options(model, kind)
        return cls(options.halo_px, options.stride_px, options.least_overlap_px)

    def input_px(self, tile_px: int) -> int:
        """Return the side of the network's input."""
        return tile_px + 2 * self.halo_px

    def map_px(self, tile_px: int) -> int:
        """Return the side of the part of a map that each tile adds."""
        return tile_px - (self.overlap_px or 0)


def space_of(model: Model) -> Space:
    """Return the settings to measure for a model with a local source."""
    tiles, tile_px = Tiles.of(model), None
    sizes: tuple[int, ...] = ()
    if tiles is not None:
        tile_px = int(model.options.get("tile_px", 512))
        # With `hann` the tile is the whole input of a network that was trained on this size.
        sizes = (tile_px,) if tiles.overlap_px is not None else tile_sizes(tile_px, tiles.halo_px, tiles.stride_px)
        sizes = tuple(size for size in sizes if size == tile_px or _takes(model, tiles.input_px(size)))
    on_gpu = _on_gpu(model)
    processors = cores()
    own = _threads(model, processors)
    threads = (processors,) if on_gpu else tuple(sorted({own, *thread_counts(processors)}))
    start = Candidate(tile_px, model.max_batch, own, model.dtype)
    dtypes = ("float32", "bfloat16") if has_bfloat16(on_gpu=on_gpu) and model.runner in WITH_DTYPE else (model.dtype,)
    return Space(start, sizes, batch_sizes(model.max_batch), threads, dtypes)


def has_threads(model: Model) -> bool:
    """Return True if the threads of a pass are an option of the model's record; else they are the worker's."""
    return model.runner == "torch" and not _on_gpu(model)


def _threads(model: Model, processors: int) -> int:
    """Return the threads of a pass today; raise `ModelUnavailable` for an option that is no number of threads."""
    if not has_threads(model):
        return processors
    from penstock.workers.engine.torch.passes import threads_of

    return threads_of(model) or processors


#: Flags of processors that multiply matrices of bfloat16 in hardware: x86 and Arm.
_BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}


def has_bfloat16(*, on_gpu: bool, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if the device computes bfloat16 natively; elsewhere it is slower than float32."""
    if on_gpu:
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    with suppress(OSError):
        for line in cpuinfo.read_text().splitlines():
            if line.lower().startswith(("flags", "features")):
                return bool(_BFLOAT16_FLAGS & set(line.split()))
    return False


def measure(model: Model, candidate: Candidate, *, seconds: float, memory_bytes: int) -> Trial:
    """Measure a candidate in a new process; return the trial, with any failure as its `problem`.

    A process on the CPU that takes more than `memory_bytes` is killed.
    """
    with_threads = has_threads(model)
    record = tuned(model, candidate, with_threads=with_threads)
    order = {"model": record.model_dump(mode="json"), "candidate": asdict(candidate)}
    threads = cores() if with_threads else candidate.threads
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    let_threads_sleep(environment)  # as in a worker
    use_huge_pages(environment)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.local.trials"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, env=environment,
        )  # fmt: skip
        with process:
            try:
                peak_bytes = _watch(process, json.dumps(order | {"seconds": seconds}), memory_bytes, _on_gpu(model))
            except BaseException:
                process.kill()
                raise
            if peak_bytes is not None:
                return Trial(candidate, peak_bytes=peak_bytes, problem="takes more memory")
            output = process.stdout.read() if process.stdout else b""
        errors.seek(0)
        return _trial(candidate, output, errors.read().decode(errors="replace"), process.returncode)


def _watch(process: subprocess.Popen[bytes], order: str, memory_bytes: int, on_gpu: bool) -> int | None:
    """Wait for the end of a process; kill it above the memory, and return its bytes then."""
    assert process.stdin is not None  # noqa: S101  (it is a pipe)
    with suppress(BrokenPipeError):  # it has ended, and says why
        process.stdin.write(order.encode())
        process.stdin.close()
    seen = psutil.Process(process.pid)
    while True:
        try:
            process.wait(_POLL_EVERY_S)
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                if not on_gpu and (held := seen.memory_info().rss) > memory_bytes:
                    process.kill()
                    return int(held)
        else:
            return None


def _trial(candidate: Candidate, output: bytes, errors: str, status: int) -> Trial:
    if status == 0:
        return Trial(candidate, **json.loads(output.splitlines()[-1]))
    ended = f"its process was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with {status}"
    lines = [line for line in errors.splitlines() if line.strip()]
    last_line = lines[-1][:200] if lines else ""
    return Trial(candidate, problem=": ".join(filter(None, (ended if status < 0 or not lines else "", last_line))))


def run(model: Model, candidate: Candidate, *, seconds: float) -> dict[str, Any]:
    """Measure a candidate in this process: its largest prompt, again and again through the engine."""
    if (tiles := Tiles.of(model)) is not None and candidate.tile_px is not None:
        # The dummy scene is one tile without a halo: make that tile as large as an input with its halo.
        wide = {**model.options, "tile_px": tiles.input_px(candidate.tile_px)}
        dummy, unit = model.model_copy(update={"options": wide}), tiles.map_px(candidate.tile_px) ** 2
    else:
        dummy, unit = model, 1
    prompt = _prompt(dummy)
    with closing(BatchingEngine(Runners.installed())) as engine:
        engine.load(model, check=_never)
        batch = engine.fill(model, prompt, check=_never)
        _press(engine, model, prompt, seconds=0)
        prompts, took_s = _press(engine, model, prompt, seconds=seconds)
    return {"per_s": prompts * unit / took_s, "peak_bytes": _peak_bytes(model), "batch": batch}


def _prompt(model: Model) -> Prompt:
    """Return the largest prompt of the processor's dummy request."""
    processing = InThread(Registry.installed())
    with tempfile.TemporaryDirectory(prefix="penstock-tune-") as folder, closing(processing):
        work = processing.dummy(model, Path(folder) / "dummy")
        largest = LargestPrompt()
        with processing.open(work, check=_never, say=lambda _: None) as session:
            for _ in largest.watch(session.prepared.prompts):
                break
    if largest.prompt is None:
        raise ConfigError(f"the dummy request of {model.name} has no prompt: there is nothing to measure")
    return largest.prompt


def _press(engine: BatchingEngine, model: Model, prompt: Prompt, *, seconds: float) -> tuple[int, float]:
    """Run copies of a prompt for some seconds, and `_LEAST_PROMPTS` at least; return their number and the seconds."""
    begun = time.perf_counter()
    with closing(engine.run(model, _copies(prompt), check=_never)) as outputs:
        for done in count(1):
            next(outputs)
            took_s = time.perf_counter() - begun
            if done >= _LEAST_PROMPTS and took_s >= seconds:
                return done, took_s
    raise AssertionError("the prompts do not end")


def _copies(prompt: Prompt) -> Iterator[Prompt]:
    yield from repeat(prompt)


def _peak_bytes(model: Model) -> int:
    """Return the most memory so far, of the device if that is a GPU, else of this process."""
    if _on_gpu(model):
        import torch

        return int(torch.cuda.max_memory_reserved())
    for line in Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _on_gpu(model: Model) -> bool:
    if model.device == "cpu" or model.runner not in WITH_DTYPE:
        return False
    import torch

    return torch.cuda.is_available()


def _takes(model: Model, side_px: int) -> bool:
    """Return False if the description of an exported program excludes this side of an input."""
    if model.runner != "torch" or not (Path(model.source) / "penstock.toml").is_file():
        return True
    from penstock.errors import InvalidInput
    from penstock.workers.engine.torch.description import describe

    description = describe(Path(model.source))
    bands = len(model.options["bands"]) * int(model.options.get("dates", 1))
    try:
        if list(description.inputs) == ["pixels"]:
            description.fit({"pixels": ("float32", (bands, side_px, side_px))}, fault=InvalidInput)
    except InvalidInput:
        return False
    return True


def _never() -> None:
    """Check for cancellation that never cancels."""


def _main() -> int:
    from penstock.observation.log import configure

    configure("error")
    order = json.load(sys.stdin)
    try:
        found = run(Model(**order["model"]), Candidate(**order["candidate"]), seconds=order["seconds"])
    except PenstockError as error:
        sys.stderr.write(f"{error.code}: {error.detail}\n")
        return 1
    except (ValidationError, MemoryError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n".replace("\n", " "))
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
