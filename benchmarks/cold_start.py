"""Cold start: time to the first result, compared with bare import and load of the network; cost of imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from statistics import median

from penstock.config import Settings
from penstock.intake.media import upload_key
from penstock.jobs import JobKey, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from tests.support.stack import scene
from tests.support.valkey import start_valkey

REPEATS = 5
PATIENCE_S = 120
LIMITS = records.QueueLimits(max_queued=10**6, max_tenant_jobs=10**6, retention_s=3600, max_crashes=3)

#: Program that loads only the network and its weights, and runs one tile.
BARE = """
import torch
from penstock.models import read_catalogue
from penstock.workers.engine.torch.csmask import load_csmask
from penstock.workers.engine.weights import read_weights
network = load_csmask(read_weights(read_catalogue()["csmask"]))
with torch.inference_mode():
    network.module(torch.zeros(1, 6, 256, 256))
"""

#: Program with the whole library: a real scene of 256 x 256 pixels to its finished artifacts.
LIBRARY = """
import sys, penstock
with penstock.Engine() as engine:
    engine.run("csmask", scene=sys.argv[1], out=sys.argv[2])
"""


def cold_start() -> Iterator[str]:
    """Yield the table's lines."""
    with tempfile.TemporaryDirectory(prefix="bench-cold-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        scene = _small_scene(folder)
        bare, library, cold, warm = _medians_s(
            lambda: _python_s(BARE),
            lambda: _python_s(LIBRARY, str(scene), str(folder / "out")),
            lambda: _worker_s(folder, scene, warm_up=False),
            lambda: _worker_s(folder, scene, warm_up=True),
        )
    yield f"| bare import, load and one tile | {bare:.2f} s | |"
    yield f"| the library: nothing to first result | {library:.2f} s = {library / bare:.2f} of bare | <= 1.2 |"
    job = "a worker: nothing to the end of a waiting job"
    yield f"| {job}, without a warm-up | {cold:.2f} s = {cold / bare:.2f} of bare | <= 1.2 |"
    yield f"| {job}, after its warm-up, as shipped | {warm:.2f} s = {warm / bare:.2f} of bare | <= 1.2 |"
    nothing, package, api = _medians_s(
        lambda: _processor_s(""),
        lambda: _processor_s("import penstock"),
        lambda: _processor_s("import penstock.api.app"),
    )
    yield f"| import penstock, processor time | {package - nothing:.2f} s | < 0.3 s |"
    yield f"| import penstock.api.app, processor time | {api - nothing:.2f} s | < 1 s |"


def _medians_s(*measured: Callable[[], float]) -> list[float]:
    """Measure in turns, so that other load affects all variants equally; the first round warms the disk cache."""
    rounds = [[measure() for measure in measured] for _ in range(REPEATS + 1)]
    return [median(column) for column in zip(*rounds[1:], strict=True)]


def _python_s(program: str, *arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, env=_environment())
    return time.perf_counter() - begun


def _processor_s(program: str) -> float:
    """Return the processor time of a program: its duration on an idle machine, as imports are single-threaded."""
    before = os.times()
    _python_s(program)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def _worker_s(folder: Path, scene: Path, *, warm_up: bool) -> float:
    """Measure the time from the start of a worker to the end of a waiting job."""
    data = Path(tempfile.mkdtemp(dir=folder))
    valkey = start_valkey(data / "valkey")
    try:
        settings = Settings(data=data, redis_url=valkey.url, secret=token_hex())
        store, objects = records.JobStore.open(settings.redis_address), open_store(settings.store_url, settings)
        objects.put_bytes(upload_key("default", "up", "scene.tif"), scene.read_bytes(), content_type="image/tiff")
        key = JobKey("default", "cold")
        submission = Submission(
            key=key, model="csmask", queue="default", fingerprint="f", input={"scene": "media://up/scene.tif"}
        )
        Journal(store, objects).run(journal.submit(submission, LIMITS))
        environment = _environment() | {
            "PENSTOCK_DATA": str(data),
            "PENSTOCK_REDIS_URL": valkey.url,
            "PENSTOCK_MODELS": json.dumps([str(_catalogue(data, warm_up=warm_up))]),
        }
        begun = time.perf_counter()
        with (data / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "worker"], env=environment, stdout=log, stderr=log
            )
        try:
            while not (job := store.run(records.read(key))).status.terminal:
                if worker.poll() is not None or time.perf_counter() > begun + PATIENCE_S:
                    raise RuntimeError((data / "worker.log").read_text())
                time.sleep(0.005)
            if job.error is not None:
                raise RuntimeError(job.error.detail)
            return time.perf_counter() - begun
        finally:
            worker.terminate()
            worker.wait(60)
    finally:
        valkey.stop()


def _catalogue(folder: Path, *, warm_up: bool) -> Path:
    """Write the included record of csmask, with or without its warm-up."""
    path = folder / "models.toml"
    shipped = (files("penstock") / "catalogue" / "models.toml").read_text()
    header = "[models.csmask]\n"
    path.write_text(shipped.replace(header, f"{header}warm_up = {str(warm_up).lower()}\n"))
    return path


def _small_scene(folder: Path) -> Path:
    """Crop 256 x 256 pixels from a real scene."""
    import rasterio
    from rasterio.windows import Window

    path = folder / "scene.tif"
    with rasterio.open(scene()) as source:
        window = Window(1000, 1000, 256, 256)
        profile = source.profile | {"width": 256, "height": 256, "transform": source.window_transform(window)}
        with rasterio.open(path, "w", **profile) as cut:
            cut.write(source.read(window=window))
            cut.descriptions = source.descriptions
    return path


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PENSTOCK_CONFIG": ""}
