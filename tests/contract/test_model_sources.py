"""A model's files from a real S3 server."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import ObjectStoreUnavailable
from penstock.models import Model
from penstock.storage.objects.opening import open_store
from penstock.workers.engine.sources import localise
from tests.support.ceph import Ceph


def test_a_directory_of_weights_comes_from_s3_and_its_hashes_are_checked(ceph: Ceph, tmp_path: Path) -> None:
    settings = Settings(object_store=f"s3://{ceph.bucket()}", s3=ceph.s3)
    weights = bytes(range(256)) * 80_000
    source = open_store(settings.store_url, settings)
    for key, data in {"m/model.safetensors": weights, "m/sub/config.json": b"{}", "m/empty/": b""}.items():
        source.put_bytes(key, data, content_type="application/octet-stream")
    model = Model(
        name="m",
        title="M",
        runner="torch",
        processor="none",
        source=f"{settings.store_url}/m",
        revision="1",
        files={"model.safetensors": hashlib.sha256(weights).hexdigest()},
    )
    local = localise(model, cache=tmp_path, s3=lambda url: open_store(url, settings))
    found = {str(path.relative_to(local.source)): path for path in Path(local.source).rglob("*") if path.is_file()}
    assert found.keys() == {"model.safetensors", "sub/config.json"}
    assert found["model.safetensors"].read_bytes() == weights
    elsewhere = model.model_copy(update={"source": "s3://no-such-bucket/m"})
    with pytest.raises(ObjectStoreUnavailable, match="NoSuchBucket"):
        localise(elsewhere, cache=tmp_path, s3=lambda url: open_store(url, settings))
