"""Commands, which are calls of Lua scripts, and the two clients that run them: `JobStore` and `AsyncJobStore`.

Errors of redis-py end here: each becomes a `JobStoreError` of its kind (see `translated`). Every script is safe to
repeat, so both clients retry a lost reply by themselves.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import redis
import redis.asyncio
import structlog
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from penstock.errors import JobStoreError, PenstockError, RedisFailed, RedisFull, RedisRefused, RedisUnavailable
from penstock.jobs import JobKey
from penstock.storage.deadline import Pause, limit_s
from penstock.storage.redis.address import close_async, connect, connect_async, parse_sentinels
from penstock.storage.redis.changes import Changes, Watch

T = TypeVar("T")
#: An argument of a script.
Arg = str | int | bool | None | Sequence["Arg"] | Mapping[str, "Arg"]
#: Errors that end by themselves: no connection, a restart, a failover, or a busy server.
_AWAY = (
    redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError, redis.exceptions.NoScriptError,
)  # fmt: skip
_AWAY_CODES = ("BUSY ", "NOREPLICAS ", "Script killed by user")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of a script: the name of the script's file, its arguments by name, and the parser of the reply."""

    script: str
    args: Mapping[str, Arg]
    parse: Callable[[Any], T]

    @property
    def argument(self) -> str:
        """Return the script's only argument: a JSON object.

        Numbers become decimal strings, because cjson reads numbers as doubles, and Lua writes doubles of more than 14
        digits with an exponent. None leaves an argument out, because Lua takes JSON's null for true.
        """
        return json.dumps(_for_lua(self.args), ensure_ascii=False, separators=(",", ":"))


def _for_lua(value: Arg) -> Any:
    match value:
        case bool() | str():
            return value
        case int():
            return str(value)
        case Mapping():
            return {name: _for_lua(each) for name, each in value.items() if each is not None}
        case Sequence():
            return [_for_lua(each) for each in value]
        case _:
            raise TypeError(f"{type(value).__name__} is no argument of a script")


def query(op: str, parse: Callable[[Any], T], **args: Arg) -> Command[T]:
    """Return a call of an operation of `read.lua`."""
    return Command("read", {"op": op, **args}, parse)


class Runs(Protocol):
    """The interface of everything that runs commands."""

    def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `JobStoreError` when there is none."""
        ...


@cache
def _files(name: str) -> tuple[tuple[str, str], ...]:
    """Return the files of a script with their texts, in the order in which Redis gets them."""
    folder = files("penstock.storage.redis") / "lua"
    return tuple(
        (file, (folder / file).read_text()) for file in ("common.lua", "chain.lua", "outbox.lua", f"{name}.lua")
    )


@cache
def source(name: str) -> str:
    """Return a script's text: its first line (the flags), then the files that all scripts share, then its body."""
    *shared, (_, own) = _files(name)
    shebang, _, body = own.partition("\n")
    return "\n".join((shebang, *(text for _, text in shared), body))


def place(name: str, line: int) -> str:
    """Return the file and line of a line of `source(name)`, as `common.lua:12`."""
    if line == 1:
        return f"{name}.lua:1"
    line -= 1
    *shared, (own, _) = _files(name)
    for file, text in shared:
        lines = text.count("\n") + 1
        if line <= lines:
            return f"{file}:{line}"
        line -= lines
    return f"{own}:{line + 1}"


class NotCompared(redis.ConnectionError):
    """A promoted replica may lack the last writes: a keeper has not compared it with the object store yet."""

    def __init__(self) -> None:
        super().__init__("a replica took over from the job store, and a keeper compares its jobs with the object store")


async def refuse_unless_compared(connection: redis.asyncio.Connection) -> None:
    """Set up a new connection; raise `NotCompared` on a server that may lack ends of jobs that somebody has seen.

    Without it, a job that was told to have ended would be told to run until a keeper has restored its end.
    """
    await connection.on_connect()
    replies = []
    for command in (("GET", "penstock:run"), ("INFO", "server")):
        await connection.send_command(*command)
        replies.append(str(await connection.read_response()))
    noted, info = replies
    run = re.search(r"run_id:(\w+)", info)
    if run is not None and noted not in (run[1], "None"):  # none is noted in a server without a past
        raise NotCompared


def translated(error: redis.RedisError, script: str | None = None) -> JobStoreError:
    """Return the kind of an error: away (retry), full (retry), refused (an operator must act), or a mistake of ours.

    A mistake is logged with its cause and its line of the script.
    """
    code = getattr(error, "status_code", None)
    text = str(error) if code in (None, "ERR") else f"{code} {error}"
    if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
        return RedisRefused(f"the job store refuses the log-in ({text}): correct the user and password of redis_url")
    if isinstance(error, redis.exceptions.NoPermissionError) or "ACL failure in script" in text:
        return RedisRefused(f"the job store refuses a command ({text}): allow the user of redis_url all of penstock:*")
    if isinstance(error, redis.OutOfMemoryError):
        return RedisFull("the job store is out of memory: raise its maxmemory", retry_after_s=2)
    if text.startswith("MISCONF"):
        return RedisFull("the job store cannot write to its disk: free space there and read its log", retry_after_s=2)
    if isinstance(error, NotCompared):
        return RedisUnavailable(str(error), retry_after_s=2)
    if isinstance(error, _AWAY) or text.startswith(_AWAY_CODES):
        return RedisUnavailable("the job store does not answer", retry_after_s=2)
    line = re.search(r"user_script:(\d+)", text)
    at = "" if script is None else place(script, int(line[1])) if line else f"{script}.lua"
    log.error("redis.failed", at=at, error=f"{type(error).__name__}: {text}")
    return RedisFailed(f"a script of the job store failed at {at}" if at else None)


