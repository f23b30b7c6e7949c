"""Price of real jobs through HTTP, of one installation or of two in turns.

    python -m benchmarks.turns [noop] [picture] [raster] [text] [chat] [scene] [--before PATH] [--turns 3] [--quick]

`penstock up` runs with one API, one worker of four slots, the keeper, the bundled Valkey and a folder as object store.
With `--before`, a second service runs from another checkout (`PATH/.venv/bin/python`), and each measure alternates
between both services. The figures are medians of the turns; a ratio is the median of the turns' ratios, this checkout
divided by the other. The processor time and the memory (PSS) are those of all processes but Valkey. A client submits
over eight connections and waits for the end of the last job.

`noop`: nothing but the service. `picture`: a JPEG of 224 px. `raster`: 32 px with all default outputs. `text`: one
token of a network of 260,000 parameters. `chat`: a question about a picture of 640 px and an answer of 16 tokens, by a
LLaVA of 200 million parameters. `scene`: 2048 px with csmask. The runners of the first three do not compute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.measuring import Http, in_turns, machine, median_ratio, metering, processor_s, say, tree
from penstock.client import Client
from penstock.processors.geo.sample import write_sample
from penstock.storage.redis.catalogues import CHECKING
from tests.support.geo.scenes import write_scene
from tests.support.polling import wait_for
from tests.support.stack import SHARED, Stack, running

ROOT = Path(__file__).parents[1]
STORIES = SHARED / "stories260k"
#: Jobs of a turn for each kind.
JOBS: Mapping[str, int] = {"noop": 600, "picture": 300, "raster": 40, "text": 200, "chat": 4, "scene": 1}
#: Goals: milliseconds of our own processes.
GOALS_MS = {"noop": 8.0}
CONNECTIONS, SLOTS = 8, 4
SCENE_PX = 2048
ANSWER_S = 60
#: Seconds between two requests for the depth of the queue.
POLL_S = 0.1
#: Processor seconds of all processes in a second without jobs, at most.
QUIET_S = 0.15

#: The model of `noop_processor`.
NOOP = """
[models.noop]
title = "Nothing"
runner = "fake"
processor = "noop"
source = "."
revision = "1"
max_batch = 8
warm_up = false
"""

PICTURE = """
[models.picture]
title = "Ten classes, and a device that takes no time"
runner = "fake"
processor = "image-classification"
source = "{source}"
revision = "1"
max_batch = 8
options = {{ classes = 10, answer = "logits" }}
"""

#: A model of two bands and two classes; the device takes `step_s` for each tile.
RASTER = """
[models.{name}]
title = "Two classes, and a device that only waits"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
warm_up = {warm_up}

