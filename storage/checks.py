"""Whether a Redis keeps what it answered, and whether an object store gives back what it took."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from penstock.config import Settings
from penstock.errors import ConfigError, ObjectExists, PenstockError, RedisUnavailable
from penstock.storage.base import ObjectStore

#: Scripts with flags, and AOF of several files: what ours need.
OLDEST_REDIS = (7, 0)
#: How long a Redis that is starting is waited for.
PATIENCE_S = 30
_RETRY_EVERY_S = 0.2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it where it failed."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    #: Whether it works, but perhaps not as it was meant.
    doubtful: bool = False


def redis_findings(info: Mapping[str, Any], appendfsync: str | None) -> tuple[Finding, ...]:
    """Judge a server by its INFO and its setting `appendfsync` (None = it does not tell). Pure."""
    version = str(info.get("redis_version", "unknown"))  # of a Valkey the Redis that it is compatible with
    valkey = info.get("valkey_version")
    policy = str(info.get("maxmemory_policy", "unknown"))
    return (
        Finding(
            "redis version",
            _numbers(version) >= OLDEST_REDIS,
            version if valkey is None else f"Valkey {valkey}",
            "run Redis 7.0 or newer, or Valkey",
        ),
        Finding(
            "redis appendonly",
            str(info.get("aof_enabled", "0")) == "1",
            "yes" if str(info.get("aof_enabled", "0")) == "1" else "no",
            "set `appendonly yes`: without it a restart forgets the jobs",
        ),
        Finding(
            "redis appendfsync",
            appendfsync == "always",
            appendfsync or "cannot be read: CONFIG GET is not allowed",
            "set `appendfsync always`: `everysec` forgets the last second's answers when the server dies",
        ),
        Finding(
            "redis maxmemory-policy",
            policy == "noeviction",
            policy,
            "set `maxmemory-policy noeviction`: any other drops jobs when memory is short",
        ),
    )


def inspect_redis(url: str, *, patience_s: float = PATIENCE_S) -> tuple[Finding, ...]:
    """Ask a server and judge it; `RedisUnavailable` if it does not answer, `ConfigError` for what is no address."""
    failures = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
    retry = Retry(ConstantBackoff(_RETRY_EVERY_S), int(patience_s / _RETRY_EVERY_S), supported_errors=failures)
    try:
        with redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=5, socket_connect_timeout=2, retry=Retry(ConstantBackoff(0), 0)
        ) as client:
            info = retry.call_with_retry(client.info, lambda _: None)
            return redis_findings(info, _appendfsync(client))
    except ValueError as error:
        raise ConfigError(f"redis_url is not an address of a Redis: {error}") from error
    except redis.RedisError as error:
        raise RedisUnavailable(f"the Redis of redis_url does not answer: {error}") from error


def require_durable_redis(settings: Settings) -> None:
    """Return if the settings' Redis keeps what it answered; raise `ConfigError`, or warn under `dev`."""
    failed = [finding for finding in inspect_redis(settings.redis_address) if not finding.ok]
    if failed and not settings.dev:
        said = "; ".join(f"{finding.name} is {finding.detail}: {finding.remedy}" for finding in failed)
        raise ConfigError(f"this Redis may lose jobs: {said} (PENSTOCK_DEV=true makes this a warning)")
    for finding in failed:
        log.warning("redis.unsafe", check=finding.name, found=finding.detail, remedy=finding.remedy)


def inspect_object_store(store: ObjectStore, address: str) -> Finding:
    """Put, read and delete a small object of our own in the store at this address."""
    name, key, body = "object store", f"checks/{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        store.put_bytes(key, body, content_type="application/octet-stream")
        same = store.get_bytes(key, limit_bytes=len(body)) == body
        first_wins = _first_wins(store, key)
        store.delete(key)
    except PenstockError as error:
        return Finding(name, ok=False, detail=error.detail, remedy="check `object_store`, `s3` and the credentials")
    if not first_wins:
        remedy = "take a store with If-None-Match on put, or set durability = 'redis'"
        return Finding(name, ok=False, detail="it overwrites what may only be written once", remedy=remedy)
    detail = f"put, get and delete work at {address}" if same else "it gives back other bytes than it was given"
    return Finding(name, same, detail, "check `object_store`")


def _first_wins(store: ObjectStore, key: str) -> bool:
    try:
        store.put_bytes(key, b"second", content_type="application/octet-stream", if_absent=True)
    except ObjectExists:
        return True
    return False


def _appendfsync(client: redis.Redis) -> str | None:
    try:
        found: Any = client.config_get("appendfsync")
    except redis.ResponseError:
        return None
    value = found.get("appendfsync")
    return None if value is None else str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
