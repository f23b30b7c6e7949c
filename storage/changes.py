"""Who waits for which job or model: one subscription per process, however many requests are waiting."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import redis.asyncio
import structlog
from redis import RedisError

CHANNEL = "penstock:changes"
#: After a lost subscription. Waiters look for themselves meanwhile: a hint that is missed costs latency only.
RECONNECT_S = 1.0
CANCEL_EVERY_S = 0.1

log = structlog.get_logger(__name__)


class Watch:
    """One waiter's view of what it waits for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return when any of it changed since the last call, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # `wait_for` of Python 3.11 loses a cancel that meets the change
                await self._changed.wait()
        self._changed.clear()

    def notify(self) -> None:
        """Wake the waiter."""
        self._changed.set()


class Changes:
    """Listens on the channel that the scripts publish on, and wakes the watches of what they name."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, *names: str) -> AsyncIterator[Watch]:
        """Watch jobs `tenant/id`, and models `model:name` for their problems, inside the block."""
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
        # Again until it is done: redis-py turns a cancel that meets it while it connects into an error of its own.
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_EVERY_S)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    self._wake_all()  # whatever was published while nobody listened
                    await self._forward(channel)
            except (RedisError, OSError) as error:
                log.warning("changes.lost", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)

    async def _forward(self, channel: redis.asyncio.client.PubSub) -> None:
        while True:
            message = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
            if message is not None:
                for watch in self._watches.get(message["data"], ()):
                    watch.notify()

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.notify()
