"""The address of Redis: of one server, or of Sentinels, which know the server that is the primary at the moment.

`redis://`, `rediss://` and `unix://` are redis-py's own. `redis+sentinel://[user:password@]host[:port][,host...]/service[/db]`
is the form that other programs accept for Sentinels, which redis-py has none for. User and password are the primary's;
the query gives the Sentinels' own (`sentinel_username`, `sentinel_password`), and whatever redis-py's addresses take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import AbstractBackoff, NoBackoff
from redis.retry import Retry

SCHEME = "redis+sentinel"
#: Port of a Sentinel whose address names none.
DEFAULT_PORT = 26379
#: Connections of an asyncio client, the one of its subscription among them.
MAX_CONNECTIONS = 100
#: Longest wait for a Sentinel; the next one is asked then.
SENTINEL_TIMEOUT_S = 1.0
_OF_SENTINELS = "sentinel_"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The parts of a `redis+sentinel://` address."""

    hosts: tuple[tuple[str, int], ...]
    #: Name under which the Sentinels watch the primary.
    service: str
    #: Options of the connections to the primary, `db`, `username` and `password` among them.
    options: Mapping[str, Any]
    #: Options of the connections to the Sentinels.
    sentinel_options: Mapping[str, Any]
    #: The part before the `@` as it was written; empty without.
    _user_info: str = ""

    @property
    def celery_url(self) -> str:
        """Return the address as Celery takes it."""
        before = f"{self._user_info}@" if self._user_info else ""
        database = self.options.get("db", 0)
        return ";".join(f"sentinel://{before}{_bracketed(host)}:{port}/{database}" for host, port in self.hosts)

    @property
    def celery_options(self) -> dict[str, Any]:
        """Return what Celery's transport needs beside the address."""
        return {"master_name": self.service, "sentinel_kwargs": _once(self, Retry)}


def parse_sentinels(url: str) -> Sentinels | None:
    """Return the parts of an address of Sentinels; None for the address of a server.

    Raises `ValueError` for an address that lacks something.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "rediss+sentinel":
        raise ValueError("TLS to Sentinels is not supported: use redis+sentinel://")
    if not separator or scheme != SCHEME:
        return None
    before, _, query = rest.partition("?")
    place, _, path = before.partition("/")
    user_info, _, listed = place.rpartition("@")
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ValueError("name the service that the Sentinels watch: redis+sentinel://host:26379/mymaster")
    given = parse_qsl(query)
    of_sentinels = {name.removeprefix(_OF_SENTINELS): value for name, value in given if name.startswith(_OF_SENTINELS)}
    others = urlencode([pair for pair in given if not pair[0].startswith(_OF_SENTINELS)])
    user = f"{user_info}@" if user_info else ""
    options: dict[str, Any] = redis.connection.parse_url(f"redis://{user}primary/{database}?{others}")  # type: ignore[no-untyped-call]
    del options["host"]
    timeouts = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
    return Sentinels(
        hosts=tuple(_host(each) for each in listed.split(",")),
        service=service,
        options=options,
        sentinel_options=timeouts | of_sentinels,
        _user_info=user_info,
    )


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client of the server at an address; it connects at its first command.

    `options` are redis-py's; what the address says wins over them. Raises `ValueError` for a malformed address.
    """
    found = parse_sentinels(url)
    if found is None:
        return redis.Redis.from_url(url, **options)
    manager = redis.sentinel.Sentinel(found.hosts, sentinel_kwargs=_once(found, Retry))  # type: ignore[no-untyped-call]
    return manager.master_for(found.service, **(options | dict(found.options)))  # type: ignore[no-any-return, no-untyped-call]


class _SentinelPool(redis.asyncio.sentinel.SentinelConnectionPool, redis.asyncio.BlockingConnectionPool):
    """A pool of connections to the primary; callers wait while all connections are in use."""


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return a client for asyncio, whose callers wait while `MAX_CONNECTIONS` are in use; otherwise as `connect`."""
    options = {"max_connections": MAX_CONNECTIONS, **options}
    found = parse_sentinels(url)
    if found is None:
        return redis.asyncio.Redis.from_pool(redis.asyncio.BlockingConnectionPool.from_url(url, **options))
    options_of_sentinels = _once(found, redis.asyncio.retry.Retry)
    manager = redis.asyncio.sentinel.Sentinel(found.hosts, sentinel_kwargs=options_of_sentinels)  # type: ignore[no-untyped-call]
    client: redis.asyncio.Redis = manager.master_for(
        found.service, connection_pool_class=_SentinelPool, **(options | dict(found.options))
    )
    return client


async def close_async(client: redis.asyncio.Redis) -> None:
    """Close a client's connections, those to the Sentinels included, which redis-py leaves open."""
    await client.aclose()
    pool = client.connection_pool
    if isinstance(pool, redis.asyncio.sentinel.SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def without_credentials(url: str) -> str | None:
    """Return the address of the same server without user and password; None where it is a Unix socket."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return None
    before, mark, query = rest.partition("?")
    place, slash, path = before.partition("/")
    left = urlencode([pair for pair in parse_qsl(query) if pair[0] not in ("username", "password")])
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}{mark if left else ''}{left}"


def _once(found: Sentinels, retry: Callable[[AbstractBackoff, int], Any]) -> dict[str, Any]:
    """Return the options of connections to Sentinels that try each only once: redis-py tries a dead one for seconds."""
    return {**found.sentinel_options, "retry": retry(NoBackoff(), 0)}


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text.strip()}")
    if not parts.hostname:
        raise ValueError("an address of a Sentinel is empty: redis+sentinel://host:26379,other:26379/mymaster")
    return parts.hostname, parts.port or DEFAULT_PORT


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
