"""Errors of Redis by kind: away, full, refused, or a mistake of ours. Each from a real Valkey."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from penstock.errors import JobStoreError, RedisFailed, RedisFull, RedisRefused, RedisUnavailable
from penstock.jobs import JobKey
from penstock.storage.checks import inspect_redis, inspect_redis_room
from penstock.storage.redis import records
from penstock.storage.redis.records import AsyncJobStore, JobStore
from penstock.storage.redis.scripts import AWAY_S, place, source
from tests.chaos.proxy import Proxy
from tests.support.bare_store import submission, submit
from tests.support.service import Service, assert_problem
from tests.support.valkey import ValkeyProcess, start_valkey

JOB = JobKey("default", "00000000-0000-7000-8000-000000000000")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """Return a server whose settings a test may change."""
    server = start_valkey(tmp_path / "valkey")
    yield server
    server.kill()


@pytest.fixture
def at(own: ValkeyProcess) -> Iterator[Redis]:
    """Return an operator's connection to it."""
    with Redis.from_url(own.url) as client:
        yield client


def error_of(url: str) -> JobStoreError:
    """Return the error that a submit meets."""
    store = JobStore.open(url, timeout_s=1, tries=1)
    try:
        with pytest.raises(JobStoreError) as met:
            submit(store)
    finally:
        store.close()
    return met.value


def test_a_server_that_is_gone_is_away(own: ValkeyProcess) -> None:
    own.kill()
    error = error_of(own.url)
    assert (type(error), error.retryable, error.retry_after_s) == (RedisUnavailable, True, 2)


def test_a_server_that_hangs_between_two_calls_of_a_thread_is_away_and_answers_afterwards(own: ValkeyProcess) -> None:
    store = JobStore.open(own.url, timeout_s=0.3, tries=1)
    try:
        submit(store)
        with own.hanging(), pytest.raises(RedisUnavailable):
            submit(store)
        submit(store)
    finally:
        store.close()


def test_a_replica_after_a_failover_is_away(own: ValkeyProcess, at: Redis) -> None:
    at.replicaof("127.0.0.1", "1")
    assert type(error_of(own.url)) is RedisUnavailable
    at.config_set("replica-serve-stale-data", "no")
    assert type(error_of(own.url)) is RedisUnavailable


def test_a_server_without_enough_replicas_is_away(own: ValkeyProcess, at: Redis) -> None:
    at.config_set("min-replicas-to-write", 1)
    assert type(error_of(own.url)) is RedisUnavailable


def test_a_server_that_runs_a_long_script_is_away(own: ValkeyProcess, at: Redis) -> None:
    at.config_set("busy-reply-threshold", 50)

    def run_for_ever() -> None:
        with Redis.from_url(own.url) as client, pytest.raises(ResponseError, match="killed"):
            client.eval("while true do end", 0)

    busy = Thread(target=run_for_ever)
    busy.start()
    try:
        while "BUSY" not in str(_answer(at)):
            pass
        assert type(error_of(own.url)) is RedisUnavailable
    finally:
        at.script_kill()
        busy.join()


def _answer(at: Redis) -> object:
    try:
        return at.get("penstock:alive")
    except ResponseError as error:
        return error


def test_a_full_server_is_asked_again_and_the_operator_reads_what_to_do(own: ValkeyProcess, at: Redis) -> None:
    at.config_set("maxmemory", 1)
    error = error_of(own.url)
    assert (type(error), error.retryable, error.retry_after_s) == (RedisFull, True, 2)
    assert "maxmemory" in error.detail
    found = inspect_redis_room(own.url)
    assert (found.name, found.ok, found.detail) == ("redis room", False, error.detail)


def test_the_room_of_a_server_is_told_before_it_is_full(own: ValkeyProcess, at: Redis) -> None:
    assert (found := inspect_redis_room(own.url)).ok
    assert found.detail.endswith("no limit (maxmemory 0)")
    at.config_set("maxmemory", "1gb")
    assert not inspect_redis_room(own.url).doubtful
    at.config_set("maxmemory", int(at.info("memory")["used_memory"] * 1.08))
    assert (found := inspect_redis_room(own.url)).ok
    assert found.doubtful


def test_a_user_without_a_permission_is_refused_and_reads_what_to_do(own: ValkeyProcess, at: Redis) -> None:
    at.execute_command("ACL", "SETUSER", "none", "on", ">pw", "~*", "+ping", "+hello", "+client", "+info")
    at.execute_command("ACL", "SETUSER", "most", "on", ">pw", "~*", "&*", "+@all", "-hset")
    for user in ("none", "most"):
        error = error_of(own.url.replace("127.0.0.1", f"{user}:pw@127.0.0.1"))
        assert (type(error), error.retryable) == (RedisRefused, False)
        assert "allow the user of redis_url" in error.detail


