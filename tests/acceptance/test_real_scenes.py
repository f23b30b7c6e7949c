"""Every file of the shared data through one running service: the outcomes are those of the table by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.client import Client, Job
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from tests.geo.test_real_files import BIG, DATA, OUTCOMES, Outcome, Wrong
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.breadth,  # tests/geo/test_real_files.py has the same outcomes without a service
    pytest.mark.timeout(300),
    pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data"),
]

#: A model of one band that takes every data type, as in `tests/geo`; its network answers at once, class 0.
ONE_BAND = """
[models.one-band]
title = "One band"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"

[models.one-band.options]
halo_px = 0
tile_px = 1024
bands = [{ name = "grey", mean = 0.0, std = 1.0 }]
default_radiometry = [{ dtypes = ["uint8", "uint16", "int16", "float32"], scale = 1.0 }]
classes = [{ id = 0, name = "a", colour = "#000000" }, { id = 1, name = "b", colour = "#ffffff" }]
"""

#: The big ones first: what they leave behind is there while the others run.
NAMES = (*BIG, *(name for name in OUTCOMES if name not in BIG))
#: Bytes that the worker and its IO processes may keep. One band of the largest file is 120 MB, its statistics none.
KEPT_BYTES = 250 * 2**20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a service with the shipped model and the one of one band."""
    folder = tmp_path_factory.mktemp("real")
    models = folder / "models.toml"
    models.write_text(ONE_BAND)
    with running(folder / "data", config=f'models = ["{models}"]\n') as stack, stack.client() as client:
        wait_for(lambda: all(model.raw["ready"] for model in client.models()), "the models are not ready")
        yield stack


@pytest.fixture(scope="module")
def client(service: Stack) -> Iterator[Client]:
    with service.client() as client:
        yield client


def test_every_file_ends_in_a_right_result_or_a_clear_error(service: Stack, client: Client, tmp_path: Path) -> None:
    worker = service.pid("worker")
    run(client, "geo/dsm_2m.tif", "one-band", bands=[1])
    before = memory_bytes(worker)
    for name in NAMES:
        outputs = ["stats"] if name in BIG else ["classes", "stats"]
        job = run(client, name, "one-band", bands=[1], outputs=outputs)
        check(client, job, name, OUTCOMES[name][1], tmp_path / "one-band" / name)
    assert memory_bytes(worker) < before + KEPT_BYTES
    for name in NAMES:
        check(client, run(client, name, "csmask"), name, OUTCOMES[name][0], tmp_path / "csmask" / name)
    assert service.pid("worker") == worker, "a file ended the worker"


def run(client: Client, name: str, model: str, **fields: object) -> Job:
    """Submit a file and wait for its end."""
    return client.wait(client.submit(model, fields, files={"scene": DATA / name}).id)


def check(client: Client, job: Job, name: str, expected: Outcome, folder: Path) -> None:
    """Compare a job's end with what was written down."""
    if isinstance(expected, Wrong):
        assert job.error is not None, name
        assert job.error.code == expected.error.code, name
        assert expected.sentence in job.error.detail, name
        assert str(DATA) not in job.error.detail
        assert "Traceback" not in job.error.detail
        return
    assert job.succeeded, (name, job.error)
    client.download(job, folder)
    stats = json.loads((folder / "stats.json").read_text())
    assert (stats["scene"]["width"], stats["scene"]["height"]) == (expected.width, expected.height), name
    assert stats["valid_pixels"] == expected.valid, name
    used = {key: stats["radiometry"][key] for key in expected.used}
    assert used == {key: pytest.approx(value) for key, value in expected.used.items()}, name
    if (folder / "classes.tif").is_file():
        check_place(DATA / name, folder / "classes.tif")


def check_place(scene: Path, classes: Path) -> None:
    """The map lies where the scene lies."""
    with without_georeference(), rasterio.open(scene) as source, rasterio.open(classes) as made:
        assert (tuple(made.transform), made.crs, made.shape) == (tuple(source.transform), source.crs, source.shape)


def memory_bytes(pid: int) -> int:
    """Return what a process and all below it hold, shared pages once."""
    root, total = psutil.Process(pid), 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return total