@contextmanager
def redis_errors(script: str | None = None) -> Iterator[None]:
    """Translate all errors of redis-py inside the block."""
    try:
        yield
    except redis.RedisError as error:
        raise translated(error, script) from error


class JobStore:
    """Runs commands for threads: workers, the keeper, tools."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._script = cache(lambda name: client.register_script(source(name)))

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 10, tries: int = 4) -> JobStore:
        """Return a store; it connects at the first command, and sends each one up to `tries` times."""
        client = connect(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, 5),
            socket_keepalive=True,
            retry=Retry(ExponentialBackoff(cap=1, base=0.05), tries - 1),
        )
        return cls(client)

    def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `JobStoreError` when there is none."""
        with redis_errors(command.script):
            reply = self._script(command.script)(args=[command.argument])
        return command.parse(reply)

    def run_each(self, commands: Sequence[Command[T]]) -> list[T | PenstockError]:
        """Run commands in one pipeline, one after the other; return their parsed replies, or their errors.

        Raises `JobStoreError` when there is no answer.
        """
        if not commands:
            return []
        with redis_errors(commands[0].script):
            replies = self._replies(commands)
            if any(isinstance(reply, redis.exceptions.NoScriptError) for reply in replies):
                replies = self._replies(commands)  # the server has restarted since the pipeline loaded the scripts
        return [_parsed(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _replies(self, commands: Sequence[Command[Any]]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            self._script(command.script)(args=[command.argument], client=pipeline)
        return pipeline.execute(raise_on_error=False)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def run_each(store: Runs, commands: Sequence[Command[T]]) -> list[T | PenstockError]:
    """Run commands as `JobStore.run_each`, in one message where the store can."""
    if isinstance(store, JobStore):
        return store.run_each(commands)
    return [_run(store, command) for command in commands]


def _run(store: Runs, command: Command[Any]) -> Any:
    try:
        return store.run(command)
    except JobStoreError:
        raise
    except PenstockError as error:
        return error


def _parsed(command: Command[Any], reply: Any) -> Any:
    if isinstance(reply, redis.RedisError):
        return translated(reply, command.script)
    try:
        return command.parse(reply)
    except PenstockError as error:
        return error


#: Seconds that one call of the API to Redis may take.
TIMEOUT_S = 3.3
#: Seconds from a time-out to the first probe, and between two probes. Until one is answered, all other calls of the API
#: fail at once, so that requests in the admission queue do not wait for one time-out after another.
AWAY_S = 1.0


class AsyncJobStore:
    """Runs commands for the API, and wakes those who wait for a change of a job."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self._script = cache(lambda name: client.register_script(source(name)))
        #: Seconds that a call may take.
        self._timeout_s: float = client.connection_pool.connection_kwargs.get("socket_timeout") or TIMEOUT_S
        self._changes = Changes(client)
        #: The pause in which most calls fail at once.
        self._pause = Pause(AWAY_S)

    @classmethod
    def open(cls, url: str, *, timeout_s: float = TIMEOUT_S) -> AsyncJobStore:
        """Return a store; it connects at the first command. A command that timed out is not tried again."""
        client = connect_async(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_keepalive=True,
            retry=redis.asyncio.retry.Retry(
                ExponentialBackoff(cap=0.2, base=0.05), 1, supported_errors=(redis.ConnectionError,)
            ),
            redis_connect_func=refuse_unless_compared if parse_sentinels(url) else None,
        )
        return cls(client)

    async def run(self, command: Command[T]) -> T:
        """Run a command and return its parsed reply; `JobStoreError` when there is none.

        The time limit includes the wait for a free connection. After a time-out, and until a command is answered,
        commands fail at once, except for a probe every `AWAY_S`. Inside `request_deadline`, all commands of a request
        share one time limit.
        """
        with redis_errors(command.script):
            if not self._pause.admits():
                raise redis.TimeoutError
            reply = await self._evaluated(command)
        return command.parse(reply)

    async def _evaluated(self, command: Command[Any]) -> Any:
        limit = asyncio.timeout(limit_s(self._timeout_s))
        try:
            async with limit:
                reply = await self._script(command.script)(args=[command.argument])
        except (redis.RedisError, TimeoutError) as error:
            # redis-py may turn the cancellation at the end of the limit into an error of its own.
            if not (limit.expired() or isinstance(error, redis.TimeoutError)):
                if isinstance(error, redis.ResponseError):
                    self._pause.end()
                raise
            self._pause.begin()
            raise redis.TimeoutError from error
        self._pause.end()
        return reply

    def changes(self, name: JobKey | str, *, model: str | None = None) -> AbstractAsyncContextManager[Watch]:
        """Watch a job or batch: `await watch.wait(timeout_s)` returns early when its record or events changed.

        With `model`, also when the problem of the model changes.
        """
        return self._changes.watching(str(name), *([] if model is None else [f"model:{model}"]))

    async def close(self) -> None:
        """Close the subscription and the connections."""
        await self._changes.close()
        await close_async(self.client)
