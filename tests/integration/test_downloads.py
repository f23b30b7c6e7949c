"""Results that come down: over broken connections, several at a time, in a folder that holds some of them already."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client import AsyncClient, Client, ClientError, Corrupt, Job, Unreachable
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.polling import wait_for
from tests.support.service import Service, serving
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess

MAP = os.urandom(3_000_000)
CUT = 1_000_000


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.breadth)])
async def service(request: pytest.FixtureRequest, valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return an API that listens, on either store."""
    options: dict[str, Any] = {"port": free_port()}
    if request.param == "s3":
        ceph = request.getfixturevalue("ceph")
        options |= {"object_store": f"s3://{ceph.bucket()}", "s3": ceph.s3}
    async with serving(valkey.url, tmp_path / "service", **options) as service, listening(service, options["port"]):
        yield service


class Cutting(httpx2.AsyncHTTPTransport):
    """Connections of which the first few break in the middle of a file. Notes which ranges were asked for."""

    def __init__(self, cuts: int) -> None:
        super().__init__()
        self.cuts = cuts
        self.ranges: list[str | None] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if int(response.headers.get("content-length", 0)) < CUT:
            return response
        self.ranges.append(request.headers.get("range"))
        if self.cuts:
            self.cuts -= 1
            return httpx2.Response(response.status_code, headers=response.headers, stream=Broken(response))
        return response


