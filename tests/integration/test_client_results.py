"""`client.run` against the real API: files go up, the result is paths that open, a failure is an error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import rasterio

from penstock.client import AsyncClient, Client, ClientError, JobFailed, Result, StillRunning
from penstock.errors import MediaUnreadable
from penstock.jobs import Claim, State
from penstock.storage.redis.records import Outcome
from tests.support.api_server import listening
from tests.support.catalogues import penstock
from tests.support.service import Service, serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess


def client_of(service: Service) -> AsyncClient:
    return AsyncClient(service.settings.base_url, patience_s=1, transport=httpx2.ASGITransport(service.app))


async def claimed(service: Service) -> Claim:
    """Return the next job once it is there."""
    while True:
        if claims := await service.claims(1):
            return claims[0]
        await asyncio.sleep(0.01)


def raster() -> bytes:
    profile = {"driver": "GTiff", "width": 4, "height": 3, "count": 1, "dtype": "uint8", "crs": "EPSG:32633"}
    with rasterio.MemoryFile() as memory:
        with memory.open(**profile, transform=rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)) as image:
            image.write(np.full((1, 3, 4), 7, np.uint8))
        return bytes(memory.read())


async def ran(service: Service, tmp_path: Path, **files: tuple[bytes, str]) -> Result:
    """Run an echo job on a scene whose worker stores these files."""
    (tmp_path / "scene.tif").write_bytes(b"a scene")
    async with client_of(service) as client:
        running = asyncio.create_task(
            client.run("echo", text="hi", scene=tmp_path / "scene.tif", folder=tmp_path / "out")
        )
        claim = await claimed(service)
        assert claim.submission.input["text"] == "hi"
        key = f"tenants/default/uploads/{claim.submission.input['scene'].removeprefix('media://')}"
        assert b"".join(service.objects.read(key)) == b"a scene"
        stored = tuple(
            service.store_artifact(claim, name.replace("__", "."), data, kind) for name, (data, kind) in files.items()
        )
        await service.succeed(claim, artifacts=stored)
        return await running


async def test_a_result_is_paths_that_open(service: Service, tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "classes__tif": (raster(), "image/tiff"), "stats__json": (b'{"water": 0.4}', "application/json"),
        "table__nc": (b"x", "application/x-netcdf"), "model__bin": (b"x", "application/octet-stream"),
    }  # fmt: skip
    result = await ran(service, tmp_path, **files)
    assert result.classes == result["classes.tif"] == tmp_path / "out" / "classes.tif"
    assert (result.text, result.data, result.open("stats")) == ("hello", {"n": 1}, {"water": 0.4})
    assert (result["text"], result["n"]) == ("hello", 1)
    with result.open() as scene:
        assert (scene.shape, scene.read(1)[0, 0]) == ((3, 4), 7)
    with pytest.raises(AttributeError, match=r"has no 'clouds'; it has: classes\.tif, stats\.json"):
        _ = result.clouds
    with pytest.raises(ClientError, match=r"opening table\.nc needs xarray: pip install xarray \(or use .*table\.nc\)"):
        result.open("table")
    with pytest.raises(ClientError, match=r"model\.bin cannot be opened here: use its path"):
        result.open("model")
    assert "classes" in dir(result)


async def test_a_notebook_shows_a_result_with_its_picture(service: Service, tmp_path: Path) -> None:
    result = await ran(service, tmp_path, preview__png=(b"\x89PNG", "image/png"))
    shown = result._repr_html_()
    assert '<img src="data:image/png;base64,iVBORw=="' in shown
    assert f'href="{service.settings.base_url}/ui/#/job/{result.job.id}"' in shown


async def test_a_job_without_a_result_is_an_error_with_the_job(service: Service) -> None:
    async with client_of(service) as client:
        running = asyncio.create_task(client.run("echo", {"text": "hi"}))
        await service.end(await claimed(service), Outcome(State.FAILED, error=MediaUnreadable("it is a poem").report()))
        with pytest.raises(JobFailed, match="media_unreadable: it is a poem") as caught:
            await running
    assert caught.value.job.error is not None


async def test_files_without_a_folder_outlive_the_client(service: Service) -> None:
    async with client_of(service) as client:
        running = asyncio.create_task(client.run("echo", text="hi"))
        claim = await claimed(service)
        await service.succeed(claim, artifacts=(service.store_artifact(claim, "a.txt", b"words", "text/plain"),))
        path = (await running).a
    assert path.read_text() == "words"


async def test_a_run_ends_after_its_timeout(service: Service) -> None:
    async with client_of(service) as client:
        with pytest.raises(StillRunning):
            await client.run("echo", text="hi", timeout_s=0)


def run_in_a_thread(url: str, document: dict[str, Any]) -> str:
    with Client(url, patience_s=60) as client:
        return client.run("echo", document).job.id


def submit_by_command(url: str, document: dict[str, Any], folder: Path) -> str:
    done = penstock(folder, "submit", "echo", "--url", url, "--input", json.dumps(document), "--json")
    assert done.returncode == 0, done.stderr
    job: dict[str, str] = json.loads(done.stdout)
    return job["id"]


@pytest.mark.parametrize("way", ["sync", "async", "command"])
async def test_local_files_inside_other_fields_are_uploaded(valkey: ValkeyProcess, tmp_path: Path, way: str) -> None:
    for name in ("after", "before"):
        (tmp_path / f"{name}.tif").write_bytes(name.encode())
    file, known = str(tmp_path / "before.tif"), "media://018f0000-0000-7000-8000-000000000000/known.tif"
    key = f"tenants/default/uploads/{known.removeprefix('media://')}"
    document = {"text": "hi", "scene": str(tmp_path / "after.tif"), "more": [{"file": file}, {"file": known}]}
    port = free_port()
    async with (
        serving(valkey.url, tmp_path / "service", port=port) as service,
        listening(service, port) as server,
        client_of(service) as client,
    ):
        service.objects.put_bytes(key, b"known", content_type="image/tiff")
        if way == "async":
            running = asyncio.create_task(client.run("echo", document))
        else:
            call = (run_in_a_thread,) if way == "sync" else (submit_by_command,)
            more = () if way == "sync" else (tmp_path,)
            running = asyncio.create_task(asyncio.to_thread(*call, server.url, document, *more))  # type: ignore[arg-type]
        claim = await claimed(service)
        sent = claim.submission.input
        assert sent["more"][1] == {"file": known}
        for reference, content in ((sent["scene"], b"after"), (sent["more"][0]["file"], b"before")):
            key = f"tenants/default/uploads/{reference.removeprefix('media://')}"
            assert b"".join(service.objects.read(key)) == content
        await service.succeed(claim)
        await running
