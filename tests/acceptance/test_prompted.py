"""Objects by words and masks by points through the whole system, from the client to the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for
from tests.support.prompted import DETECTORS, MASKERS
from tests.support.stack import Stack, running
from tests.support.vision import a_picture

RECORD = """
[models.{name}]
title = "A tiny network"
runner = "transformers"
processor = "{processor}"
source = {source}
revision = "1"
"""
KINDS = {"owl": "zero-shot-object-detection", "sam": "mask-generation", "sam-scenes": "raster-mask-generation"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.breadth]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a running system with a model of each kind."""
    data = tmp_path_factory.mktemp("prompted")
    owl, sam = DETECTORS["owlvit"](data / "owl"), MASKERS["sam"](data / "sam")
    records = [
        RECORD.format(name=name, processor=processor, source=json.dumps(str(owl if name == "owl" else sam)))
        for name, processor in KINDS.items()
    ]
    (data / "models.toml").write_text("".join(records))
    with running(data / "up", config=f"models = [{json.dumps(str(data / 'models.toml'))}]\n", model="owl") as stack:
        with stack.client() as client:
            wait_for(lambda: set(KINDS) <= {model.name for model in client.models() if model.ready}, "no models")
        yield stack


@pytest.mark.parametrize(
    ("model", "wish", "files"),
    [
        ("owl", {"labels": ["a cat", "an old dog"], "threshold": 0.4}, {"boxes.json", "annotated.png"}),
        ("sam", {"objects": [{"points": [[30, 40]]}]}, {"mask.png", "overlay.png", "masks.json"}),
        (
            "sam-scenes", {"objects": [{"points": [[401500, 4998500]]}], "crs": "EPSG:32633"},
            {"mask.tif", "masks.geojson"},
        ),
    ],
)  # fmt: skip
def test_a_job_of_each_kind_succeeds(
    stack: Stack, model: str, wish: dict[str, Any], files: set[str], tmp_path: Path
) -> None:
    if model == "sam-scenes":
        write_sample(tmp_path / "scene.tif", size_px=192)
        media = {"scene": tmp_path / "scene.tif"}
    else:
        media = {"image": a_picture(tmp_path / "a.png")}
    with stack.client() as client:
        job = client.wait(client.submit(model, wish, files=media).id)
        assert job.succeeded, job.error
        client.download(job, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= files
    if model == "sam-scenes":
        with rasterio.open(tmp_path / "out" / "mask.tif") as made:
            assert (made.crs.to_epsg(), made.shape) == (32633, (64, 64))
