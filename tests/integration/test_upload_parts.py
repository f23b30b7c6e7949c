"""Multipart uploads through the API and the client, on the local store and on a real S3 server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client import AsyncClient, Client, ClientError, PenstockAPIError, Unreachable
from penstock.intake.media import upload_key
from penstock.multipart import MIN_PART_BYTES
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import Service, assert_problem, serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess

PARTS = 7
SIZE = (PARTS - 1) * MIN_PART_BYTES + 12_345
FILE = {"filename": "scene.tif", "content_type": "image/tiff", "size_bytes": SIZE, "multipart": True}


@pytest.fixture(params=["local", "s3"])
async def service(request: pytest.FixtureRequest, valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return an API that listens, on either store, with the smallest parts that S3 takes."""
    options: dict[str, Any] = {"upload_part_bytes": MIN_PART_BYTES, "port": free_port()}
    if request.param == "s3":
        ceph = request.getfixturevalue("ceph")
        options |= {"object_store": f"s3://{ceph.bucket()}", "s3": ceph.s3}
    async with serving(valkey.url, tmp_path / "service", **options) as service, listening(service, options["port"]):
        yield service


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Return a file of seven parts."""
    path = tmp_path / "scene.tif"
    path.write_bytes(os.urandom(SIZE))
    return path


def stored(service: Service, media: str) -> bytes:
    upload_id, _, name = media.removeprefix("media://").partition("/")
    return service.objects.get_bytes(upload_key("default", upload_id, name), limit_bytes=10**9)


class Noting(httpx2.AsyncHTTPTransport):
    """Connections that note each PUT, and break it where they should."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.puts: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PUT":
            self.puts.append(request.url.path)
            if self.broken:
                raise httpx2.ConnectError("cut", request=request)
        return await super().handle_async_request(request)


async def begin(service: Service, **headers: str) -> str:
    """Begin an upload and return its address."""
    answer = await service.http.post("/v1/uploads", json=FILE, headers=headers)
    assert answer.status_code == 201, answer.text
    assert (answer.json()["part_bytes"], answer.json()["parts"]) == (MIN_PART_BYTES, [])
    return "/v1/uploads/" + str(answer.json()["media"]).removeprefix("media://")


async def send(service: Service, address: str, number: int, data: bytes, **headers: str) -> httpx2.Response:
    link = await service.http.post(f"{address}/parts", json={"number": number, "size_bytes": len(data)})
    assert link.status_code == 201, link.text
    async with httpx2.AsyncClient() as web:
        said = link.json()
        return await web.request(said["method"], said["url"], headers={**said["headers"], **headers}, content=data)


@pytest.mark.breadth(but=("s3",))
async def test_a_large_file_arrives_as_it_was_sent(service: Service, scene: Path) -> None:
    told: list[int] = []
    async with AsyncClient(service.settings.base_url) as client:
        media = await client.upload(scene, on_bytes=lambda done, _total: told.append(done))
    assert stored(service, media) == scene.read_bytes()
    assert told == sorted(told)
    assert told[-1] == SIZE


@pytest.mark.breadth
async def test_the_sync_client_sends_the_same(service: Service, scene: Path) -> None:
    def send() -> str:
        with Client(service.settings.base_url) as client:
            return client.upload(scene)

    assert stored(service, await asyncio.to_thread(send)) == scene.read_bytes()


@pytest.mark.breadth(but=("s3",))
async def test_only_the_file_that_is_meant_is_complete(service: Service) -> None:
    address = await begin(service)
    first = os.urandom(MIN_PART_BYTES)
    for number, data in ((1, first), (3, b"end")):
        assert (await send(service, address, number, data)).status_code == 200
    complete = f"{address}/complete"

    gap = assert_problem(
        await service.http.post(complete, json={"size_bytes": MIN_PART_BYTES + 3}), 422, "invalid_request"
    )
    assert gap["errors"] == [
        {"pointer": "/size_bytes", "detail": f"parts 1, 3 with {MIN_PART_BYTES + 3} bytes have arrived"}
    ]
    assert (await send(service, address, 2, b"small")).status_code == 200
    small = await service.http.post(complete, json={"size_bytes": MIN_PART_BYTES + 8})
    assert "each part except the last" in assert_problem(small, 422, "invalid_request")["detail"]
    assert (await send(service, address, 2, first)).status_code == 200
    wrong = {"size_bytes": 2 * MIN_PART_BYTES + 3, "etag": "0" * 32 + "-3"}
    assert_problem(await service.http.post(complete, json=wrong), 422, "invalid_request")

    digests = b"".join(hashlib.md5(part).digest() for part in (first, first, b"end"))
    right = wrong | {"etag": hashlib.md5(digests).hexdigest() + "-3"}
    for _ in range(2):  # the second is the repeat of a lost answer
        done = await service.http.post(complete, json=right)
        assert (done.status_code, done.json()["uploaded"], done.json()["parts"]) == (200, True, [])
    assert stored(service, done.json()["media"]) == first + first + b"end"
    assert_problem(await service.http.delete(address), 409, "state_conflict")


async def test_damaged_and_oversized_parts_are_refused(service: Service) -> None:
    address = await begin(service)
    md5 = base64.b64encode(hashlib.md5(b"right").digest()).decode()
    damaged = await send(service, address, 1, b"wrong", **{"Content-MD5": md5})
    assert damaged.status_code == 400
    too_large = {"number": 1, "size_bytes": MIN_PART_BYTES + 1}
    assert_problem(await service.http.post(f"{address}/parts", json=too_large), 413, "payload_too_large")
    assert (await service.http.get(address)).json()["parts"] == []


