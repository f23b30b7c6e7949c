"""The same scene by REST, by the Python client, by the command line and by a bucket: the same bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rio_cogeo.cogeo import cog_validate

from penstock.processors.geo.read.gdal import rasterio
from tests.support.polling import wait_for
from tests.support.stack import Stack, scene

#: The probabilities are not among those that are made by default.
OUTPUTS = ("classes", "probability", "preview", "stats")
#: Shares of valid pixels, as the published network gives them for the whole image.
EXPECTED_PERCENT = {"water": 18.15, "snow or ice": 29.18, "land": 52.65}


@pytest.fixture(scope="module")
def reference(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the result that the Python client got."""
    folder = tmp_path_factory.mktemp("client")
    with stack.client() as client:
        job = client.wait(client.submit("csmask", {"outputs": OUTPUTS}, files={"scene": scene()}).id)
        assert job.succeeded, job.error
        client.download(job, folder)
    return folder


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def curl(*words: str) -> bytes:
    return subprocess.run(["curl", "-sS", "--fail-with-body", *words], check=True, capture_output=True).stdout


def curl_json(*words: str) -> Any:
    return json.loads(curl("-H", "content-type: application/json", *words))


def test_rest_from_curl(stack: Stack, reference: Path, tmp_path: Path) -> None:
    wanted = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": scene().stat().st_size}
    upload = curl_json(f"{stack.url}/v1/uploads", "-d", json.dumps(wanted))
    curl("-X", "PUT", "-H", "content-type: image/tiff", "--data-binary", f"@{scene()}", upload["url"])
    job = curl_json(
        f"{stack.url}/v1/jobs", "-d", json.dumps({"model": "csmask", "input": {"scene": upload["media"]}})
    )  # fmt: skip
    done = curl_json(f"{stack.url}/v1/jobs/{job['id']}?wait=60")
    assert done["status"] == "succeeded"
    links = {artifact["name"]: artifact["url"] for artifact in done["artifacts"]}
    curl("-L", "-o", str(tmp_path / "classes.tif"), links["classes.tif"])
    assert digest(tmp_path / "classes.tif") == digest(reference / "classes.tif")


def test_the_command_line(stack: Stack, reference: Path, tmp_path: Path) -> None:
    wanted = f"outputs={','.join(OUTPUTS)}"
    result = stack.cli("submit", "csmask", str(scene()), "--param", wanted, "--out", str(tmp_path), "--json")
    job = json.loads(result.stdout)
    assert job["status"] == "succeeded"
    for name in ("classes.tif", "probability.tif", "preview.png"):
        assert digest(tmp_path / name) == digest(reference / name)
    assert "succeeded" in stack.cli("trace", job["id"]).stdout
    assert stack.cli("status", job["id"]).returncode == 0


def test_a_file_dropped_into_the_bucket(reference: Path, bucket: Path) -> None:
    shutil.copy(scene(), bucket / "scenes" / "flood ä+1.tif")
    marker = bucket / "maps" / "flood ä+1.tif.done.json"
    wait_for(marker.exists, f"no {marker}")
    assert digest(bucket / "maps" / "flood ä+1.tif" / "classes.tif") == digest(reference / "classes.tif")
    assert json.loads(marker.read_text())["status"] == "succeeded"


def test_the_map_lies_exactly_on_the_scene(reference: Path) -> None:
    with rasterio.open(scene()) as source, rasterio.open(reference / "classes.tif") as classes:
        assert (classes.crs, classes.transform, classes.shape) == (source.crs, source.transform, source.shape)
        missing = (source.read() == 0).any(axis=0)
        assert missing.sum() == 1835
        assert np.array_equal(classes.read(1) == 255, missing)
        assert classes.nodata == 255


def test_the_shares_are_those_of_the_published_network(reference: Path) -> None:
    stats = json.loads((reference / "stats.json").read_text())
    found = {row["name"]: row["percent"] for row in stats["classes"]}
    assert {name: round(found[name], 2) for name in EXPECTED_PERCENT} == EXPECTED_PERCENT


@pytest.mark.parametrize("name", ["classes.tif", "probability.tif"])
def test_the_rasters_are_cloud_optimized(reference: Path, name: str) -> None:
    valid, errors, warnings = cog_validate(reference / name, strict=True)
    assert (valid, errors, warnings) == (True, [], [])
    with rasterio.open(reference / name) as raster:
        assert set(raster.block_shapes) == {(512, 512)}


@pytest.mark.breadth
def test_bad_files_end_in_a_clear_sentence_and_disturb_nobody(stack: Stack, tmp_path: Path) -> None:
    text = tmp_path / "notes.tif"
    text.write_text("not a scene")
    cut = tmp_path / "cut.tif"
    cut.write_bytes(scene().read_bytes()[:100_000])
    for path, code in ((text, "media_unreadable"), (cut, "media_unreadable")):
        result = stack.cli("submit", "csmask", str(path), "--wait", "--json", check=False)
        job = json.loads(result.stdout)
        assert (result.returncode, job["status"], job["error"]["code"]) == (1, "failed", code)
        assert "Traceback" not in result.stderr
    missing = stack.cli("submit", "csmask", str(tmp_path / "never.tif"), check=False)
    assert missing.returncode != 0
    assert "never.tif" in missing.stderr
    unknown = stack.cli("submit", "nomodel", str(scene()), check=False)
    assert unknown.returncode != 0
    assert "csmask" in unknown.stderr or "nomodel" in unknown.stderr
    assert stack.cli("submit", "csmask", str(scene()), "--wait", "--json").returncode == 0
