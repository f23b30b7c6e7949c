"""Calls of Lua scripts as values, and the two shells that run them: `JobStore` and `AsyncJobStore`.

Errors of redis-py end here: each becomes a `JobStoreError` of its kind (see `translated`). Every script is safe to
repeat, so both shells retry a lost reply by themselves.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import redis
import redis.asyncio
import structlog
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from penstock.errors import JobStoreError, PenstockError, RedisFailed, RedisFull, RedisRefused, RedisUnavailable
from penstock.jobs import JobKey
from penstock.patience import limit_s
from penstock.redis_address import close_async, connect, connect_async, parse_sentinels
from penstock.storage.redis.breaker import Breaker
from penstock.storage.redis.calls import Calls
from penstock.storage.redis.changes import Changes, Watch
from penstock.storage.redis.lane import Lane

T = TypeVar("T")
U = TypeVar("U")
#: An argument of a script.
Arg = str | int | bool | None | Sequence["Arg"] | Mapping[str, "Arg"]
#: Errors that end by themselves: no connection, a restart, a failover, or a busy server.
_AWAY = (
    redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError,
)  # fmt: skip
_AWAY_CODES = ("BUSY ", "NOREPLICAS ", "Script killed by user")

#: A function of the files that all scripts share, on one line or up to an `end` at the margin.
_FUNCTION = re.compile(r"^(?:local )?function (\w+)\((?:.* end|.*(?:\n(?!end$).*)*\nend)$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of a script: its file's name, its arguments by name, and the function that reads the reply."""

    script: str
    args: Mapping[str, Arg]
    parse: Callable[[Any], T]

    @property
    def argument(self) -> str:
        """Return the script's only argument: a JSON object.

        Numbers become decimal strings, because cjson reads numbers as doubles, and Lua writes doubles of more than 14
        digits with an exponent. None leaves an argument out, because Lua takes JSON's null for true.
        """
        return _ENCODER.encode(_for_lua(self.args))


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


_SAME = frozenset({str, bool})


def _for_lua(value: Arg) -> Any:
    match value:
        case bool() | str():
            return value
        case int():
            return str(value)
        case dict() | Mapping():  # a check for `dict` first costs a tenth of one for `Mapping`; a string needs no call
            given = value.items()
            return {name: each if type(each) in _SAME else _for_lua(each) for name, each in given if each is not None}
        case list() | Sequence():
            return [each if type(each) in _SAME else _for_lua(each) for each in value]
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
    return tuple((file, (folder / file).read_text()) for file in ("common.lua", "outbox.lua", f"{name}.lua"))


@cache
def source(name: str) -> str:
    """Return a script's text: its first line (the flags), then the files that all scripts share, then its body.

    Shared functions that the script does not use are empty lines: each call of a script makes its functions anew.
    """
    *shared, (_, own) = _files(name)
    shebang, _, body = own.partition("\n")
    text = "\n".join(text for _, text in shared)
    return "\n".join((shebang, _without_unused(text, body), body))


def _without_unused(shared: str, body: str) -> str:
    """Return a text with empty lines in place of the functions that neither a body nor the rest of the text uses."""
    functions = {found[1]: found for found in _FUNCTION.finditer(shared)}
    words = {name: set(_WORD.findall(_COMMENT.sub("", found[0]))) for name, found in functions.items()}
    used: set[str] = set()
    seen = set(_WORD.findall(_COMMENT.sub("", body)))
    while found := (seen & functions.keys()) - used:
        used |= found
        seen = set().union(*(words[name] for name in found))
    for name in functions.keys() - used:
        text = functions[name][0]
        shared = shared.replace(text, "\n" * text.count("\n"))
    return shared


@cache
def digest(name: str) -> str:
    """Return the SHA-1 of a script's text, by which Redis knows it."""
    return sha1(source(name).encode(), usedforsecurity=False).hexdigest()


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


class redis_errors:  # noqa: N801  (used as a function; a generator would cost each call more)
    """A block in which all errors of redis-py are translated."""

    __slots__ = ("_script",)

    def __init__(self, script: str | None = None) -> None:
        self._script = script

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, redis.RedisError):
            raise translated(error, self._script) from error


