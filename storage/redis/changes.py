"""Waiting for changes of jobs and models: one subscription per process for all waiting requests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis.asyncio
import structlog
from redis import RedisError

CHANNEL = "penstock:changes"
#: Pause after a lost subscription. Waiters poll meanwhile: a missed change costs latency only.
RECONNECT_S = 1.0
CANCEL_EVERY_S = 0.1

log = structlog.get_logger(__name__)


async def cancel_until_done(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for them; repeatedly, because redis-py turns a cancel during a connect into an error."""
    left: Collection[asyncio.Future[Any]] = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_EVERY_S)
    await asyncio.gather(*tasks, return_exceptions=True)


class Watch:
    """The changes that one waiter waits for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Return True after a change since the last call, False when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # `wait_for` of Python 3.11 can lose a cancel
                await self._changed.wait()
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def notify(self) -> None:
        """Wake the waiter."""
        self._changed.set()


def of_tenant(tenant: str) -> str:
    """Return the name under which all changes of a tenant's jobs can be watched."""
    return f"{tenant}/"


class Changes:
    """Listens on the channel of the scripts, and wakes the watches of the published names."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, *names: str) -> AsyncIterator[Watch]:
        """Watch jobs `tenant/id`, a tenant's (`of_tenant`), and models `model:name` for their problems, here."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        watch = Watch()
        for name in names:
            self._watches[name].add(watch)
        try:
            yield watch
        finally:
            for name in names:
                self._watches[name].discard(watch)
                if not self._watches[name]:
                    del self._watches[name]

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            await cancel_until_done(self._task)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    await self._forward(channel)
            except (RedisError, OSError) as error:
                log.warning("changes.lost", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)

    async def _forward(self, channel: redis.asyncio.client.PubSub) -> None:
        while True:
            message = await channel.get_message(timeout=1.0)
            if message is None:
                continue
            if message["type"] == "subscribe":  # also after a lost connection, which redis-py opens again itself
                self._wake_all()  # for changes before the subscription
            else:
                self._wake(message["data"])

    def _wake(self, name: str) -> None:
        tenant, slash, _ = name.partition("/")
        for watched in (name, of_tenant(tenant)) if slash else (name,):
            for watch in self._watches.get(watched, ()):
                watch.notify()

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.notify()
