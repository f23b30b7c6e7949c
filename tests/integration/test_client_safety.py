"""One job however often it is asked for, and what a waiting client is told."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import httpx2
import pytest

from penstock.client import AsyncClient, ClientError, Job, PenstockAPIError
from penstock.jobs import Phase, Progress
from penstock.storage.redis import records
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import Service
from tests.support.stack import free_port


class Losing(httpx2.AsyncHTTPTransport):
    """A network that brings the first submission to the service, and loses the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.refused = asyncio.Event()
        self.tries = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.tries += 1
        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError:
            self.refused.set()
            raise
        if not self.lost.is_set():
            assert response.status_code == 202
            await response.aread()
            self.lost.set()
            raise httpx2.ReadError("lost")
        return response


async def test_an_answer_that_was_lost_and_a_restart_make_no_second_job(service: Service) -> None:
    port, wire = free_port(), Losing()
    async with AsyncClient(f"http://127.0.0.1:{port}", patience_s=120, transport=wire) as client:
        async with listening(service, port):
            submitting = asyncio.create_task(client.submit("echo", {"text": "hi"}))
            await asyncio.wait_for(wire.lost.wait(), 30)
        await asyncio.wait_for(wire.refused.wait(), 60)  # nobody listens at the moment
        async with listening(service, port):
            job = await submitting
            assert [found.id for found in (await client.jobs()).jobs] == [job.id]
    assert wire.tries >= 3


async def test_a_job_may_have_an_id_of_ones_own(service: Service) -> None:
    wanted = str(uuid.uuid4())
    async with AsyncClient(service.settings.base_url, transport=httpx2.ASGITransport(service.app)) as client:
        made = [await client.submit("echo", {"text": "hi"}, job_id=wanted) for _ in range(2)]
        assert [job.id for job in made] == [wanted, wanted]
        with pytest.raises(PenstockAPIError) as caught:
            await client.submit("echo", {"text": "ho"}, job_id=wanted)
        assert caught.value.status == 422


async def test_who_waits_is_told_how_far_the_job_is_and_how_long_it_takes(service: Service) -> None:
    seen: list[Job] = []
    async with AsyncClient(service.settings.base_url, transport=httpx2.ASGITransport(service.app)) as client:
        await client.submit("echo", {"text": "first"})
        await service.succeed(await service.claim())  # so that a speed is known
        job = await client.submit("echo", {"text": "hi"})
        claim = await service.claim()
        await service.jobs.run(records.heartbeat(claim, Phase.INFERRING, Progress(3, 8, "tiles")))
        told = asyncio.Event()

        def take(job: Job) -> None:
            seen.append(job)
            told.set()

        waiting = asyncio.create_task(client.wait(job.id, on_job=take))
        await told.wait()
        await service.succeed(claim)
        assert (await waiting).succeeded
    assert (seen[0].phase, seen[0].progress.done, seen[0].progress.total) == ("inferring", 3, 8)
    assert seen[0].eta_s is not None
    assert seen[-1].over


async def test_the_command_line_waits_and_saves(service: Service, tmp_path: Path) -> None:
    async with listening(service) as server:
        shell = Shell({"PENSTOCK_URL": server.url}, tmp_path)
        made = (await service.submit())["id"]
        late = await shell("wait", made, "--timeout", "0")
        assert (late.code, "it goes on" in late.err) == (4, True)
        claim = await service.claim()
        artifact = service.store_artifact(claim, "map.tif", b"a map", "image/tiff")
        await service.succeed(claim, artifacts=(artifact,))
        assert (await shell("wait", made, "--json")).document()["status"] == "succeeded"
        saved = await shell("download", made, "map.tif", "--out", "here")
        assert (saved.code, saved.out.split()[0]) == (0, "here/map.tif")
        assert (tmp_path / "here" / "map.tif").read_bytes() == b"a map"
        unknown = await shell("download", made, "nothing")
        assert (unknown.code, "its artifacts: map.tif" in unknown.err) == (2, True)


async def test_an_id_never_leaves_its_place_in_the_path(service: Service) -> None:
    async with AsyncClient(service.settings.base_url, transport=httpx2.ASGITransport(service.app)) as client:
        with pytest.raises(PenstockAPIError) as refused:
            await client.job("../queues")
        assert refused.value.status in (404, 422)


async def test_the_files_of_a_job_that_runs_are_not_taken_for_all(service: Service, tmp_path: Path) -> None:
    async with AsyncClient(service.settings.base_url, transport=httpx2.ASGITransport(service.app)) as client:
        job = await client.submit("echo", {"text": "hi"})
        with pytest.raises(ClientError, match="is queued"):
            await client.download(job, tmp_path / "result")
    assert not (tmp_path / "result").exists()
