"""The HTTP API: assembles the app and serves it with uvicorn."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware

from penstock import __version__
from penstock.api import auth, description, errors
from penstock.api.admission.concurrency import MAX_CONCURRENT_BATCHES, ConcurrencyLimit, RecentRefusals
from penstock.api.admission.control import AdmissionControl
from penstock.api.admission.rate_limit import Pace, RateLimit
from penstock.api.facades.errors import ERROR_FORMATS, not_found_hint
from penstock.api.facades.ogc import routes as ogc
from penstock.api.facades.openai import audio as openai_audio
from penstock.api.facades.openai import batches as openai_batches
from penstock.api.facades.openai import files as openai_files
from penstock.api.facades.openai import images as openai_images
from penstock.api.facades.openai import routes as openai
from penstock.api.facades.pooling import routes as pooling
from penstock.api.facades.runpod import routes as runpod
from penstock.api.framing import Framing
from penstock.api.hosts import HostCheck
from penstock.api.isolation import Isolation
from penstock.api.model_catalogue import ModelCatalogue
from penstock.api.page import PATH, DocsHeaders, Page
from penstock.api.query import unique_parameters
from penstock.api.routes import (
    artifacts,
    batches,
    deliveries,
    drops,
    events,
    health,
    jobs,
    key,
    links,
    local_links,
    metrics,
    models,
    object_events,
    queues,
    subscriptions,
    tiles,
    uploads,
    usage,
    webhooks,
)
from penstock.api.services import Hints, Services
from penstock.api.tracing import Tracing
from penstock.api.traffic import Traffic, TrafficMiddleware
from penstock.config import Settings, load_settings
from penstock.errors import ConfigError
from penstock.observation import log
from penstock.observation.telemetry import NoSpans, Spans, open_spans
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_own_store
from penstock.storage.redis.records import AsyncJobStore

#: Thresholds of the garbage collector. With Python's (700, 10, 10) it took a sixth of the processor time of a flood.
GC_THRESHOLDS = (20_000, 20, 20)
#: Connections that wait in the kernel to be accepted.
BACKLOG = 512
#: Seconds that requests have to end at a stop.
GRACE_S = 5
#: Methods and response headers for scripts of other origins (`cors_origins`).
CORS_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
CORS_HEADERS = (
    "Content-Disposition", "Content-Range", "ETag", "Idempotency-Replayed", "Link", "Location", "Preference-Applied",
    "Retry-After", "X-Request-Id",
)  # fmt: skip
#: Exit code where the app or its port cannot be opened, as uvicorn's.
STARTUP_FAILURE = 3


def create_app(
    settings: Settings, *, jobs: AsyncJobStore, objects: ObjectStore, send_hint: Callable[[str], object],
    spans: Spans | None = None,
) -> FastAPI:  # fmt: skip
    """Return the app on these stores. Shutdown closes `jobs` and `spans`.

    Raises `ConfigError` where an API without keys would be reachable from other machines.
    """
    services = Services(
        settings, jobs, objects, Hints(send_hint), ConcurrencyLimit(),
        ConcurrencyLimit(MAX_CONCURRENT_BATCHES, late_s=math.inf),
        RecentRefusals(), RateLimit(settings), Pace(), Isolation(), Isolation(MAX_CONCURRENT_BATCHES),
        ModelCatalogue(jobs, objects),
        auth.open_keyring(settings, objects),
    )  # fmt: skip
    app = FastAPIOffline(
        title="Penstock",
        version=__version__,
        summary="Inference as a job queue.",
        redoc_url=None,
        static_url="/docs/static",
        dependencies=[Depends(auth.authenticate), Depends(unique_parameters)],
        generate_unique_id_function=description.operation_id,
        lifespan=_lifespan,
    )
    app.state.services = services
    app.state.spans = spans = spans or NoSpans()
    app.state.traffic = Traffic()
    # The last one added sees a request first.
    app.add_middleware(DocsHeaders)
    if services.keys is None:
        app.add_middleware(HostCheck, settings=settings)
    app.add_middleware(AdmissionControl, services=services)
    app.add_middleware(TrafficMiddleware, traffic=app.state.traffic)
    app.add_middleware(Tracing, spans=spans)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=CORS_METHODS, allow_headers=["*"],
            expose_headers=CORS_HEADERS,
        )  # fmt: skip
    errors.install(app, ERROR_FORMATS, not_found_hint)
    description.install(app, with_keys=services.keys is not None)
    for router in _routers(services):
        app.include_router(router)
    app.add_api_route("/", _home, include_in_schema=False)
    app.mount(PATH, Page(None if services.store_is_local else objects))
    return app


def from_settings() -> FastAPI:
    """Return the app on the stores that the settings name."""
    from penstock.storage.hints import HintSender  # here, because it loads celery

    settings = load_settings()
    log.configure(settings.log_level)
    if settings.redis_url is None:
        raise ConfigError("redis_url is not set; set it, or run `penstock up`, which starts a server of its own")
    if urlsplit(settings.store_url).scheme == "file" and settings.secret is None:
        raise ConfigError("secret is not set, and the local object store needs it to sign links; set PENSTOCK_SECRET")
    if settings.tiles_url is not None and settings.secret is None:
        raise ConfigError("secret is not set, and the links to map tiles are signed with it; set PENSTOCK_SECRET")
    app = create_app(
        settings,
        jobs=AsyncJobStore.open(settings.redis_url),
        objects=open_own_store(settings),
        send_hint=HintSender(settings.redis_url).send,
        spans=open_spans("api"),
    )
    gc.collect()
    gc.freeze()  # a pass over the app's objects takes 100 ms
    gc.set_threshold(*GC_THRESHOLDS)
    return app


def serve(app: FastAPI, settings: Settings, descriptor: int | None = None) -> None:
    """Serve an app until SIGTERM; exit with 3 where it cannot start.

    `descriptor` is a bound socket, which other processes may share: each accepts the connections that it gets to first.
    None = the settings' host and port.
    """
    # `Framing` relies on how h11 reads absolute targets and ambiguous lengths, and on its limit of a head.
    config = uvicorn.Config(
        Framing(app), host=settings.host, port=settings.port, http="h11",
        backlog=BACKLOG, timeout_graceful_shutdown=GRACE_S, log_config=None, access_log=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):  # the server has ended in order
        server.run(None if descriptor is None else [socket.socket(fileno=descriptor)])
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _routers(services: Services) -> list[APIRouter]:
    routers = [
        jobs.router, events.router, artifacts.router, links.router, events.changes_router, key.router, batches.router,
        deliveries.router, deliveries.tenants_router,
        webhooks.router, uploads.router, uploads.parts_router, models.router, queues.router, health.router,
        metrics.router, queues.workers_router, usage.router, drops.router, pooling.router, openai.router,
        openai_audio.router, openai_images.router, openai_files.router, openai_batches.router, ogc.router,
        runpod.router, object_events.router, subscriptions.router, tiles.router,
    ]  # fmt: skip
    return [*routers, local_links.router] if services.store_is_local else routers


async def _home() -> RedirectResponse:
    return RedirectResponse("/docs")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    yield
    services.hints.close()
    await services.jobs.close()
    await asyncio.to_thread(app.state.spans.close)
