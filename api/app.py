"""The HTTP API, assembled. `uvicorn penstock.api.app:from_settings --factory` serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from penstock import __version__, log
from penstock.api import (
    artifacts,
    auth,
    batches,
    deliveries,
    description,
    errors,
    events,
    health,
    jobs,
    local,
    metrics,
    models,
    object_events,
    queues,
    upload_parts,
    uploads,
    webhooks,
    workers,
)
from penstock.api.door import Door
from penstock.api.facades import ogc, pooling
from penstock.api.facades.errors import SHAPES, elsewhere
from penstock.api.facades.openai import audio as openai_audio
from penstock.api.facades.openai import batches as openai_batches
from penstock.api.facades.openai import files as openai_files
from penstock.api.facades.openai import routes as openai
from penstock.api.fullness import Fullness
from penstock.api.query import each_once
from penstock.api.rate_limit import RateLimit
from penstock.api.services import Hints, Services
from penstock.api.tracing import Tracing
from penstock.api.traffic import Counting, Traffic
from penstock.api.turns import BATCHES_AT_ONCE, Turns
from penstock.config import Settings, load_settings
from penstock.errors import ConfigError
from penstock.storage.base import ObjectStore
from penstock.storage.objects import open_store
from penstock.storage.records import AsyncJobStore


def create_app(
    settings: Settings, *, jobs: AsyncJobStore, objects: ObjectStore, send_hint: Callable[[str], object]
) -> FastAPI:
    """Return the app on these seams. It closes `jobs` when it ends.

    Raises `ConfigError` where it would be open to more than this machine.
    """
    services = Services(
        settings, jobs, objects, Hints(send_hint), Turns(), Turns(BATCHES_AT_ONCE), Fullness(),
        RateLimit(settings), auth.keyring(settings, objects),
    )  # fmt: skip
    app = FastAPIOffline(
        title="Penstock",
        version=__version__,
        summary="Inference as a job queue.",
        redoc_url=None,
        static_url="/docs/static",
        dependencies=[Depends(auth.served_host), Depends(auth.admitted), Depends(each_once)],
        generate_unique_id_function=description.operation_id,
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.traffic = Traffic()
    app.add_middleware(Door, services=services)
    app.add_middleware(Counting, traffic=app.state.traffic)
    app.add_middleware(Tracing)
    errors.install(app, SHAPES, elsewhere)
    description.install(app, with_keys=services.keys is not None)
    for router in _routers(services):
        app.include_router(router)
    app.add_api_route("/", _home, include_in_schema=False)
    return app


def from_settings() -> FastAPI:
    """Return the app on the real stores that the settings name."""
    from penstock.queue import HintSender  # here, because it loads celery

    settings = load_settings()
    log.configure(settings.log_level)
    if settings.redis_url is None:
        raise ConfigError("redis_url is not set: `penstock up` starts a server of its own and sets it")
    if urlsplit(settings.store_url).scheme == "file" and settings.secret is None:
        raise ConfigError("secret is not set: it signs the links of the local object store")
    return create_app(
        settings,
        jobs=AsyncJobStore.open(settings.redis_url),
        objects=open_store(settings.store_url, settings),
        send_hint=HintSender(settings.redis_url).send,
    )


def _routers(services: Services) -> list[APIRouter]:
    routers = [
        jobs.router, events.router, artifacts.router, batches.router, deliveries.router, deliveries.tenants_router,
        webhooks.router, uploads.router, upload_parts.router, models.router, queues.router, health.router,
        metrics.router, workers.router, pooling.router, openai.router, openai_audio.router,
        openai_files.router, openai_batches.router, ogc.router, object_events.router,
    ]  # fmt: skip
    return [*routers, local.router] if services.store_is_local else routers


async def _home() -> RedirectResponse:
    return RedirectResponse("/docs")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    yield
    services.hints.close()
    await services.jobs.close()
