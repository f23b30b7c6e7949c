"""The lane: calls share a connection, in order, and outlive the loss of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff

from penstock.storage.redis.lane import Lane
from tests.support.valkey import ValkeyProcess, start_valkey

CALLS = 200


@asynccontextmanager
async def lane_to(url: str) -> AsyncIterator[tuple[Lane, redis.asyncio.Redis]]:
    client = redis.asyncio.Redis.from_url(
        url, decode_responses=True, retry=redis.asyncio.retry.Retry(NoBackoff(), 0), socket_timeout=2
    )
    lane = Lane(client)
    try:
        yield lane, client
    finally:
        await lane.close()
        await client.aclose()


async def connections(client: redis.asyncio.Redis) -> int:
    return len(await client.client_list()) - 1  # without the one that asks


async def test_calls_share_a_connection_and_get_their_own_replies(valkey: ValkeyProcess) -> None:
    async with lane_to(valkey.url) as (lane, client):
        before = await connections(client)
        replies = await asyncio.gather(*(lane.call("ECHO", str(number)) for number in range(CALLS)))
        assert replies == [str(number) for number in range(CALLS)]
        assert await connections(client) == before + 1


async def test_an_error_is_that_of_its_call_alone(valkey: ValkeyProcess) -> None:
    async with lane_to(valkey.url) as (lane, _):
        found = await asyncio.gather(
            lane.call("ECHO", "a"), lane.call("NO"), lane.call("ECHO", "b"), return_exceptions=True
        )
    assert [found[0], type(found[1]), found[2]] == ["a", redis.ResponseError, "b"]


async def test_a_cancelled_call_leaves_the_others_their_replies(valkey: ValkeyProcess) -> None:
    async with lane_to(valkey.url) as (lane, _):
        await lane.call("PING")
        first, second = asyncio.create_task(lane.call("ECHO", "a")), asyncio.create_task(lane.call("ECHO", "b"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "b"
        assert await lane.call("ECHO", "c") == "c"


async def test_a_lost_connection_is_replaced(valkey: ValkeyProcess) -> None:
    async with lane_to(valkey.url) as (lane, client):
        own = await lane.call("CLIENT ID")
        await client.client_kill_filter(_id=str(own))
        assert await lane.call("ECHO", "a") == "a"
        assert await lane.call("CLIENT ID") != own


async def test_a_dropped_lane_fails_those_who_wait_and_opens_again(tmp_path: Path) -> None:
    own = start_valkey(tmp_path)
    try:
        async with lane_to(own.url) as (lane, _):
            await lane.call("PING")
            os.kill(own.pid, signal.SIGSTOP)
            waiting = [asyncio.create_task(lane.call("PING")) for _ in range(3)]
            await asyncio.sleep(0)
            lane.drop()
            for each in waiting:
                with pytest.raises(redis.TimeoutError):
                    await each
            os.kill(own.pid, signal.SIGCONT)
            assert await lane.call("ECHO", "a") == "a"
    finally:
        os.kill(own.pid, signal.SIGCONT)
        own.kill()
