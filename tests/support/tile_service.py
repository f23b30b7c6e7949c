"""A service with `penstock tiles` beside it, and tiles by GDAL alone to compare with."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from penstock.jobs import JobKey
from tests.support.ceph import Ceph
from tests.support.made_jobs import MadeJobs, making
from tests.support.polling import wait_for
from tests.support.stack import Stack, free_port, listens, running

SECRET = "a secret of these tests, long enough for the service"
TIFF = "image/tiff; application=geotiff; profile=cloud-optimized"
#: Reads one tile by GDAL's warper on the tile's own grid, in a process without Penstock's settings of GDAL.
_BY_GDAL = """
import json, sys
import numpy as np, rasterio
from rasterio.transform import from_bounds
from rasterio.vrt import WarpedVRT
path, z, x, y, nodata = json.loads(sys.argv[1])
side = 2 * 20037508.342789244 / 2**z
west, north = -20037508.342789244 + x * side, 20037508.342789244 - y * side
grid = from_bounds(west, north - side, west + side, north, 256, 256)
with rasterio.open(path) as file:
    nodata = file.nodata if nodata is None else nodata
    made = dict(crs="EPSG:3857", transform=grid, width=256, height=256, src_nodata=nodata, nodata=nodata)
    with WarpedVRT(file, **made) as warped:
        numbers = warped.read()
np.save(sys.stdout.buffer, numbers)
"""


@dataclass(frozen=True)
class TileService:
    """A running service that asks for keys, and its tiles. `key` and `other_key` are of two tenants."""

    stack: Stack
    made: MadeJobs
    url: str
    key: str
    other_key: str

    def links(self, job: JobKey, *, key: str | None = None) -> dict[str, Any]:
        """Return the links of a job's files by their names."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        answer = httpx2.get(f"{self.stack.url}/v1/jobs/{job.id}/links", headers=headers)
        answer.raise_for_status()
        return {link["name"]: link for link in answer.json()["links"]}

    def finished(self, *files: Path, data: Any = None, **given: Any) -> JobKey:
        """Return a job with these files as its artifacts."""
        job = self.made.submit(**given)
        claim = self.made.claim()
        artifacts = [self.made.artifact(claim, file.name, file.read_bytes(), TIFF) for file in files]
        self.made.succeed(claim, *artifacts, data=data)
        return job


@contextmanager
def tile_service(data: Path, ceph: Ceph | None = None) -> Iterator[TileService]:
    """Start a service and its tiles, with its files in a folder or in a new bucket."""
    pytest.importorskip("rio_tiler", reason="needs rio-tiler: pip install '.[tiles]'")
    data.mkdir(exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    store: dict[str, Any] = {}
    variables = {"PENSTOCK_SECRET": SECRET}
    if ceph is not None and ceph.s3.secret_access_key is not None:
        store = {"object_store": f"s3://{ceph.bucket()}/some/prefix", "s3": ceph.s3}
        variables |= {
            "PENSTOCK_OBJECT_STORE": store["object_store"],
            "PENSTOCK_S3__ENDPOINT_URL": str(ceph.s3.endpoint_url),
            "PENSTOCK_S3__ACCESS_KEY_ID": str(ceph.s3.access_key_id),
            "PENSTOCK_S3__SECRET_ACCESS_KEY": ceph.s3.secret_access_key.get_secret_value(),
        }
    key, other = (tenant_key(data, tenant, variables) for tenant in ("acme", "other"))
    with (
        running(data, api_key=key, options=("--keys",), PENSTOCK_TILES_URL=url, **variables) as stack,
        making(data, tenant="acme", **store) as made,
        beside("tiles", stack.url, port),
    ):
        yield TileService(stack, made, url, key, other)


@contextmanager
def beside(command: str, service: str, port: int) -> Iterator[None]:
    """Run `penstock tiles` or `penstock features` for a service."""
    words = [sys.executable, "-m", "penstock.cli", command, "--http", f"127.0.0.1:{port}", "--url", service]
    env = {name: value for name, value in plain_env().items() if not name.startswith("PENSTOCK_")}
    process = subprocess.Popen(words, env=env)
    try:
        wait_for(lambda: listens(port), f"`penstock {command}` did not listen", timeout_s=60)
        yield
    finally:
        process.terminate()
        process.wait(20)


def by_gdal(path: Path, z: int, x: int, y: int, nodata: float | None = None) -> npt.NDArray[Any]:
    """Return a tile's numbers (bands, 256, 256) by GDAL's warper alone."""
    words = json.dumps([str(path), z, x, y, nodata])
    done = subprocess.run([sys.executable, "-c", _BY_GDAL, words], env=plain_env(), check=True, capture_output=True)
    numbers: npt.NDArray[Any] = np.load(io.BytesIO(done.stdout))
    return numbers


def plain_env() -> dict[str, str]:
    """Return the environment without Penstock's settings of GDAL."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GDAL_", "VRT_", "CPL_"))}


def picture(png: bytes) -> npt.NDArray[np.uint8]:
    """Return a PNG as uint8 (256, 256, 4)."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def tile_at(lon: float, lat: float, z: int) -> tuple[int, int]:
    """Return column and row of the tile with a place."""
    x = (lon + 180) / 360
    y = (1 - np.arcsinh(np.tan(np.radians(lat))) / np.pi) / 2
    return int(x * 2**z), int(y * 2**z)


def tenant_key(data: Path, tenant: str, variables: Mapping[str, str]) -> str:
    """Return a new key of a tenant, before its service starts."""
    command = [sys.executable, "-m", "penstock.cli", "keys", "create", "--data", str(data), "--name", tenant]
    command += ["--tenant", tenant, "--scopes", "read,submit"]
    env = os.environ | variables
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()
