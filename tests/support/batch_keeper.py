"""A keeper's moves for batches, on the stores of a running API: what the tests of batches share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.batches import BatchKey
from penstock.storage.hints import HintSender
from penstock.storage.redis import batches
from penstock.storage.redis.records import JobStore
from penstock.workers.keeper.batch_completion import Completion
from penstock.workers.keeper.batch_expansion import Expansion
from tests.support.service import Service


def line(text: str, **fields: Any) -> dict[str, Any]:
    """Return a request for an echo."""
    return {"model": "echo", "input": {"text": text}, **fields}


def jsonl(rows: Iterable[Any]) -> bytes:
    """Return rows as a file; what is bytes already stays as it is."""
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def parts(batch: dict[str, Any]) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {name: count for name, count in batch["counts"].items() if count}


class KeeperMoves:
    """Does what the keeper does for batches, when it is told to."""

    def __init__(self, service: Service) -> None:
        assert service.settings.redis_url is not None
        self.service = service
        self.store = JobStore.open(service.settings.redis_url)
        self.expansion = Expansion(
            service.settings, self.store, service.objects, HintSender(service.settings.redis_url)
        )
        self.completion = Completion(service.settings, self.store, service.objects)

    async def expand(self) -> None:
        """Make jobs of lines, as far as there is room."""
        await asyncio.to_thread(self.expansion.step)

    async def complete(self) -> None:
        """End the batches that are to be."""
        await asyncio.to_thread(self.completion.step)

    def window(self, key: BatchKey) -> bool:
        """Give a batch one window."""
        with ThreadPoolExecutor(4) as pool:
            return self.expansion.advance(key, pool)

    async def pass_deadline(self, key: BatchKey) -> None:
        """Let a batch's time be over: as if it had been made long ago."""
        batch = self.store.run(batches.read(key))
        manifest = batch.manifest.to_json() | {"created_us": 1}
        name = f"penstock:tenant:{key.tenant}:batch:{key.id}"
        await self.service.jobs.client.hset(name, "manifest", json.dumps(manifest))

    def close(self) -> None:
        """Close the connections."""
        self.store.close()


async def upload(service: Service, data: bytes) -> str:
    """Send a file as a client would and return its reference."""
    wanted = {"filename": "requests.jsonl", "content_type": "application/jsonl", "size_bytes": len(data)}
    place = (await service.http.post("/v1/uploads", json=wanted)).json()
    done = await service.http.request(place["method"], place["url"], content=data, headers=place["headers"])
    assert done.status_code == 200, done.text
    return str(place["media"])


async def submitted(service: Service, **body: Any) -> dict[str, Any]:
    """Submit a batch and return it."""
    response = await service.http.post("/v1/batches", json=body)
    assert response.status_code == 202, response.text
    batch: dict[str, Any] = response.json()
    return batch


async def read(service: Service, batch_id: str) -> dict[str, Any]:
    """Return a batch."""
    response = await service.http.get(f"/v1/batches/{batch_id}")
    assert response.status_code == 200, response.text
    batch: dict[str, Any] = response.json()
    return batch


async def rows(service: Service, batch_id: str, name: str) -> list[dict[str, Any]]:
    """Return the lines of one of a batch's files."""
    response = await service.http.get(f"/v1/batches/{batch_id}/artifacts/{name}.jsonl", follow_redirects=True)
    assert response.status_code == 200, response.text
    return [json.loads(row) for row in response.content.splitlines()]


async def work(service: Service) -> int:
    """Let every waiting job succeed with its own text; return how many there were."""
    done = 0
    while claims := await service.claims():
        await asyncio.gather(*(service.succeed(claim, text=str(claim.submission.input["text"])) for claim in claims))
        done += len(claims)
    return done
