"""RunPod's own package against the facade, with a simulated worker. The package has an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.api.routes.queues import MAX_JOBS
from penstock.errors import MediaUnreadable
from penstock.jobs import State
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import Facing, facing
from tests.support.valkey import ValkeyProcess

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
#: The beginning of a program with RunPod's package.
HEAD = """
import json, sys
import runpod
runpod.endpoint_url_base, runpod.api_key = sys.argv[1], "none"
endpoint = runpod.Endpoint("writer")
def tell(**what):
    print(json.dumps(what), flush=True)
"""


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path) as running:
        yield running


class Told:
    """The lines that a program prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        if not line:
            raise AssertionError((await self._process.stderr.read()).decode())
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def program(face: Facing, text: str) -> AsyncIterator[Told]:
    """Run a program with the package's endpoint of `writer`."""
    if not PYTHON.exists():
        reason = "needs RunPod's package: make .venv-clients/.ready"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    base = f"{face.url}/runpod/v2"
    process = await asyncio.create_subprocess_exec(PYTHON, "-c", HEAD + text, base, stdout=PIPE, stderr=PIPE)
    try:
        yield Told(process)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.breadth
async def test_a_job_is_run_streamed_and_read(face: Facing) -> None:
    text = """
job = endpoint.run({"prompt": "Once"})
tell(id=job.job_id, status=job.status())
for piece in job.stream():
    tell(piece=piece)
tell(status=job.status(), output=job.output())
"""
    async with program(face, text) as told:
        first = await told.next()
        assert first["status"] == "IN_QUEUE"
        claim = await face.claim()
        assert (claim.key.id, claim.submission.model) == (first["id"], "writer")
        assert claim.submission.input == {"prompt": "Once"}
        await face.say(claim, "Once ", at=0)
        assert (await told.next())["piece"] == "Once "
        await face.say(claim, "upon", at=5)
        assert (await told.next())["piece"] == "upon"
        await face.service.end(claim, Outcome(State.SUCCEEDED, text="Once upon a time", data={"n": 1}))
        assert (await told.next())["piece"] == " a time"
        last = await told.next()
        assert last == {"status": "COMPLETED", "output": {"text": "Once upon a time", "json": {"n": 1}}}


@pytest.mark.breadth
async def test_a_synchronous_run_returns_the_output(face: Facing) -> None:
    async with program(face, 'tell(output=endpoint.run_sync({"input": {"prompt": "Once"}}))') as told:
        claim = await face.claim()
        await face.service.end(claim, Outcome(State.SUCCEEDED, text="Once upon"))
        assert await told.next() == {"output": {"text": "Once upon"}}


@pytest.mark.breadth
async def test_jobs_are_canceled_alone_and_by_endpoint(face: Facing) -> None:
    text = """
jobs = [endpoint.run({"prompt": str(n)}) for n in range(3)]
tell(health=endpoint.health())
tell(canceled=jobs[0].cancel()["status"], now=jobs[0].status())
tell(purged=endpoint.purge_queue(), now=[job.status() for job in jobs])
"""
    other = await face.service.submit()
    async with program(face, text) as told:
        health = (await told.next())["health"]
        assert health["jobs"]["inQueue"] == 3  # `other` is of another model
        assert set(health["workers"]) == {"idle", "initializing", "ready", "running", "throttled", "unhealthy"}
        assert await told.next() == {"canceled": "CANCELLED", "now": "CANCELLED"}
        assert await told.next() == {"purged": {"removed": 2, "status": "completed"}, "now": ["CANCELLED"] * 3}
    assert (await face.job(other["id"]))["status"] == "queued"


@pytest.mark.breadth
async def test_an_asyncio_endpoint_runs_and_waits(face: Facing) -> None:
    text = """
import asyncio
from runpod import AsyncioEndpoint
from runpod.http_client import AsyncClientSession
async def main():
    async with AsyncClientSession() as session:
        job = await AsyncioEndpoint("writer", session).run({"prompt": "Once"})
        tell(output=await job.output(timeout=60), status=await job.status())
asyncio.run(main())
"""
    async with program(face, text) as told:
        await face.service.end(await face.claim(), Outcome(State.SUCCEEDED, text="Once upon"))
        assert await told.next() == {"output": {"text": "Once upon"}, "status": "COMPLETED"}


async def test_a_failed_job_has_its_error_and_a_wrong_input_is_400(face: Facing) -> None:
    http, base = face.service.http, "/runpod/v2/writer"
    made = (await http.post(f"{base}/run", json={"input": {"prompt": "a"}, "policy": {"ttl": 5000}})).json()
    claim = await face.claim()
    assert claim.submission.queue_ttl_s == 5
    await face.service.end(claim, Outcome(State.FAILED, error=MediaUnreadable("a poem").report()))
    found = (await http.get(f"{base}/status/{made['id']}")).json()
    assert (found["status"], found["error"]) == ("FAILED", "media_unreadable: a poem")
    assert (await http.get(f"{base}/stream/{made['id']}")).json() == {"status": "FAILED", "stream": []}
    again = (await http.post(f"{base}/retry/{made['id']}")).json()
    assert again["status"] == "IN_QUEUE"
    assert again["id"] != made["id"]
    wrong = await http.post(f"{base}/run", json={"input": {"colour": "red"}})
    assert wrong.status_code == 400
    assert "colour" in wrong.json()["error"]
    for path in ("/runpod/v2/nomodel/health", f"/runpod/v2/listener/status/{made['id']}"):
        assert (await http.get(path)).status_code == 404
    listed = await http.post(f"{base}/run", json={"input": {"prompt": "a"}, "s3Config": {}})
    assert (listed.status_code, listed.json()["error"]) == (
        400,
        "The request does not fit its schema. (/s3Config: is not known)",
    )


@pytest.mark.breadth
async def test_a_purge_reaches_a_models_jobs_behind_those_of_others(face: Facing) -> None:
    for n in range(0, MAX_JOBS, 100):
        await asyncio.gather(*(face.service.submit() for _ in range(n, n + 100)))
    http, base = face.service.http, "/runpod/v2/writer"
    await http.post(f"{base}/run", json={"input": {"prompt": "a"}})
    assert (await http.post(f"{base}/purge-queue")).json() == {"removed": 1, "status": "completed"}
    assert (await face.service.http.get("/v1/queues/default")).json()["queued"] == MAX_JOBS


async def test_a_result_without_a_text_is_one_piece(face: Facing) -> None:
    http, base = face.service.http, "/runpod/v2/mapper"
    wanted = {"input": {"scene": "http://files.test:80/a.tif"}}
    made = (await http.post(f"{base}/runsync?wait=1000", json=wanted)).json()
    assert made["status"] == "IN_QUEUE"
    claim = await face.claim()
    file = face.service.store_artifact(claim, "classes.tif", b"map", "image/tiff")
    await face.service.end(claim, Outcome(State.SUCCEEDED, artifacts=(file,)))
    stream = (await http.get(f"{base}/stream/{made['id']}")).json()
    assert [a["name"] for a in stream["stream"][0]["output"]["artifacts"]] == ["classes.tif"]
    assert (await http.get(f"{base}/stream/{made['id']}")).json() == {"status": "COMPLETED", "stream": []}
