"""Calls of Lua scripts as values, and the two thin shells that run them: `JobStore` and `AsyncJobStore`.

Redis' errors end here: whatever keeps a script from answering is a `RedisUnavailable`. Every script is safe to
repeat, so both shells retry a lost reply by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from penstock.errors import RedisUnavailable
from penstock.jobs import JobKey
from penstock.storage.changes import Changes, Watch

T = TypeVar("T")
Arg = str | int | float | bytes


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of a script: its file's name, its arguments, and how to read the reply."""

    script: str
    args: tuple[Arg, ...]
    parse: Callable[[Any], T]


class Runs(Protocol):
    """Whatever runs commands: the seam between those who decide and Redis."""

    def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `RedisUnavailable` when there is none."""
        ...


@cache
def source(name: str) -> str:
    """Return a script's text: its first line (the flags), then what all share, then its body."""
    folder = files("penstock.storage") / "lua"
    shebang, _, body = (folder / f"{name}.lua").read_text().partition("\n")
    shared = "\n".join((folder / f"{part}.lua").read_text() for part in ("common", "outbox"))
    return f"{shebang}\n{shared}\n{body}"


@contextmanager
def redis_errors() -> Iterator[None]:
    """Translate whatever redis-py raises."""
    try:
        yield
    except redis.RedisError as error:
        raise RedisUnavailable("the job store does not answer", retry_after_s=2) from error


class JobStore:
    """Runs commands for threads: workers, the keeper, tools."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._scripts: dict[str, Any] = {}

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 10) -> JobStore:
        """Return a store; nothing is sent before the first command."""
        client = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, 5),
            socket_keepalive=True,
            retry=Retry(ExponentialBackoff(cap=1, base=0.05), 3),
        )
        return cls(client)

    def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `RedisUnavailable` when there is none."""
        return self.run_all([command])[0]

    def run_all(self, commands: Sequence[Command[T]]) -> list[T]:
        """Run commands one after the other and return their replies."""
        with redis_errors():
            replies = [self._script(command.script)(args=command.args) for command in commands]
        return [command.parse(reply) for command, reply in zip(commands, replies, strict=True)]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _script(self, name: str) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self.client.register_script(source(name))
        return self._scripts[name]


class AsyncJobStore:
    """Runs commands for the API, and tells it when a job changed."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self._scripts: dict[str, Any] = {}
        self._changes = Changes(client)

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 2) -> AsyncJobStore:
        """Return a store; nothing is sent before the first command."""
        client = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_keepalive=True,
            retry=redis.asyncio.retry.Retry(ExponentialBackoff(cap=0.2, base=0.05), 1),
        )
        return cls(client)

    async def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `RedisUnavailable` when there is none."""
        with redis_errors():
            reply = await self._script(command.script)(args=command.args)
        return command.parse(reply)

    def changes(self, name: JobKey | str, *, model: str | None = None) -> AbstractAsyncContextManager[Watch]:
        """Watch a job or batch: `await watch.wait(timeout_s)` returns early when its record or events changed.

        With `model` also when that model gets another problem, or has none any more.
        """
        return self._watching(str(name), *([] if model is None else [f"model:{model}"]))

    async def close(self) -> None:
        """Close the subscription and the connections."""
        await self._changes.close()
        await self.client.aclose()

    @asynccontextmanager
    async def _watching(self, *names: str) -> AsyncIterator[Watch]:
        async with self._changes.watching(*names) as watch:
            yield watch

    def _script(self, name: str) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self.client.register_script(source(name))
        return self._scripts[name]
