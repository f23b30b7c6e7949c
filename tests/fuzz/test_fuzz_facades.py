"""OpenAI's and vLLM's routes fuzzed by their bodies' schemas: whatever comes, the answer is one of the interface's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import Empty

import pytest

from penstock.jobs import Claim, State
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis.records import Outcome
from tests.fuzz.facades import document
from tests.fuzz.test_fuzz import EXAMPLES, KEY, LONG, RECORD, fuzz
from tests.support.facade_models import Facing, facing
from tests.support.valkey import ValkeyProcess, start_valkey

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if LONG else 300)]


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """Return a job store of the test's own."""
    valkey = start_valkey(tmp_path / "valkey")
    yield valkey
    valkey.stop()


@pytest.mark.breadth
async def test_every_answer_of_a_facade_is_in_its_interfaces_shape(valkey: ValkeyProcess, tmp_path: Path) -> None:
    described, config = tmp_path / "facades.json", Path(__file__).with_name("facades.toml")
    async with facing(valkey.url, tmp_path / "data", access="keys") as face, answering(face):
        put_key(face.service.objects, RECORD)
        described.write_text(json.dumps(document(await furnish(face))))
        headers = {"Authorization": f"Bearer {KEY}"}
        await fuzz(tmp_path, str(described), headers, "--url", face.url, "--max-examples", str(EXAMPLES), config=config)


async def furnish(face: Facing) -> dict[str, str]:
    """Leave a file and a batch; return the parameters of paths that lead to something."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embedder", "input": "hi"}}
    async with face.client(api_key=KEY) as client:
        file = await client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    body, headers = {"input": {"prompt": "a"}}, {"Authorization": f"Bearer {KEY}"}
    job = (await face.service.http.post("/runpod/v2/writer/run", json=body, headers=headers)).json()
    known = {"job_id": job["id"], "endpoint": "writer"}
    return {"file_id": file.id, "batch_id": batch.id, "name": "writer", **known}


@asynccontextmanager
async def answering(face: Facing) -> AsyncIterator[None]:
    """Answer whatever is asked as the model's worker would."""

    async def work() -> None:
        while True:
            with suppress(Empty, AssertionError):  # nothing is asked; its client left
                claim = await face.claim()
                await face.service.end(claim, outcome(face, claim))

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        face.service.hints.put("default")  # ends the thread that waits
        with suppress(asyncio.CancelledError):
            await task


def outcome(face: Facing, claim: Claim) -> Outcome:
    """Return a small result of the kind that a job's model makes."""
    asked = claim.submission
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    match asked.model:
        case "embedder":
            rows = [[0.5, 0.25] for _ in asked.input["texts"]]
            return Outcome(State.SUCCEEDED, data={"embeddings": rows, "dimensions": 2, "usage": usage})
        case "painter":
            image = face.service.store_artifact(claim, "image-0.png", b"a picture", "image/png")
            sizes = {"width": 8, "height": 8, "images": [{"name": image.name}]}
            return Outcome(State.SUCCEEDED, data=sizes, artifacts=(image,))
        case "mapper":
            raster = face.service.store_artifact(claim, "classes.tif", b"II*\0", "image/tiff")
            return Outcome(State.SUCCEEDED, artifacts=(raster,))
        case "listener":
            segments = [{"id": 0, "start": 0.0, "end": 1.0, "text": "hello"}]
            return Outcome(
                State.SUCCEEDED, text="hello", data={"segments": segments, "duration": 1.0, "language": "en"}
            )
    return Outcome(State.SUCCEEDED, text="hello", data={"finish_reason": "stop", "usage": usage})
