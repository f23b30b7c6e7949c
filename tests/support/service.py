"""The API on real stores with a simulated worker, for the API's tests."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx2
from fastapi import FastAPI

from penstock.api.app import create_app
from penstock.config import Settings
from penstock.jobs import Artifact, Claim, JobKey, State
from penstock.models import CatalogueEntry, Limits, Output
from penstock.storage.journal import journal
from penstock.storage.journal.journal import AsyncJournal
from penstock.storage.journal.outputs import store_output
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues
from penstock.storage.redis.records import AsyncJobStore, Outcome
from tests.support.claims import claiming

MAX_SCENE_BYTES = 1000
MAX_ITEMS = 3

ECHO = CatalogueEntry(
    name="echo",
    title="Echo",
    aliases=("parrot",),
    revision="1",
    queue="default",
    input_schema={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
            "scene": {"type": "string", "format": "media"},
            "more": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
        },
        "$defs": {"Part": {"type": "object", "properties": {"file": {"type": "string", "format": "media"}}}},
        "required": ["text"],
        "additionalProperties": False,
    },
    outputs=(Output(name="text", media_type="text/plain", description="The text again."),),
    limits=Limits(max_bytes=MAX_SCENE_BYTES, max_items=MAX_ITEMS),
    execution_timeout_s=600,
    queue_ttl_s=3600,
    max_attempts=3,
)
BROKEN = ECHO.model_copy(update={"name": "broken", "aliases": (), "problem": "its weights are not those it names"})


@dataclass
class Service:
    """A running API. `worker()` and what follows do what a worker would."""

    settings: Settings
    app: FastAPI
    http: httpx2.AsyncClient
    jobs: AsyncJobStore
    objects: ObjectStore
    hints: SimpleQueue[str]

    def swap(self, **seams: Any) -> None:
        """Give the API other seams than those it was made with (`penstock.api.services.Services`)."""
        self.app.state.services = replace(self.app.state.services, **seams)

    async def submit(self, **body: Any) -> dict[str, Any]:
        """Submit an echo job and return it."""
        response = await self.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "hello"}, **body})
        assert response.status_code == 202, response.text
        job: dict[str, Any] = response.json()
        return job

    async def claim(self) -> Claim:
        """Lease the next job."""
        [claim] = await self.claims(1)
        return claim

    async def claims(self, n: int = 9) -> list[Claim]:
        """Lease the next jobs, if there are any."""
        held: list[Claim] = []
        while len(held) < n and (claim := await self.jobs.run(claiming("default", models=["echo"]))) is not None:
            held.append(claim)
        return held

    async def succeed(
        self, claim: Claim, text: str = "hello", artifacts: tuple[Artifact, ...] = (), **counted: float
    ) -> None:
        """End an attempt well."""
        metrics = {"inference_ms": 5.0, **counted}
        outcome = Outcome(State.SUCCEEDED, text=text, data={"n": 1}, artifacts=artifacts, metrics=metrics)
        await self.end(claim, outcome)

    async def end(self, claim: Claim, outcome: Outcome) -> None:
        """End an attempt, with its output where the settings put it."""
        output = store_output(
            self.objects, claim, outcome.text, outcome.data, inline_bytes=self.settings.inline_output_bytes
        )
        outcome = replace(outcome, output=output)
        assert (await AsyncJournal(self.jobs, self.objects).run(journal.complete(claim, outcome))).answer == "ok"

    async def lose_lease(self, job_id: str, *, tenant: str = "default") -> None:
        """Let a running job's worker die, and have the keeper notice."""
        await self.jobs.client.zadd("penstock:leases", {str(JobKey(tenant, job_id)): 0})
        await AsyncJournal(self.jobs, self.objects).run(journal.sweep())

    async def die(self, job_id: str) -> None:
        """Have the next job's workers die as often as it takes."""
        for _ in range(self.settings.max_crashes):
            await self.claim()
            await self.lose_lease(job_id)

    def store_artifact(self, claim: Claim, name: str, data: bytes, content_type: str) -> Artifact:
        """Put an artifact into the object store as a worker would."""
        key = claim.prefix + name
        self.objects.put_bytes(key, data, content_type=content_type)
        return Artifact(name, content_type, len(data), hashlib.sha256(data).hexdigest(), key)


#: The included routers of the first app, by router.
_INCLUDED: dict[int, Any] = {}


def share_routes(app: FastAPI) -> None:
    """Give an app the included routers of the first one: FastAPI works out their routes in a third of a second."""
    routes = app.router.routes
    for place, route in enumerate(routes):
        if (router := getattr(route, "original_router", None)) is not None:
            routes[place] = _INCLUDED.setdefault(id(router), route)


@asynccontextmanager
async def serving(redis_url: str, folder: Path, **overrides: Any) -> AsyncIterator[Service]:
    """Run an API in this process on a server and a folder."""
    options = {"redis_url": redis_url, "data": folder, "secret": "of the tests", "allowed_hosts": ("files.test:80",)}
    settings = Settings(**{**options, **overrides})
    jobs = AsyncJobStore.open(redis_url)
    objects = open_store(settings.store_url, settings)
    hints: SimpleQueue[str] = SimpleQueue()
    app = create_app(settings, jobs=jobs, objects=objects, send_hint=hints.put)
    share_routes(app)
    await jobs.run(catalogues.publish([ECHO, BROKEN], worker="w", queues=["default"], alive_s=600))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url=settings.base_url) as http,
    ):
        yield Service(settings, app, http, jobs, objects, hints)


def assert_problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is a problem of this kind and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: dict[str, Any] = response.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"urn:penstock:problem:{code}"
    assert set(problem) == {"type", "title", "status", "detail", "code", "retryable", "errors"}
    return problem
