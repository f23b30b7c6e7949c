"""The lane: one connection to Redis that all calls of an event loop share.

A call is written at once, behind those that wait, and Redis answers in order. redis-py takes a connection of its own
for each call and returns it afterwards, which costs five times the call; and Redis with AOF `always` syncs once for all
calls that arrive together. redis-py opens the connection, logs in and reads the replies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from penstock.storage.redis.calls import packed
from penstock.storage.redis.changes import cancel_until_done

#: Seconds before the second try of a call whose connection was lost.
AGAIN_S = 0.05


class _Line:
    """An open connection, with the calls that wait for their replies."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.connection = connection
        connection.socket_timeout = None  # callers have limits of their own, and nothing is to be read between calls
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None
        self._error: redis.RedisError | None = None
        self.reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        """True until the connection was lost or closed."""
        return self._error is None

    def call(self, *words: str | int) -> asyncio.Future[Any]:
        """Write a command; return the future of its reply."""
        command = packed(words)  # an error of it leaves nobody in the line
        answer = self._loop.create_future()
        self._waiting.append(answer)
        self._unsent.append(command)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return answer

    def end(self, error: redis.RedisError) -> None:
        """Fail the calls that wait, and begin to close the connection."""
        if self._error is None:
            self._error = error
            while self._waiting:
                answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_exception(error)
        self.reading.cancel()

    async def _send(self) -> None:
        try:
            while self._unsent and self.is_open:  # redis-py would connect again
                packed, self._unsent = self._unsent, []
                await self.connection.send_packed_command(packed, check_health=False)
        except redis.RedisError as error:
            self.end(error)
        finally:
            self._sending = None

    async def _read(self) -> None:
        try:
            while True:
                try:
                    reply = await self.connection.read_response(disconnect_on_error=False)
                except redis.ConnectionError as error:
                    self.end(error)
                    return
                except redis.RedisError as error:
                    self._answer(error)
                else:
                    self._answer(reply)
        finally:
            self.end(redis.ConnectionError("the connection was closed"))
            with suppress(redis.RedisError, OSError):
                await self.connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        answer = self._waiting.popleft()
        if answer.done():  # its caller has left
            return
        if isinstance(reply, redis.RedisError):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)


class Lane:
    """Calls commands on one connection, which opens with the first call and again after it was lost."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._pool = client.connection_pool
        self._line: _Line | None = None
        self._opening = asyncio.Lock()

    async def call(self, *words: str | int) -> Any:
        """Return the reply to a command, which must be safe to repeat; raise redis-py's errors.

        A call whose connection was lost is tried once more. There is no time limit: cancel the call.
        """
        try:
            return await (await self._open()).call(*words)
        except redis.TimeoutError:
            raise
        except redis.ConnectionError:
            await asyncio.sleep(AGAIN_S)
        return await (await self._open()).call(*words)

    def drop(self) -> None:
        """Fail the calls that wait with a time-out; the next call opens another connection."""
        if self._line is not None:
            self._line.end(redis.TimeoutError("the connection does not answer"))

    async def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.end(redis.ConnectionError("the connection was closed"))
            await self._release(self._line)

    async def _open(self) -> _Line:
        if self._line is not None and self._line.is_open:
            return self._line
        async with self._opening:
            if self._line is None or not self._line.is_open:
                await self._replace()
            assert self._line is not None  # noqa: S101  (opened above)
            return self._line

    async def _replace(self) -> None:
        if self._line is not None:
            await self._release(self._line)
        self._line = _Line(await self._pool.get_connection())  # type: ignore[no-untyped-call]

    async def _release(self, line: _Line) -> None:
        self._line = None
        await cancel_until_done(line.reading)
        await self._pool.release(line.connection)
