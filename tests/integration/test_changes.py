"""Messages about changes of jobs wake those who wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.jobs import JobKey
from penstock.storage.redis.changes import CHANNEL, of_tenant
from penstock.storage.redis.records import AsyncJobStore
from tests.support.valkey import ValkeyProcess

#: Seconds after which a wake-up is missing.
PATIENCE_S = 60.0
A, B = JobKey("t", "a"), JobKey("t", "b")


@pytest.fixture
async def store(valkey: ValkeyProcess) -> AsyncIterator[AsyncJobStore]:
    found = AsyncJobStore.open(valkey.url)
    async with found.changes("t/first") as first:
        assert await first.wait(PATIENCE_S)  # it has subscribed
    yield found
    await found.close()


async def publish(store: AsyncJobStore, *messages: str) -> None:
    for message in messages:
        await store.client.publish(CHANNEL, message)


async def test_a_change_of_a_job_wakes_those_who_wait_for_it_or_for_its_tenant(store: AsyncJobStore) -> None:
    async with store.changes(A) as own, store.changes(B) as other, store.changes(of_tenant("t")) as every:
        await publish(store, "t/a")
        assert await own.wait(PATIENCE_S)
        assert await every.wait(PATIENCE_S)
        assert not await other.wait(0)


async def test_a_lost_subscription_wakes_everybody_when_it_is_back(store: AsyncJobStore) -> None:
    async with store.changes(A) as one, store.changes(B) as other:
        assert await store.client.client_kill_filter(_type="pubsub")
        assert await one.wait(PATIENCE_S)
        assert await other.wait(PATIENCE_S)