class Broken(httpx2.AsyncByteStream):
    """A body that breaks after so many bytes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = CUT
        async for chunk in self._response.aiter_raw():
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                raise httpx2.ReadError("cut")

    async def aclose(self) -> None:
        await self._response.aclose()


async def a_result(service: Service, **files: bytes) -> Job:
    """Return a job that made these files."""
    made = await service.submit()
    claim = await service.claim()
    stored = [service.store_artifact(claim, name, data, "image/tiff") for name, data in files.items()]
    await service.succeed(claim, artifacts=tuple(stored))
    async with AsyncClient(service.settings.base_url) as client:
        return await client.job(made["id"])


def draft_of(path: Path, data: bytes) -> Path:
    return path.with_name(f".{path.name}.{sha256(data).hexdigest()[:12]}.part")


async def test_a_broken_download_goes_on_where_it_broke(service: Service, tmp_path: Path) -> None:
    job, wire = await a_result(service, **{"map.tif": MAP}), Cutting(2)
    async with AsyncClient(service.settings.base_url, transport=wire) as client:
        [path, *_] = await client.download(job, tmp_path)
    assert path.read_bytes() == MAP
    starts = [None if said is None else int(said.removeprefix("bytes=").removesuffix("-")) for said in wire.ranges]
    assert starts[0] is None
    assert len(starts) == 3
    assert 0 < (starts[1] or 0) < (starts[2] or 0)
    assert not list(tmp_path.glob(".*"))


async def test_a_connection_that_brings_something_each_time_is_not_given_up(service: Service, tmp_path: Path) -> None:
    job = await a_result(service, **{"map.tif": MAP})
    async with AsyncClient(service.settings.base_url, transport=Cutting(2), patience_s=0) as client:
        [path, *_] = await client.download(job, tmp_path)
    assert path.read_bytes() == MAP


async def test_what_another_process_left_is_gone_on_with(service: Service, tmp_path: Path) -> None:
    job, wire = await a_result(service, **{"map.tif": MAP}), Cutting(0)
    draft = draft_of(tmp_path / "map.tif", MAP)
    draft.write_bytes(MAP[:2_000_000])
    async with AsyncClient(service.settings.base_url, transport=wire) as client:
        [path, *_] = await client.download(job, tmp_path)
    assert (path.read_bytes(), wire.ranges) == (MAP, ["bytes=2000000-"])
    assert not draft.exists()


async def test_a_draft_of_other_bytes_does_not_become_the_file(service: Service, tmp_path: Path) -> None:
    job = await a_result(service, **{"map.tif": MAP})
    for left in (b"x" * 2_000_000, b"x" * len(MAP), MAP + b"x"):
        draft = draft_of(tmp_path / "map.tif", MAP)
        draft.write_bytes(left)
        async with AsyncClient(service.settings.base_url) as client:
            if len(left) < len(MAP):  # found out at the end, and forgotten
                with pytest.raises(Corrupt, match=r"map\.tif"):
                    await client.download(job, tmp_path)
                assert list(tmp_path.glob("*map.tif*")) == []
            [path, *_] = await client.download(job, tmp_path)
        assert path.read_bytes() == MAP
        path.unlink()


async def test_a_draft_that_somebody_writes_is_left_alone(service: Service, tmp_path: Path) -> None:
    job = await a_result(service, **{"map.tif": MAP})
    draft = draft_of(tmp_path / "map.tif", MAP)
    with draft.open("wb") as file:
        file.write(b"theirs")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        async with AsyncClient(service.settings.base_url) as client:
            [path, *_] = await client.download(job, tmp_path)
    assert path.read_bytes() == MAP
    assert draft.read_bytes() == b"theirs"
    assert len(list(tmp_path.glob(".*"))) == 1


async def test_many_files_come_together_and_those_that_are_there_stay(service: Service, tmp_path: Path) -> None:
    files = {f"tiles/{n}.tif": os.urandom(CUT + n) for n in range(12)}
    job, wire = await a_result(service, **files), Cutting(0)
    told: list[tuple[int, int]] = []
    folder = tmp_path / "out"
    (folder / "tiles").mkdir(parents=True)
    (folder / "tiles" / "3.tif").write_bytes(files["tiles/3.tif"])
    (folder / "tiles" / "4.tif").write_bytes(b"x" * (CUT + 4))
    async with AsyncClient(service.settings.base_url, transport=wire) as client:
        await client.download(job, folder, on_bytes=lambda done, total: told.append((done, total)))
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert len(wire.ranges) == 11
    total = sum(map(len, files.values()))
    assert told == sorted(told)
    assert told[-1] == (total, total)


async def test_only_what_is_named_comes_with_the_sync_client_too(service: Service, tmp_path: Path) -> None:
    job = await a_result(service, one=b"1", two=b"2")

    def fetch(*names: str) -> list[Path]:
        with Client(service.settings.base_url) as client:
            return client.download(job, tmp_path / "out", names=names)

    assert [path.name for path in await asyncio.to_thread(fetch, "two")] == ["two"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["two"]
    with pytest.raises(ClientError, match=r"has no three; its artifacts: one, two"):
        await asyncio.to_thread(fetch, "three")


@pytest.mark.breadth(but=("local-tiles/map.tif",))
@pytest.mark.parametrize("name", ["tiles/map.tif", "job.json"])
async def test_a_folder_by_the_name_of_a_file_is_found_before_anything_comes(
    service: Service, tmp_path: Path, name: str
) -> None:
    job, wire = await a_result(service, **{"tiles/map.tif": MAP}), Cutting(0)
    taken = tmp_path / "out" / name
    taken.mkdir(parents=True)
    async with AsyncClient(service.settings.base_url, transport=wire) as client:
        with pytest.raises(ClientError, match=rf"{name}: there is a folder of that name"):
            await client.download(job, tmp_path / "out")
    assert (wire.ranges, list(taken.iterdir())) == ([], [])

    def fetch() -> None:
        with Client(service.settings.base_url) as client:
            client.download(job, tmp_path / "out")

    with pytest.raises(ClientError, match=rf"{name}: there is a folder of that name"):
        await asyncio.to_thread(fetch)
    done = await Shell({"PENSTOCK_URL": service.settings.base_url}, tmp_path)("download", job.id, "--out", "out")
    assert done.code == 2
    assert re.fullmatch(rf"penstock: cannot save out/{name}: .*\n", done.err)


@pytest.mark.breadth
async def test_a_canceled_job_is_said_to_be_that(service: Service, tmp_path: Path) -> None:
    made = await service.submit()
    await service.http.post(f"/v1/jobs/{made['id']}/cancel")
    done = await Shell({"PENSTOCK_URL": service.settings.base_url}, tmp_path)("download", made["id"])
    assert done.code == 1
    assert done.err == "The job was canceled: some files may be missing.\n"


async def test_a_folder_that_cannot_be_made_is_found_before_a_job_is_made(service: Service, tmp_path: Path) -> None:
    shell = Shell({"PENSTOCK_URL": service.settings.base_url}, tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "requests.jsonl").write_text('{"model": "echo", "input": {"prompts": ["a"]}}\n')
    for words in (("submit", "echo", "a"), ("batch", "submit", "requests.jsonl")):
        done = await shell(*words, "--out", "file/result")
        assert (done.code, done.err) == (2, "penstock: cannot make the folder file/result: Not a directory\n")
    assert (await service.http.get("/v1/jobs")).json()["jobs"] == []
    assert (await service.http.get("/v1/batches")).json()["batches"] == []


async def test_one_file_that_fails_ends_the_others_and_keeps_what_came(service: Service, tmp_path: Path) -> None:
    job = await a_result(service, **{"map.tif": MAP, "other.tif": MAP[::-1]})

    def something_came() -> bool:
        return any(draft.stat().st_size > 0 for draft in tmp_path.glob(".*.part"))

    class Cut(Cutting):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if self.ranges:  # the other one, once something of the first has come; or the first again
                await asyncio.to_thread(wait_for, something_came, "nothing came")
                raise httpx2.ConnectError("gone", request=request)
            return await super().handle_async_request(request)

    async with AsyncClient(service.settings.base_url, transport=Cut(1), patience_s=0) as client:
        with pytest.raises(Unreachable):
            await client.download(job, tmp_path)
    kept = list(tmp_path.glob(".*.part"))
    assert kept
    assert all(draft.stat().st_size > 0 for draft in kept)
