"""Uploads: single ones, those in parts, and files that change meanwhile."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client import AsyncClient
from penstock.client.answers import ClientError, PenstockAPIError
from penstock.client.asynchronous import files
from penstock.client.asynchronous.files import AsyncFiles
from penstock.client.uploads import MULTIPART_FROM_BYTES
from tests.support.answering import Answering

PLACE = {"media": "media://u/scene.tif", "method": "PUT", "url": "http://store.test/put", "headers": {}}
LARGE = MULTIPART_FROM_BYTES + 5
PART = 8 << 20


async def test_an_upload_whose_answer_was_lost_has_arrived_when_the_store_says_that_the_key_is_taken(
    tmp_path: Path,
) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_bytes(b"II*\0")
    begun = httpx2.Response(201, json={**PLACE, "headers": {"If-None-Match": "*"}})
    service = Answering(begun, httpx2.ReadError("lost"), httpx2.Response(412, text="<Error/>"))
    assert await AsyncFiles(service.service()).upload(scene) == "media://u/scene.tif"
    other = Answering(httpx2.Response(201, json=PLACE), httpx2.Response(403, text="<Error/>"))
    with pytest.raises(PenstockAPIError):
        await AsyncFiles(other.service()).upload(scene)


@pytest.mark.parametrize("make", [lambda _: None, lambda p: p.mkdir(), lambda p: p.touch()])
async def test_a_file_that_cannot_be_sent_is_said_before_anything_is(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "scene.tif")
    service = Answering()
    with pytest.raises(ClientError, match=r"scene\.tif"):
        await AsyncFiles(service.service()).upload(tmp_path / "scene.tif")
    assert service.asked == []


async def test_a_file_that_goes_with_a_key_is_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scene.tif").write_bytes(b"scene")
    threads, upload_key = [], files.upload_key

    def noted(path: Path, key: str) -> str:
        threads.append(threading.current_thread())
        return upload_key(path, key)

    monkeypatch.setattr(files, "upload_key", noted)
    job = {"id": "0190", "model": "csmask", "status": "queued", "created_at": "2026-01-01T00:00:00Z"}
    service = Answering(httpx2.Response(201, json={**PLACE, "uploaded": True}), httpx2.Response(202, json=job))
    async with AsyncClient(transport=service.transport) as client:
        await client.submit("csmask", files={"scene": tmp_path / "scene.tif"}, idempotency_key="k")
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


class PartStore:
    """A service that takes a file in parts, and the store to which these go."""

    def __init__(self, on_put: Callable[[int], httpx2.Response | None] = lambda _: None) -> None:
        self._on_put = on_put
        self.arrived: dict[int, bytes] = {}
        self.completed: dict[str, Any] | None = None

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path, put = request.url.path, Answering()
        put.asked.append(request)
        if path == "/v1/uploads":
            known = [
                {"number": n, "size_bytes": len(part), "etag": hashlib.md5(part).hexdigest()}
                for n, part in self.arrived.items()
            ]
            begun = {"media": "media://u/scene.tif", "uploaded": False, "part_bytes": PART, "parts": known}
            return httpx2.Response(201, json=begun)
        if path.endswith("/parts"):
            number = put.body(0)["number"]
            return httpx2.Response(
                201, json={"method": "PUT", "url": f"http://store.test/{number}", "headers": {}, "number": number}
            )
        if path.endswith("/complete"):
            self.completed = put.body(0)
            return httpx2.Response(200, json={})
        number = int(path.removeprefix("/"))
        if (answer := self._on_put(number)) is not None:
            return answer
        self.arrived[number] = request.content
        return httpx2.Response(200, headers={"etag": f'"{hashlib.md5(request.content).hexdigest()}"'})


def client_of(store: PartStore) -> AsyncClient:
    return AsyncClient(transport=httpx2.MockTransport(store), patience_s=0)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.tif"
    path.write_bytes(bytes(range(256)) * (LARGE // 256) + b"12345"[: LARGE % 256])
    return path


async def test_a_large_file_goes_in_parts_and_only_those_that_are_missing_go_again(scene: Path) -> None:
    store = PartStore(lambda number: httpx2.Response(403, text="<Error/>") if number == 3 else None)
    async with client_of(store) as client:
        with pytest.raises(PenstockAPIError, match="HTTP 403"):
            await client.upload(scene)
    data = scene.read_bytes()
    again: list[int] = []
    store = PartStore(again.append)  # type: ignore[arg-type]  # it returns None, and the part is taken
    store.arrived = {1: data[:PART], 2: b"other bytes"}
    async with client_of(store) as client:
        assert await client.upload(scene) == "media://u/scene.tif"
    assert sorted(again) == [2, 3]
    assert b"".join(store.arrived[number] for number in (1, 2, 3)) == data
    digests = b"".join(hashlib.md5(part).digest() for part in (data[:PART], data[PART : 2 * PART], data[2 * PART :]))
    assert store.completed == {"size_bytes": LARGE, "etag": f"{hashlib.md5(digests).hexdigest()}-3"}


async def test_a_part_that_is_refused_since_the_file_changed_is_told_as_the_change(scene: Path) -> None:
    def change(_number: int) -> httpx2.Response:
        scene.write_bytes(b"longer than it was")
        return httpx2.Response(400, text="<Error><Code>InvalidDigest</Code></Error>")

    store = PartStore(change)
    async with client_of(store) as client:
        with pytest.raises(ClientError, match="was changed while it was sent") as caught:
            await client.upload(scene)
    assert not isinstance(caught.value, PenstockAPIError)
    assert store.completed is None


async def test_a_file_that_is_gone_before_its_parts_have_arrived_is_named(scene: Path) -> None:
    store = PartStore(lambda _: scene.unlink(missing_ok=True))
    async with client_of(store) as client:
        with pytest.raises(ClientError, match=r"cannot (open|read) .*scene\.tif"):
            await client.upload(scene)
    assert store.completed is None


async def test_parts_that_arrived_of_a_file_that_changed_are_not_joined(scene: Path) -> None:
    left = {1, 2, 3}

    def change(number: int) -> None:
        left.remove(number)
        if not left:
            scene.write_bytes(b"longer than it was")

    store = PartStore(change)  # type: ignore[arg-type]  # it returns None, and the part is taken
    async with client_of(store) as client:
        with pytest.raises(ClientError, match="was changed while it was sent"):
            await client.upload(scene)
    assert (len(store.arrived), store.completed) == (3, None)
