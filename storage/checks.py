"""Checks of the stores: Redis must be durable, and an object store must return what was put into it."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import redis
import structlog
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from penstock.config import Settings
from penstock.errors import ConfigError, ObjectExists, ObjectStoreFull, PenstockError, RedisFull, RedisUnavailable
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.address import connect, without_credentials
from penstock.storage.redis.identity import writable
from penstock.storage.redis.scripts import JobStore, redis_errors, translated
from penstock.storage.spool import is_full, write_probe

#: Oldest version with flags of scripts and an AOF of several files, which Penstock needs.
OLDEST_REDIS = (7, 0)
#: Longest wait in seconds for a Redis that is starting.
PATIENCE_S = 30
#: Seconds between two log lines while a process waits for its Redis.
WAIT_LOG_S = 10
_RETRY_EVERY_S = 0.2
#: Seconds between two checks of a Redis that loads its data.
_LOADED_EVERY_S = 1.0
#: Free bytes of a disk below which a check is doubtful.
LITTLE_BYTES = 10**9
#: Used share of a server's memory above which a check is doubtful.
FULL_SHARE = 0.9
#: Seconds that the object store has to answer a preflight request.
_BROWSER_S = 5.0
_CORS_REMEDY = "allow GET and PUT from this origin in the bucket's CORS rules (docs/howto/look-at-results.md)"
_BROWSER_KEY = "checks/browser-access"
#: Header of an uploaded part of a large file.
_PART_HEADER = "content-md5"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, with the remedy where the check failed."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    #: The check passed, but the result may not be what the operator wants.
    doubtful: bool = False
    #: The server did not let itself be checked.
    unchecked: bool = False


def redis_findings(info: Mapping[str, Any], appendfsync: str | None) -> tuple[Finding, ...]:
    """Judge a server by its INFO and its setting `appendfsync` (None = unknown). Pure."""
    version = str(info.get("redis_version", "unknown"))  # of a Valkey the Redis that it is compatible with
    valkey = info.get("valkey_version")
    policy = str(info.get("maxmemory_policy", "unknown"))
    appendonly, unread = str(info.get("aof_enabled", "0")) == "1", appendfsync is None
    cluster = str(info.get("cluster_enabled", "0")) == "1"
    vouch = "allow the user of redis_url CONFIG GET, or set redis_durable = true if your provider keeps each write"
    return (
        Finding(
            "redis version",
            _numbers(version) >= OLDEST_REDIS,
            version if valkey is None else f"Valkey {valkey}",
            "run Redis 7.0 or newer, or Valkey",
        ),
        Finding(
            "redis mode",
            not cluster,
            "a cluster" if cluster else "one primary",
            "use one primary, with replicas if you like: a job's keys are on several nodes of a cluster",
        ),
        Finding(
            "redis appendonly",
            appendonly,
            "yes" if appendonly else "no",
            vouch if unread else "set `appendonly yes`: without it a restart forgets the jobs",
            unchecked=unread and not appendonly,
        ),
        Finding(
            "redis appendfsync",
            appendfsync == "always",
            appendfsync or "cannot be read: CONFIG GET is not allowed",
            vouch
            if unread
            else "set `appendfsync always`: `everysec` forgets the last second's answers when the server dies",
            unchecked=unread,
        ),
        Finding(
            "redis maxmemory-policy",
            policy == "noeviction",
            policy,
            "set `maxmemory-policy noeviction`: any other drops jobs when memory is short",
        ),
    )


def vouched(findings: Iterable[Finding], settings: Settings) -> tuple[Finding, ...]:
    """Return the findings, of which those that could not be checked pass where `redis_durable` is set. Pure."""
    return tuple(
        replace(found, ok=True, doubtful=True, detail=f"{found.detail} (redis_durable is set)")
        if found.unchecked and settings.redis_durable
        else found
        for found in findings
    )


def inspect_redis(url: str, *, patience_s: float = PATIENCE_S) -> tuple[Finding, ...]:
    """Judge a server; wait as long as it loads its data.

    Raises `JobStoreError` if it does not answer within `patience_s` or refuses, `ConfigError` for a malformed address.
    """
    failures = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
    retry = Retry(ConstantBackoff(_RETRY_EVERY_S), int(patience_s / _RETRY_EVERY_S), supported_errors=failures)
    try:
        quick = {"socket_timeout": 5, "socket_connect_timeout": 2, "retry": Retry(ConstantBackoff(0), 0)}
        with connect(url, decode_responses=True, **quick) as client:
            info = retry.call_with_retry(client.info, lambda _: None)
            while str(info.get("loading", "0")) == "1":
                log.warning("redis.loading", left_s=info.get("loading_eta_seconds"))
                time.sleep(_LOADED_EVERY_S)
                info = client.info()
            return redis_findings(info, _appendfsync(client))
    except ValueError as error:
        raise ConfigError(f"redis_url is not an address of a Redis: {error}") from error
    except redis.RedisError as error:
        found = translated(error)
        raise type(found)(f"redis_url: {found.detail} ({error})") from error


def inspect_redis_access(url: str) -> Finding:
    """Check that a server with a network address requires a password. Raises the errors of `inspect_redis`."""
    name, remedy = "redis access", "set a password (`requirepass` or an ACL) and put it into redis_url"
    try:
        anybody = without_credentials(url)
        if anybody is None:
            return Finding(name, ok=True, detail="by a Unix socket")
        with connect(anybody, socket_timeout=5, socket_connect_timeout=2) as client:
            client.ping()
    except (redis.AuthenticationError, redis.ResponseError):
        return Finding(name, ok=True, detail="with a password")
    except ValueError as error:
        raise ConfigError(f"redis_url is not an address of a Redis: {error}") from error
    except redis.RedisError as error:
        raise translated(error) from error
    detail = "it answers without a password: whoever reaches its port reads and changes every tenant's jobs"
    return Finding(name, ok=False, detail=detail, remedy=remedy)


def inspect_redis_room(url: str) -> Finding:
    """Check if a server accepts writes, and report its memory. Raises the errors of `inspect_redis`."""
    name, remedy = "redis room", "submissions are refused and workers claim nothing until it accepts writes"
    store = JobStore.open(url, timeout_s=5, tries=1)
    try:
        with redis_errors():
            memory: Any = store.client.info("memory")
        store.run(writable())
    except RedisFull as error:
        return Finding(name, ok=False, detail=error.detail, remedy=remedy)
    finally:
        store.close()
    used, limit = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    detail = f"{used / 1e6:.0f} MB used, " + (f"{limit / 1e6:.0f} MB allowed" if limit else "no limit (maxmemory 0)")
    little = bool(limit) and used > limit * FULL_SHARE
    return Finding(name, ok=True, detail=detail, remedy="raise maxmemory: a full Redis accepts no job", doubtful=little)


def require_durable_redis(settings: Settings, *, patience_s: float = PATIENCE_S) -> None:
    """Return if the settings' Redis is durable; raise `ConfigError`, or warn under `dev`.

    Raises `RedisUnavailable` if it does not answer within `patience_s`.
    """
    findings = vouched(inspect_redis(settings.redis_address, patience_s=patience_s), settings)
    failed = [finding for finding in findings if not finding.ok]
    access = inspect_redis_access(settings.redis_address)
    if settings.with_keys and not access.ok:
        log.warning("redis.open", found=access.detail, remedy=access.remedy)
    if failed and not settings.dev:
        problems = "; ".join(f"{finding.name} is {finding.detail}: {finding.remedy}" for finding in failed)
        raise ConfigError(f"this Redis may lose jobs: {problems} (PENSTOCK_DEV=true makes this a warning)")
    for finding in (finding for finding in findings if not finding.ok or finding.unchecked):
        log.warning("redis.unsafe", check=finding.name, found=finding.detail, remedy=finding.remedy)


def await_durable_redis(settings: Settings) -> None:
    """Wait until the settings' Redis answers, with a log line every `WAIT_LOG_S`; then `require_durable_redis`.

    A server that refuses the credentials raises `RedisRefused` at once.
    """
    while True:
        try:
            return require_durable_redis(settings, patience_s=WAIT_LOG_S)
        except RedisUnavailable as error:
            log.warning("redis.away", detail=error.detail)


def inspect_object_store(store: ObjectStore, address: str) -> Finding:
    """Put, read and delete a small object in the store at this address."""
    name, key, body = "object store", f"checks/{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        store.put_bytes(key, body, content_type="application/octet-stream")
        same = store.get_bytes(key, limit_bytes=len(body)) == body
        first_wins = _first_wins(store, key)
        store.delete(key)
    except ObjectStoreFull as error:
        return Finding(name, ok=False, detail=error.detail, remedy=f"free space at {address}, or raise its quota")
    except PenstockError as error:
        return Finding(name, ok=False, detail=error.detail, remedy="check `object_store`, `s3` and the credentials")
    if not first_wins:
        remedy = "use a store with If-None-Match on put, or set durability = 'redis'"
        return Finding(name, ok=False, detail="it overwrites objects that may only be written once", remedy=remedy)
    detail = f"put, get and delete work at {address}" if same else "it returns other bytes than were put"
    return Finding(name, same, detail, "check `object_store`")


def inspect_own_store(settings: Settings) -> Finding:
    """Check the settings' object store as `inspect_object_store`; name the setting if it refuses checksums alone."""
    found = inspect_object_store(open_store(settings.store_url, settings), settings.store_url)
    name, without = "request_checksums", "when_required"
    if found.ok or not settings.store_url.startswith("s3://") or settings.s3.request_checksums == without:
        return found
    plain = settings.model_copy(update={"s3": settings.s3.model_copy(update={name: without})})
    if not inspect_object_store(open_store(plain.store_url, plain), plain.store_url).ok:
        return found
    detail = f"{found.detail}; it accepts uploads without checksums"
    return replace(found, detail=detail, remedy=f'set `{name} = "{without}"` under `s3`: the server refuses checksums')


