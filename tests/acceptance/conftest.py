"""One running system for the tests that do not break it, and a scene that takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.processors.geo.sample import write_sample
from tests.support.stack import Stack, running

DROP = """
drop_poll_s = 0.5
lease_s = 5

[[drops]]
name = "inbox"
bucket = "{bucket}"
prefix = "scenes/"
model = "csmask"
output_prefix = "maps/"
"""


@pytest.fixture(scope="session")
def big_scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a synthetic scene of two tiles: there is time to kill something while it runs."""
    path = tmp_path_factory.mktemp("scene") / "big.tif"
    write_sample(path, size_px=1024)
    return path


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the system watches."""
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "scenes").mkdir()
    return folder


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, bucket: Path) -> Iterator[Stack]:
    """Return a running system that watches the bucket. What a test kills in it comes back."""
    with running(tmp_path_factory.mktemp("up"), config=DROP.format(bucket=bucket.as_uri())) as stack:
        yield stack