[models.{name}.options]
step_s = {step_s}
tile_px = 256
halo_px = 8
bands = [{{ name = "one", mean = 100.0, std = 50.0 }}, {{ name = "other", mean = 120.0, std = 70.0 }}]
classes = [{{ id = 0, name = "a", colour = "#000000" }}, {{ id = 1, name = "b", colour = "#ffffff" }}]
default_radiometry = [{{ dtypes = ["uint8"], scale = 1.0 }}]
"""

TEXT = """
[models.text]
title = "One token of a very small network"
runner = "transformers"
processor = "text-generation"
source = "{stories}"
revision = "1"
max_batch = 8
device = "cpu"
"""

CHAT = """
[models.chat]
title = "Answers questions about pictures"
runner = "transformers"
processor = "image-text-to-text"
source = "{source}"
revision = "1"
max_batch = 8
device = "cpu"
"""

PREPARATION = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 224, "width": 224},
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3, "resample": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a job: processor milliseconds, seconds from the first submission to the last end, and peak memory."""

    processor_ms: float
    seconds: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Service:
    """A running service and the request of each kind of job."""

    stack: Stack
    bodies: Mapping[str, dict[str, Any]]

    def own(self) -> list[psutil.Process]:
        """Return all processes but Valkey."""
        return [process for process in tree([self.stack.process.pid]) if not _is_valkey(process)]

    def press(self, kind: str, jobs: int) -> Price:
        """Run jobs and return the cost of one; raise `RuntimeError` unless all succeeded."""
        with metering(self.own) as meter:
            numbers = iter(range(jobs))
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                submitting = [pool.submit(self._submit, kind, numbers) for _ in range(CONNECTIONS)]
                ids = [job_id for done in submitting for job_id in done.result()]
            with self.stack.client() as client:
                wait_for(lambda: _is_empty(client), "the jobs do not end", timeout_s=900)
        with self.stack.client() as client:
            for job in map(client.job, ids):
                if not job.succeeded:
                    raise RuntimeError(f"{kind}: {job.error}")
        return Price(meter.processor_s / jobs * 1000, meter.took_s / jobs, meter.peak_bytes / 1e6)

    def _submit(self, kind: str, numbers: Iterator[int]) -> list[str]:
        """Submit jobs as long as there are numbers; return their ids."""
        connection, ids = Http(self.stack.port, ANSWER_S), []
        for _ in numbers:
            status, answer = connection.ask("POST", "/v1/jobs", self.bodies[kind])
            while status == 503:  # too busy beside other work
                time.sleep(POLL_S)
                status, answer = connection.ask("POST", "/v1/jobs", self.bodies[kind])
            if status not in (200, 202):
                raise RuntimeError(f"{kind}: {status}: {answer}")
            ids.append(answer["id"])
        return ids

    def rest(self) -> None:
        """Wait until all processes together have used little for a second: all models are warmed up by then."""

        def is_quiet() -> bool:
            before = processor_s(self.own())
            time.sleep(1)
            return processor_s(self.own()) - before < QUIET_S

        wait_for(is_quiet, "the service does not come to rest", timeout_s=300)


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*JOBS, []], help="kinds of jobs (default: all)")
    parser.add_argument("--before", type=Path, help="a checkout with an environment in .venv to compare with")
    parser.add_argument("--turns", type=int, default=3, help="turns, each with all services (default: 3)")
    parser.add_argument("--durability", choices=["manifest", "redis"], default="manifest")
    parser.add_argument("--quick", action="store_true", help="few jobs, a small scene: shows only that all runs")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds or list(JOBS)
    if "text" in kinds and not STORIES.is_dir():
        kinds.remove("text")
        say(f"text is left out: it needs {STORIES}")
    checkouts = {"now": ROOT} | ({"before": chosen.before.absolute()} if chosen.before else {})
    say(f"{machine()}, {chosen.turns} turns, durability {chosen.durability}\n")
    with ExitStack() as stack:
        services = {
            name: start(stack, checkout, kinds, chosen.durability, 512 if chosen.quick else SCENE_PX)
            for name, checkout in checkouts.items()
        }
        jobs = {kind: max(1, JOBS[kind] // 20) if chosen.quick else JOBS[kind] for kind in kinds}
        for service in services.values():
            for kind in kinds:  # starts the IO processes and fills the caches
                service.press(kind, max(1, jobs[kind] // 5))
        say("| job | processor time | before, ratio | time | before, ratio | peak memory | before, ratio | goal |")
        say("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for kind in kinds:
            for service in services.values():
                service.rest()
            measures: dict[str, Callable[[], Price]] = {
                name: partial(service.press, kind, jobs[kind]) for name, service in services.items()
            }
            say(row(kind, in_turns(measures, chosen.turns)))


def row(kind: str, prices: Mapping[str, Sequence[Price]]) -> str:
    """Return the line of a kind: medians of this checkout and, if there is one, of the other one, and ratios."""
    columns = (
        ([price.processor_ms for price in prices[name]] for name in prices),
        ([price.seconds * 1000 for price in prices[name]] for name in prices),
        ([price.peak_mb for price in prices[name]] for name in prices),
    )
    cells = []
    for unit, column in zip(("ms", "ms", "MB"), columns, strict=True):
        now, *before = column
        cells.append(f"{_short(median(now))} {unit}")
        cells += [f"{_short(median(other))} {unit}, {median_ratio(now, other):.2f}" for other in before] or [""]
    goal = f"<= {GOALS_MS[kind]:g} ms of processor time" if kind in GOALS_MS else ""
    return f"| {kind} | {' | '.join(cells)} | {goal} |"


def start(stack: ExitStack, checkout: Path, kinds: Sequence[str], durability: str, scene_px: int) -> Service:
    """Start a checkout's service; it ends with the stack."""
    made = tempfile.TemporaryDirectory(prefix="bench-turns-", ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(made))
    models = folder / "models.toml"
    records = [
        NOOP, PICTURE.format(source=_picture_model(folder)), RASTER.format(name="raster", warm_up="true", step_s=0)
    ]  # fmt: skip
    if "text" in kinds:
        records.append(TEXT.format(stories=STORIES))
    if "chat" in kinds:
        records.append(CHAT.format(source=_chat_model(folder / "chat")))
    models.write_text("".join(records))
    config = f'slots = {SLOTS}\nmodels = ["{models}"]\ndurability = "{durability}"\n'
    config += "max_queued = 1000000\nmax_tenant_jobs = 1000000\nmax_tenant_running = 1000\n"
    python = sys.executable if checkout == ROOT else checkout / ".venv" / "bin" / "python"
    up = stack.enter_context(
        running(folder / "data", config=config, python=python, PYTHONPATH=f"{checkout}:{write_plugin(folder)}")
    )
    with up.client() as client:
        wait_for(lambda: {"noop", *kinds} - {"scene"} <= ready_models(client), "the models are not ready")
        return Service(up, {kind: _body(kind, client, folder, scene_px) for kind in kinds})


def write_plugin(folder: Path) -> Path:
    """Write an installed package's entry point, which names the processor; return the folder for `sys.path`."""
    place = folder / "plugin"
    info = place / "penstock_noop-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-noop\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock.io_processors]\nnoop = benchmarks.noop_processor:Noop\n")
    return place


def write_image(folder: Path, side_px: int = 224) -> Path:
    """Write a square JPEG; return its path."""
    path = folder / f"image-{side_px}.jpg"
    noise = np.random.default_rng(1).integers(0, 255, (28, 28, 3), np.uint8)
    Image.fromarray(noise).resize((side_px, side_px)).save(path)
    return path


def ready_models(client: Client) -> set[str]:
    """Return the names of the models that are served and warmed up; raise `RuntimeError` for a broken one."""
    models = client.models()
    for model in models:
        if model.problem not in (None, CHECKING):
            raise RuntimeError(f"{model.name}: {model.problem}")
    return {model.name for model in models if model.problem is None and model.raw.get("ready", True)}


def _picture_model(folder: Path) -> Path:
    """Write the directory of a vision transformer without weights, for its processor; return its path."""
    source = folder / "model"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "vit"}))
    (source / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return source


def _chat_model(folder: Path) -> Path:
    """Write the directory of a LLaVA with random weights; return its path."""
    import transformers

    from tests.support.multimodal import a_llava, clip_tower, write_pictures

    wide = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    text = transformers.LlamaConfig(**wide, num_key_value_heads=12, vocab_size=300, eos_token_id=257, pad_token_id=257)
    a_llava(folder, vision_config=clip_tower(**wide, image_size=224, patch_size=16), text_config=text)
    side = {"height": 224, "width": 224}
    write_pictures(folder, "CLIPImageProcessor", size={"shortest_edge": 224}, crop_size=side)
    return folder


def _body(kind: str, client: Client, folder: Path, scene_px: int) -> dict[str, Any]:
    match kind:
        case "noop":
            return {"model": kind, "input": {"text": "nothing"}}
        case "text":
            return {"model": kind, "input": {"prompt": "Once upon a time", "max_new_tokens": 1}}
        case "picture":
            return {"model": kind, "input": {"images": client.upload(write_image(folder))}}
        case "chat":
            asked = {"prompt": "What is in this picture?", "max_new_tokens": 16}
            return {"model": kind, "input": {"images": client.upload(write_image(folder, 640)), **asked}}
        case "raster":
            raster = write_scene(folder / "raster.tif", np.full((2, 32, 32), 100, np.uint8))
            return {"model": kind, "input": {"scene": client.upload(raster)}}
        case _:
            scene = folder / "scene.tif"
            write_sample(scene, size_px=scene_px)
            return {"model": "csmask", "input": {"scene": client.upload(scene), "outputs": ["classes"]}}


def _is_empty(client: Client) -> bool:
    time.sleep(POLL_S)
    queue = client.queue()
    return queue.queued == queue.running == 0


def _is_valkey(process: psutil.Process) -> bool:
    try:
        return process.name().startswith(("valkey", "redis"))
    except psutil.NoSuchProcess:
        return False


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main(sys.argv[1:])
