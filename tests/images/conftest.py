"""The images are built once in a run; `make image-test` asks for that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.processors.geo.sample import write_sample
from tests.support.containers import BUILD, Fleet, fleet, missing, shared_folder


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """Build the images, and return the lines that tell their sizes. Skips unless `make image-test` runs."""
    if os.environ.get("PENSTOCK_IMAGE_TEST") != "1":
        pytest.skip("builds images for minutes: run `make image-test`")
    if reason := missing():
        pytest.skip(f"images cannot be built here: {reason}")
    built = subprocess.run([sys.executable, str(BUILD)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line.partition(":")[0]: line for line in built.splitlines()}


@pytest.fixture(scope="module")
def running(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Return an API, a keeper and a Valkey in containers, without a worker; jobs of csmask are accepted."""
    del images
    with fleet("image-test", tmp_path_factory.mktemp("fleet") / "data") as started:
        started.once("worker", "models", "publish", "csmask")
        yield started


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a synthetic scene of several strips, readable by the user of the images."""
    folder = shared_folder(tmp_path_factory.mktemp("scene") / "given")
    write_sample(folder / "scene.tif", size_px=1536)
    folder.chmod(0o755)
    return folder / "scene.tif"
