"""What all tests share: one real S3 server per run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.ceph import Ceph, missing_binaries, start_ceph

#: `pytest --hypothesis-profile=nightly`: many more examples of everything.
settings.register_profile("nightly", max_examples=2000, deadline=None)


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    """Return the run's S3 server. Without its programs the test is skipped, and fails in CI."""
    missing = missing_binaries()
    if missing:
        reason = f"needs Ceph, the S3 server of the tests (infra/apt.txt): no {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ceph-", ignore_cleanup_errors=True) as folder:
        cluster = start_ceph(Path(folder))
        yield cluster
        cluster.stop()