def test_a_wrong_password_and_none_are_refused(own: ValkeyProcess, at: Redis) -> None:
    at.config_set("requirepass", "secret")
    wrong = own.url.replace("127.0.0.1", ":wrong@127.0.0.1")
    for url in (own.url, wrong):
        error = error_of(url)
        assert (type(error), error.retryable) == (RedisRefused, False)
        assert "password of redis_url" in error.detail
    with pytest.raises(RedisRefused):
        inspect_redis(wrong, patience_s=0)


def test_a_mistake_of_ours_names_its_file_and_line_and_is_logged(store: JobStore) -> None:
    store.client.set("penstock:tenant:default:job:a", "no hash")
    with capture_logs() as logged, pytest.raises(RedisFailed) as met:
        store.run(records.submit(submission(), records.QueueLimits(9, 9, 9, 9)))
    assert not met.value.retryable
    [entry] = [entry for entry in logged if entry["event"] == "redis.failed"]
    file, _, line = entry["at"].partition(":")
    text = (Path(records.__file__).parent / "lua" / file).read_text().split("\n")[int(line) - 1]
    assert (file, "HGETALL" in text) == ("common.lua", True)
    assert "WRONGTYPE" in entry["error"]
    assert entry["at"] in met.value.detail


class Forgetting(Proxy):
    """A proxy that has the server forget its scripts, as a restart does, just before it passes the next calls on."""

    def __init__(self, server: Redis, target: int) -> None:
        super().__init__(target)
        self.left, self._server = 0, server

    def _request(self, link: Any, data: bytes) -> bool:
        if b"EVALSHA" in data and self.left > 0:
            self.left -= 1
            self._server.script_flush()
        return super()._request(link, data)


def test_a_server_that_restarts_during_a_pipeline_is_asked_again(own: ValkeyProcess, at: Redis) -> None:
    with Forgetting(at, own.port) as proxy:
        store = JobStore.open(f"redis://127.0.0.1:{proxy.port}/0")
        try:
            for proxy.left in (0, 1):
                assert store.run_each([records.ping(), records.ping()]) == [None, None]
            proxy.left = 2
            for error in store.run_each([records.ping(), records.ping()]):
                assert isinstance(error, RedisUnavailable)
        finally:
            store.close()


@pytest.mark.parametrize("name", ["submit", "claim", "sweep"])
def test_every_line_of_a_script_has_its_place(name: str) -> None:
    folder = Path(records.__file__).parent / "lua"
    for number, line in enumerate(source(name).split("\n"), 1):
        file, _, own = place(name, number).partition(":")
        lines = [*(folder / file).read_text().split("\n"), ""]
        assert lines[int(own) - 1] == line, (number, file, own)


LUA = Path(records.__file__).parent / "lua"
SCRIPTS = sorted({path.stem for path in LUA.glob("*.lua")} - {"common", "outbox"})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_server_compiles_every_script(store: JobStore, name: str) -> None:
    """Lua allows 200 local variables and 60 captured ones per function."""
    store.client.script_load(source(name))


def test_every_shared_function_is_used() -> None:
    texts = {path.stem: re.sub(r"--.*", "", path.read_text()) for path in LUA.glob("*.lua")}
    everything = "\n".join(texts.values())
    names = re.findall(r"^local function (\w+)", texts["common"] + texts["outbox"], re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if len(re.findall(rf"\b{name}\b", everything)) == 1] == []


async def test_a_request_that_meets_a_mistake_is_answered_500_without_its_cause(service: Service) -> None:
    await service.jobs.client.set(f"penstock:tenant:{JOB.tenant}:job:{JOB.id}", "no hash")
    problem = assert_problem(await service.http.get(f"/v1/jobs/{JOB.id}"), 500, "redis_failed")
    assert "WRONGTYPE" not in str(problem)
    assert "common.lua" in problem["detail"]


async def test_an_error_reply_ends_the_pause_after_a_time_out(own: ValkeyProcess, at: Redis) -> None:
    at.set("penstock:tenant:default:job:a", "no hash")
    store = AsyncJobStore.open(own.url, timeout_s=0.3)
    try:
        with own.hanging(), pytest.raises(RedisUnavailable):
            await store.run(records.ping())
        await asyncio.sleep(AWAY_S)
        with pytest.raises(RedisFailed):
            await store.run(records.read(JobKey("default", "a")))
        await store.run(records.ping())
    finally:
        await store.close()


async def test_both_clients_translate(own: ValkeyProcess) -> None:
    own.kill()
    store = AsyncJobStore.open(own.url)
    with pytest.raises(RedisUnavailable):
        await store.run(records.ping())
    await store.close()