async def test_an_upload_that_was_given_up_is_unknown(service: Service) -> None:
    address = await begin(service)
    await send(service, address, 1, b"part")
    assert [part["size_bytes"] for part in (await service.http.get(address)).json()["parts"]] == [4]
    assert (await service.http.delete(address)).status_code == 204
    for answer in (await service.http.get(address), await service.http.delete(address)):
        assert_problem(answer, 404, "unknown_upload")


async def test_what_nobody_completes_is_swept(service: Service) -> None:
    address = await begin(service)
    await send(service, address, 1, b"part")
    assert await asyncio.to_thread(service.objects.sweep, older_than_s=86_400) == 0
    assert await asyncio.to_thread(service.objects.sweep, older_than_s=-5) == 1
    assert_problem(await service.http.get(address), 404, "unknown_upload")


async def test_more_than_a_tenant_may_send_is_not_joined(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_upload_bytes=10, upload_part_bytes=MIN_PART_BYTES) as service:
        small = {**FILE, "size_bytes": 10}
        address = (await service.http.post("/v1/uploads", json=small)).json()["media"].replace("media:/", "/v1/uploads")
        link = (await service.http.post(f"{address}/parts", json={"number": 1, "size_bytes": 11})).json()
        assert (await service.http.put(link["url"], content=b"x" * 11)).status_code == 200
        refused = await service.http.post(f"{address}/complete", json={"size_bytes": 11})
        assert_problem(refused, 413, "payload_too_large")


#: Sends a file and stops for ever when so many bytes went: more than four parts, so that one has arrived. Killed then.
HALF = """
import sys, threading
from penstock.client import Client
url, path, state, enough = sys.argv[1:]
def on_bytes(done, total):
    if done >= int(enough):
        print(done, flush=True)
        threading.Event().wait()
with Client(url, state_dir=state) as client:
    client.upload(path, on_bytes=on_bytes)
"""


@pytest.mark.breadth(but=("s3",))
async def test_another_process_goes_on_where_a_killed_one_was(service: Service, scene: Path, tmp_path: Path) -> None:
    url, state = service.settings.base_url, tmp_path / "state"
    words = [sys.executable, "-c", HALF, url, str(scene), str(state), str(4 * MIN_PART_BYTES + 1)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline)
        process.send_signal(signal.SIGKILL)
    [note] = (state / "uploads").iterdir()

    wire = Noting()
    async with AsyncClient(url, state_dir=state, transport=wire) as client:
        media = await client.upload(scene)
    assert stored(service, media) == scene.read_bytes()
    assert 0 < len(wire.puts) < PARTS
    assert not note.exists()

    async with AsyncClient(url, state_dir=state) as client:
        assert await client.upload(scene) != media  # a new upload, which its own job may outlive


@pytest.mark.breadth(but=("local",))
async def test_a_file_that_changed_is_not_gone_on_with(service: Service, scene: Path, tmp_path: Path) -> None:
    changed = threading.Event()
    async with AsyncClient(service.settings.base_url, state_dir=tmp_path / "state") as client:

        def change(done: int, _total: int) -> None:
            if done > 2 * MIN_PART_BYTES and not changed.is_set():
                scene.write_bytes(b"!" + scene.read_bytes()[1:])
                changed.set()

        with pytest.raises(ClientError, match="was changed while it was sent"):
            await client.upload(scene, on_bytes=change)
        assert await asyncio.to_thread(changed.wait, 60)  # the upload may end while a thread of it is still writing
        media = await client.upload(scene)
    assert stored(service, media) == scene.read_bytes()


@pytest.mark.breadth(but=("s3",))
async def test_a_part_that_fails_ends_the_others(service: Service, scene: Path) -> None:
    async with AsyncClient(service.settings.base_url, patience_s=0, transport=Noting(broken=True)) as client:
        with pytest.raises(Unreachable, match="cut"):
            await client.upload(scene)


@pytest.mark.breadth(but=("local",))
async def test_a_key_of_ones_own_names_one_upload_for_all_tries(service: Service, scene: Path) -> None:
    wire = Noting()
    async with AsyncClient(service.settings.base_url, transport=wire) as client:
        for _ in range(2):
            with pytest.raises(PenstockAPIError):  # the echo takes 1000 bytes: the upload is known all the same
                await client.submit("echo", {"text": "hi"}, files={"scene": scene}, idempotency_key="k")
    assert len(wire.puts) == PARTS  # the second submission finds the upload, and sends nothing


@pytest.mark.breadth
async def test_the_command_line_says_the_reference_and_goes_on(service: Service, scene: Path, tmp_path: Path) -> None:
    shell = Shell({"PENSTOCK_URL": service.settings.base_url, "XDG_STATE_HOME": str(tmp_path / "state")})
    done = await shell("upload", str(scene))
    assert (done.code, done.err) == (0, "")
    assert stored(service, done.out.strip()) == scene.read_bytes()
    listed = (await shell("upload", str(scene), "--json")).document()
    assert [(row["file"], row["size_bytes"]) for row in listed] == [(str(scene), SIZE)]
    assert json.dumps(listed)
    assert list((tmp_path / "state" / "penstock" / "uploads").iterdir()) == []