def inspect_browser_access(store: ObjectStore, base_url: str) -> Finding:
    """Check that the bucket's CORS rules let the page read ranges and upload; the API works without these rules.

    Browsers on the page follow signed links to the store. The check sends the preflight requests of a browser.
    """
    parts = urlsplit(base_url)
    origin = f"{parts.scheme}://{parts.netloc}"
    try:
        refused = list(_refused_methods(store, origin))
    except (PenstockError, httpx2.HTTPError) as error:
        return Finding(
            "page", ok=True, detail=f"not checked: {type(error).__name__}", remedy=_CORS_REMEDY, unchecked=True
        )
    if not refused:
        return Finding("page", ok=True, detail=f"browsers may read and write the store from {origin}")
    detail = f"the store does not let browsers {' and '.join(refused)} from {origin}: the page shows no maps"
    return Finding("page", ok=True, detail=detail, remedy=_CORS_REMEDY, doubtful=True)


def _refused_methods(store: ObjectStore, origin: str) -> Iterator[str]:
    get = store.presign_get(_BROWSER_KEY, filename="check", expires_s=60)
    if not _allows(get, origin, "GET", "range"):
        yield "read"
    put = store.presign_put(_BROWSER_KEY, content_type="image/tiff", size_bytes=1, expires_s=60)
    names = sorted({name.lower() for name in put.headers} - {"content-length"} | {_PART_HEADER})
    if not _allows(put.url, origin, "PUT", ",".join(names)):
        yield "write"


def _allows(url: str, origin: str, method: str, headers: str) -> bool:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    answer = httpx2.options(url, headers=asked, timeout=_BROWSER_S, trust_env=False)
    methods = {each.strip() for each in answer.headers.get("access-control-allow-methods", "").split(",")}
    origins = (answer.headers.get("access-control-allow-origin"),)
    return answer.is_success and (origin in origins or "*" in origins) and bool({method, "*"} & methods)


def inspect_disk(name: str, folder: Path) -> Finding:
    """Write a small file into a folder, or into the nearest folder above that exists, and report the free space."""
    place = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
    free_bytes = shutil.disk_usage(place).free
    detail = f"{free_bytes / 1e9:.1f} GB free at {folder}"
    remedy = f"free space on the disk of {folder}"
    try:
        write_probe(place)
    except OSError as error:
        if is_full(error):
            return Finding(name, ok=False, detail=f"{folder} is full ({error.strerror})", remedy=remedy)
        detail = f"{folder} cannot be written ({error.strerror})"
        return Finding(name, ok=False, detail=detail, remedy=f"allow this user to write to {folder}")
    return Finding(name, ok=True, detail=detail, remedy=remedy, doubtful=free_bytes < LITTLE_BYTES)


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
