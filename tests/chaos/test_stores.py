"""The promise under attack where jobs lie elsewhere: on S3, and in Redis alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.survival import survive
from tests.support.ceph import Ceph

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_no_job_is_lost_doubled_or_changed_under_s3_trouble(ceph: Ceph, tmp_path: Path) -> None:
    survive("s3_trouble", tmp_path, lambda: ceph)


@pytest.mark.breadth
@pytest.mark.parametrize("name", ["worker_kills", "zombies"])
def test_without_manifests_neither_under(name: str, tmp_path: Path) -> None:
    survive(name, tmp_path, durability="redis")
