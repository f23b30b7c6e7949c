"""What `penstock doctor` looks at: each part by itself, so that one failure hides no other."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client import Client, ClientError
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.storage.checks import Finding, inspect_object_store, inspect_redis
from penstock.storage.objects import open_store
from penstock.valkey import recorded_url

_START = "start it: `penstock up`"


def examine(settings: Settings, url: str) -> Iterator[Finding]:
    """Yield what was found of the settings' Redis and object store, and of the service at `url`."""
    yield from _redis(settings)
    yield _object_store(settings)
    yield from _service(url)


def _redis(settings: Settings) -> Iterator[Finding]:
    address = settings.redis_url or recorded_url(settings.data / "valkey")
    if address is None:
        remedy = f"{_START}, or say where it keeps its data with --data, or set PENSTOCK_REDIS_URL"
        yield Finding(
            "redis", ok=False, detail=f"none is set, and none was started under {settings.data}", remedy=remedy
        )
        return
    try:
        yield from inspect_redis(address, patience_s=1)
    except PenstockError as error:
        yield Finding("redis", ok=False, detail=error.detail, remedy=f"{_START}, or correct redis_url")


def _object_store(settings: Settings) -> Finding:
    try:
        return inspect_object_store(open_store(settings.store_url, settings), settings.store_url)
    except PenstockError as error:
        return Finding("object store", ok=False, detail=error.detail, remedy="correct `object_store`")


def _service(url: str) -> Iterator[Finding]:
    try:
        with Client(url, patience_s=0) as client:
            queue, models = client.queue("default"), client.models()
    except ClientError as error:
        yield Finding("api", ok=False, detail=str(error), remedy=f"{_START}, or say where it is with --url")
        return
    yield Finding("api", ok=True, detail=url)
    detail = f"{queue.workers} at queue {queue.name}, {queue.queued} waiting, {queue.running} running"
    yield Finding("worker", queue.workers > 0, detail, "no worker was seen lately: `penstock worker`, or read its log")
    if not models:
        yield Finding("models", ok=False, detail="none", remedy="a worker tells of its models when it starts")
    for model in models:
        yield Finding(
            f"model {model.name}",
            model.problem is None,
            model.problem or f"revision {model.revision}",
            "install what its processor and weights need (penstock[worker,geo,demo]) and restart the worker",
        )
