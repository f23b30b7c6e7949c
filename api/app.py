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
    deliveries,
    description,
    errors,
    events,
    health,
    jobs,
    local,
    models,
    queues,
    uploads,
)
from penstock.api.services import Hints, Services
from penstock.config import Settings, load_settings
from penstock.errors import ConfigError
from penstock.storage.base import ObjectStore
from penstock.storage.records import AsyncJobStore


def create_app(
    settings: Settings, *, jobs: AsyncJobStore, objects: ObjectStore, send_hint: Callable[[str], object]
) -> FastAPI:
    """Return the app on these seams. It closes `jobs` when it ends.

    Raises `ConfigError` where it would be open to more than this machine.
    """
    auth.open_mode(settings)
    services = Services(settings, jobs, objects, Hints(send_hint))
    app = FastAPIOffline(
        title="Penstock",
        version=__version__,
        summary="Inference as a job queue.",
        redoc_url=None,
        static_url="/docs/static",
        dependencies=[Depends(auth.served_host)],
        lifespan=_lifespan,
    )
    app.state.services = services
    errors.install(app)
    description.install(app)
    for router in _routers(services):
        app.include_router(router)
    app.add_api_route("/", _home, include_in_schema=False)
    return app


def from_settings() -> FastAPI:
    """Return the app on the real stores that the settings name."""
    # Here, because these load boto3 and celery.
    from penstock.queue import HintSender
    from penstock.storage.objects import open_store

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
        jobs.router, events.router, artifacts.router, deliveries.router, uploads.router, models.router, queues.router,
        health.router,
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
