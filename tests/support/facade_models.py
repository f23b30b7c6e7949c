"""Models that facades can ask, on a running API, with a worker's moves: what the facades' tests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

from penstock.jobs import Claim, State
from penstock.models import CatalogueEntry, Limits
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.image_generation.request import TextToImageRequest
from penstock.processors.language.request import GenerationRequest, TextEmbeddingRequest
from penstock.processors.speech.request import SpeechRequest
from penstock.processors.vllm.options import FIELDS, PluginFields
from penstock.processors.vllm.request import request_for
from penstock.storage.redis import catalogues, streaming
from penstock.storage.redis.records import Outcome
from tests.support.api_server import listening
from tests.support.claims import claiming
from tests.support.service import ECHO, Service, serving

ALIAS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"


def entry(name: str, processor: str, request: type[BaseModel], **fields: Any) -> CatalogueEntry:
    """Return a model of one of our processors."""
    update = {"name": name, "aliases": (), "processor": processor, "limits": Limits()}
    return ECHO.model_copy(update={**update, "input_schema": request.model_json_schema(), **fields})


MODELS = [
    entry("writer", "text-generation", GenerationRequest),
    entry("embedder", "text-embedding", TextEmbeddingRequest),
    entry("listener", "speech-recognition", SpeechRequest),
    entry("painter", "image-generation", TextToImageRequest),
    entry("mapper", "raster-segmentation", SegmentationRequest, aliases=(ALIAS,)),
    entry("plugin", "vllm-plugin", request_for(FIELDS["terratorch_segmentation"])),
    entry("counter", "vllm-plugin", request_for(PluginFields(("image",), {"least": {"type": "number"}}))),
]


@dataclass
class Facing:
    """A running API that listens, and its address."""

    service: Service
    url: str
    models: Sequence[CatalogueEntry]

    def client(self, **options: Any) -> AsyncOpenAI:
        """Return OpenAI's client of it."""
        return AsyncOpenAI(base_url=f"{self.url}/openai/v1", **{"api_key": "none", "max_retries": 0, **options})

    async def claim(self) -> Claim:
        """Lease the next job, when there is one."""
        names = [model.name for model in self.models]
        command = claiming("default", models=names)
        while (claim := await self.service.jobs.run(command)) is None:
            await asyncio.to_thread(self.service.hints.get, timeout=20)
        return claim

    async def say(self, claim: Claim, piece: str, *, at: int) -> None:
        """Tell a piece of a job's text."""
        assert await self.service.jobs.run(streaming.stream_text(claim, piece, at=at))

    async def write(self, claim: Claim, *pieces: str, reason: str = "stop") -> None:
        """End a job of `writer` with a text that is told in pieces."""
        text = ""
        for piece in pieces:
            await self.say(claim, piece, at=len(text))
            text += piece
        usage = {"prompt_tokens": 3, "completion_tokens": len(pieces), "total_tokens": 3 + len(pieces)}
        data = {"finish_reason": reason, "usage": usage}
        await self.service.end(claim, Outcome(State.SUCCEEDED, text=text, data=data))

    def answered(self, status: int, *, times: int = 1) -> bool:
        """Return True where so many requests were answered with a status."""
        metric = next(
            m for m in self.service.app.state.traffic.registry.collect() if m.name == "penstock_http_requests"
        )
        found = (s.value for s in metric.samples if s.name.endswith("_total") and s.labels["status"] == str(status))
        return sum(found) >= times

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return a job by the API of our own."""
        found: dict[str, Any] = (await self.service.http.get(f"/v1/jobs/{job_id}")).json()
        return found


@asynccontextmanager
async def facing(
    redis_url: str, folder: Path, *, models: Sequence[CatalogueEntry] = MODELS, **overrides: Any
) -> AsyncIterator[Facing]:
    """Run an API that listens, with the models."""
    async with serving(redis_url, folder, **overrides) as service, listening(service) as server:
        await service.jobs.run(catalogues.publish(list(models), worker="v", queues=["default"], alive_s=600))
        yield Facing(service, server.url, models)
