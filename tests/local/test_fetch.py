"""`penstock models fetch`: a model that lies in S3, from not being here to being run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.processors.geo.sample import write_sample
from penstock.storage.objects.opening import open_store
from tests.support.catalogues import TOY, penstock
from tests.support.ceph import Ceph


@pytest.mark.breadth
def test_a_model_in_s3_is_fetched_once_and_then_runs(ceph: Ceph, tmp_path: Path) -> None:
    bucket = ceph.bucket()
    store = open_store(f"s3://{bucket}", Settings(s3=ceph.s3))
    store.put_bytes("models/toy/weights.bin", b"x" * 1000, content_type="application/octet-stream")
    toy = TOY.format(max_bytes=1_000_000).replace('source = "."', f'source = "s3://{bucket}/models/toy"')
    (tmp_path / "toy.toml").write_text(toy)
    assert ceph.s3.endpoint_url is not None
    assert ceph.s3.access_key_id is not None
    assert ceph.s3.secret_access_key is not None
    env = {
        "PENSTOCK_S3__ENDPOINT_URL": ceph.s3.endpoint_url,
        "PENSTOCK_S3__ACCESS_KEY_ID": ceph.s3.access_key_id,
        "PENSTOCK_S3__SECRET_ACCESS_KEY": ceph.s3.secret_access_key.get_secret_value(),
        "PENSTOCK_MODEL_CACHE": str(tmp_path / "cache"),
    }
    here = ("--catalogue", "toy.toml")

    missing = penstock(tmp_path, "models", "check", "toy", *here, "--json", **env)
    assert missing.returncode == 1, missing.stderr
    [finding] = json.loads(missing.stdout)
    assert finding["problems"] == [
        f"model 'toy' was not fetched from s3://{bucket}/models/toy yet: `penstock models fetch toy`"
    ]

    [fetched] = json.loads(penstock(tmp_path, "models", "fetch", "toy", *here, "--json", **env).stdout)
    assert (Path(fetched["path"]) / "weights.bin").read_bytes() == b"x" * 1000
    assert (fetched["size_bytes"], Path(fetched["path"]).is_relative_to(tmp_path / "cache")) == (1000, True)

    store.delete_prefix("models/")
    assert penstock(tmp_path, "models", "check", "toy", *here, **env).returncode == 0
    write_sample(tmp_path / "scene.tif", size_px=64)
    assert penstock(tmp_path, "run", "toy", "scene.tif", *here, **env).returncode == 0
