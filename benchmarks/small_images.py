"""Images of 224 x 224 pixels with API, queue, engine and store, compared with the rate of the runner alone.

The runner waits for the duration of a batch without using the processor.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import psutil
from PIL import Image

from penstock.client import Client
from tests.support.stack import Stack, running, wait_for

BATCH, IN_FLIGHT, SLOTS = 8, 64, 24
#: Seconds per batch of eight: from a small network on two cores to one on a GPU.
STEPS_S = (0.4, 0.2, 0.1, 0.05)
SECONDS = 20.0

SETTINGS = """
slots = {slots}
models = ["{models}"]
"""

MODEL = """
[models.images-{number}]
title = "A device that takes {step_s} s for {batch} images"
runner = "fake"
processor = "image-classification"
source = "{source}"
revision = "1"
max_batch = {batch}
execution_timeout_s = 600
options = {{ classes = 10, answer = "logits", step_s = {step_s} }}
"""


def small_images() -> Iterator[str]:
    """Yield the table's lines, one per device speed."""
    with tempfile.TemporaryDirectory(prefix="bench-images-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running(folder / "data", config=_configure(folder)) as stack, stack.client() as client:
            names = [f"images-{number}" for number in range(len(STEPS_S))]
            wait_for(lambda: set(names) <= _served(client), "the models are not served")
            image = client.upload(write_image(folder))
            for name, step_s in zip(names, STEPS_S, strict=True):
                body = {"model": name, "input": {"images": image}}
                asyncio.run(_press(stack.url, body, seconds=2))
                before = _processor_s(stack)
                done, took_s = asyncio.run(_press(stack.url, body, seconds=SECONDS))
                spent = _processor_s(stack) - before
                rate, alone = done / took_s, BATCH / step_s
                what = f"images, {IN_FLIGHT} jobs in flight, runner alone {alone:.0f}/s"
                parts = ", ".join(f"{part} {seconds / done * 1000:.1f}" for part, seconds in spent.most_common())
                each = f"{spent.total() / done * 1000:.1f} ms of processor time each ({parts})"
                figure = f"{rate:.1f}/s = {rate / alone:.2f} of it, {each}"
                yield f"| {what} | {figure} | >= 0.9 |"


def write_model(folder: Path) -> Path:
    """Write the directory of a vision transformer without weights, for processors; return it."""
    source = folder / "model"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "vit"}))
    recipe = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 224, "width": 224},
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "resample": 2,
    }  # fmt: skip
    (source / "preprocessor_config.json").write_text(json.dumps(recipe))
    return source


def _configure(folder: Path) -> str:
    source = write_model(folder)
    models = folder / "models.toml"
    models.write_text(
        "".join(
            MODEL.format(number=number, step_s=step_s, batch=BATCH, source=source)
            for number, step_s in enumerate(STEPS_S)
        )
    )
    return SETTINGS.format(slots=SLOTS, models=models)


def write_image(folder: Path) -> Path:
    """Write a JPEG of 224 x 224 pixels; return its path."""
    path = folder / "image.jpg"
    noise = np.random.default_rng(1).integers(0, 255, (28, 28, 3), np.uint8)
    Image.fromarray(noise).resize((224, 224)).save(path)
    return path


def _served(client: Client) -> set[str]:
    return {model.name for model in client.models() if model.problem is None}


async def _press(url: str, body: dict[str, object], *, seconds: float) -> tuple[int, float]:
    """Keep jobs in flight for some time; return the number of ended jobs and the seconds."""
    begun = time.perf_counter()

    async def one_after_the_other(client: httpx2.AsyncClient) -> int:
        done = 0
        while time.perf_counter() < begun + seconds:
            answer = await client.post("/v1/jobs", json=body, headers={"Prefer": "wait=60"})
            if answer.status_code != 200 or answer.json()["status"] != "succeeded":
                raise RuntimeError(answer.text)
            done += 1
        return done

    limits = httpx2.Limits(max_connections=IN_FLIGHT)
    async with httpx2.AsyncClient(base_url=url, timeout=90, limits=limits) as client:
        done = sum(await asyncio.gather(*(one_after_the_other(client) for _ in range(IN_FLIGHT))))
    return done, time.perf_counter() - begun


def _processor_s(stack: Stack) -> Counter[str]:
    """Return the processor time so far of the API, the worker, its IO processes, Valkey and the rest."""
    root = psutil.Process(stack.process.pid)
    names = {stack.pid(name): name for name in ("api", "worker", "valkey")}
    found: Counter[str] = Counter()
    for process in (root, *root.children(recursive=True)):
        below = {parent.pid for parent in process.parents()}
        name = names.get(process.pid) or ("IO processes" if stack.pid("worker") in below else "the rest")
        times = process.cpu_times()
        found[name] += times.user + times.system
    return found