class JobStore:
    """Runs commands for threads: workers, the keeper, tools."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._calls = Calls(client)

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
        (reply,) = self._replies([command])
        return command.parse(_checked(command, reply))

    def run_both(self, first: Command[T], second: Command[U], keep: Callable[[U], object]) -> T:
        """Run two commands in one message, the second after the first, also where that fails; return the first's reply.

        `keep` gets the reply of the second, before an error of the first is raised. An error of the second is logged.
        """
        reply, other = self._replies([first, second])
        try:
            keep(second.parse(_checked(second, other)))
        except JobStoreError as error:
            log.warning("command.failed", script=second.script, detail=error.detail)
        except Exception:  # whatever it is: the first command has run
            log.exception("command.failed", script=second.script)
        return first.parse(_checked(first, reply))

    def run_each(self, commands: Sequence[Command[T]]) -> list[T | PenstockError]:
        """Run commands in one message, one after the other; return their parsed replies, or their errors.

        Raises `JobStoreError` when there is no answer.
        """
        replies = self._replies(commands) if commands else []
        return [_parsed(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def wait_for_entry(self, name: str, timeout_s: float) -> str | None:
        """Wait for an entry of a list in Redis and remove it; None after `timeout_s`, less than a call may take."""
        with redis_errors():
            (reply,) = self._calls.call(("BLPOP", name, str(timeout_s)))
            if isinstance(reply, redis.RedisError):
                raise reply
        return None if reply is None else str(reply[1])

    def close(self) -> None:
        """Close the connections."""
        self._calls.close()
        self.client.close()

    def _replies(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Return the reply or the error of each command."""
        calls = [("EVALSHA", digest(command.script), 0, command.argument) for command in commands]
        with redis_errors(commands[0].script):
            replies = self._calls.call(*calls)
            if any(isinstance(reply, redis.exceptions.NoScriptError) for reply in replies):
                loads = [("SCRIPT LOAD", source(command.script)) for command in commands]
                replies = self._calls.call(*loads, *calls)[len(loads) :]
        return replies


def _checked(command: Command[Any], reply: Any) -> Any:
    """Return a reply; raise the error that it is."""
    if isinstance(reply, redis.RedisError):
        raise translated(reply, command.script) from reply
    return reply


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


class AsyncJobStore:
    """Runs commands for the API, and wakes those who wait for a change of a job."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self._lane = Lane(client)
        #: Seconds that a call may take.
        self._timeout_s: float = client.connection_pool.connection_kwargs.get("socket_timeout") or TIMEOUT_S
        self._changes = Changes(client)
        self._breaker = Breaker()
        #: The time limits of the calls in progress.
        self._limits: set[asyncio.Timeout] = set()
        #: The number of answers so far.
        self._answers = 0

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

        After a time-out, commands fail at once (`Breaker`), and so do those in progress. Inside `one_patience`, all
        commands of a request share one time limit.
        """
        self._breaker.admit()
        answers, limit = self._answers, asyncio.timeout(limit_s(self._timeout_s))
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    reply = await self._evaluated(command.script, command.argument)
                finally:
                    self._limits.discard(limit)
        except (redis.RedisError, TimeoutError) as error:
            # redis-py may turn the end of the limit into an error of its own.
            if limit.expired() or isinstance(error, redis.TimeoutError):
                self._time_out(answers)
                raise translated(redis.TimeoutError(), command.script) from error
            self._answered()
            if isinstance(error, redis.RedisError):
                raise translated(error, command.script) from error
            raise
        self._answered()
        return command.parse(reply)

    async def _evaluated(self, name: str, argument: str) -> Any:
        try:
            return await self._lane.call("EVALSHA", digest(name), 0, argument)
        except redis.exceptions.NoScriptError:
            await self._lane.call("SCRIPT LOAD", source(name))
        return await self._lane.call("EVALSHA", digest(name), 0, argument)

    def _answered(self) -> None:
        self._answers += 1
        self._breaker.answered()

    def _time_out(self, answers: int) -> None:
        """End the calls that wait behind one that timed out, where Redis has answered nothing since that one began.

        `answers` is the number of answers when it began.
        """
        self._breaker.timed_out()
        if self._answers == answers:
            self._lane.drop()
            for limit in self._limits:
                if not limit.expired():
                    limit.reschedule(0.0)  # at once: the event loop's clock is past it

    def changes(self, name: JobKey | str, *, model: str | None = None) -> AbstractAsyncContextManager[Watch]:
        """Watch a job or batch: `await watch.wait(timeout_s)` returns early when its record or events changed.

        With `model`, also when the problem of the model changes.
        """
        return self._changes.watching(str(name), *([] if model is None else [f"model:{model}"]))

    def end(self, key: JobKey) -> AbstractAsyncContextManager[Watch]:
        """Watch the end of a job: `await watch.wait(timeout_s)` returns early when it has ended, and rarely before."""
        return self._changes.watching_end(str(key))

    async def close(self) -> None:
        """Close the subscription and the connections."""
        await self._changes.close()
        await self._lane.close()
        await close_async(self.client)
