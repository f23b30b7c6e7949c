"""The key ring's freshness: revocation, a store that does not answer, and requests that never reach it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from penstock.api.keyring import FRESH_S, RETRY_S, STALE_S, KeyRing
from penstock.api_keys import KeyRecord, Scope, new_key
from penstock.errors import ObjectStoreUnavailable
from penstock.storage.journal.api_keys import list_keys, put_key, read_key, revoke_key
from penstock.storage.objects.local import LocalStore
from tests.integration.test_access import ECHO
from tests.support.api_server import listening
from tests.support.service import serving
from tests.support.valkey import ValkeyProcess

SECRET = "of the tests"


class Store(LocalStore):
    """A real folder that counts who asks, and can be away or slow."""

    asked, away = 0, False
    before: Callable[[], object] = staticmethod(lambda: None)

    def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
        self.asked += 1
        self.before()
        if self.away:
            raise ObjectStoreUnavailable("away")
        return super().get_bytes(key, limit_bytes=limit_bytes)


class Clock:
    """A clock that is set."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def a_key(store: LocalStore, *, expires_s: float | None = None, secret: str = SECRET) -> tuple[KeyRecord, str]:
    record, text = new_key(
        secret, tenant="acme", name="ci", scopes=[Scope.READ], created_s=time.time(), expires_s=expires_s
    )
    put_key(store, record)
    return record, text


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


async def test_a_key_is_looked_up_once_in_a_while_and_a_revocation_counts_then(store: Store) -> None:
    clock = Clock()
    ring = KeyRing(store, SECRET, clock=clock)
    record, text = a_key(store)

    assert [await ring.find(text) for _ in range(10)] == [record] * 10
    assert store.asked == 1
    revoke_key(store, record.id, at=time.time())
    clock.now_s += FRESH_S - 0.01
    assert await ring.find(text) == record
    clock.now_s += 0.01
    assert await ring.find(text) is None
    assert FRESH_S <= 5


async def test_many_questions_at_once_are_one_to_the_store(store: Store) -> None:
    ring = KeyRing(store, SECRET)
    record, text = a_key(store)

    assert await asyncio.gather(*(ring.find(text) for _ in range(50))) == [record] * 50
    assert store.asked == 1


async def test_what_the_service_did_not_make_never_reaches_the_store(store: Store) -> None:
    ring = KeyRing(store, SECRET)
    for text in ("", "nonsense", a_key(store, secret="of somebody else")[1], a_key(store)[1][:-1]):
        assert await ring.find(text) is None
    assert store.asked == 0


async def test_an_expiry_counts_at_once(store: Store) -> None:
    now, clock = Clock(), Clock()
    ring = KeyRing(store, SECRET, clock=clock, now=now)
    record, text = a_key(store, expires_s=now() + 1)

    assert await ring.find(text) == record
    now.now_s += 1
    assert await ring.find(text) is None


async def test_a_known_key_is_believed_for_a_time_while_the_store_is_away(store: Store) -> None:
    clock = Clock()
    ring = KeyRing(store, SECRET, clock=clock)
    record, text = a_key(store)
    assert await ring.find(text) == record

    store.away = True
    clock.now_s += STALE_S - RETRY_S
    assert [await ring.find(text) for _ in range(5)] == [record] * 5
    assert store.asked == 2  # an absent store is not asked by each request
    clock.now_s += RETRY_S
    with pytest.raises(ObjectStoreUnavailable):
        await ring.find(text)
    store.away = False
    clock.now_s += RETRY_S
    assert await ring.find(text) == record


async def test_an_unknown_key_is_no_answer_while_the_store_is_away(store: Store) -> None:
    ring = KeyRing(store, SECRET)
    _, text = a_key(store)
    store.away = True
    with pytest.raises(ObjectStoreUnavailable):
        await ring.find(text)


async def test_a_store_that_hangs_is_an_absent_one(store: Store) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()
    store.before = lambda: asyncio.run_coroutine_threadsafe(released.wait(), loop).result()  # type: ignore[method-assign]
    with pytest.raises(ObjectStoreUnavailable):
        await KeyRing(store, SECRET).find(a_key(store)[1])
    released.set()


def test_keys_are_kept_listed_and_revoked_once(store: Store) -> None:
    (one, _), (other, _) = a_key(store), a_key(store)

    assert {record.id for record in list_keys(store)} == {one.id, other.id}
    ended = revoke_key(store, one.id, at=5.0)
    assert ended is not None
    assert revoke_key(store, one.id, at=9.0) == ended == read_key(store, one.id)
    assert read_key(store, other.id) == other
    assert revoke_key(store, "never", at=5.0) is None


async def test_losing_redis_loses_no_key(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        record, text = new_key(SECRET, tenant="acme", name="", scopes=[Scope.READ], created_s=0, expires_s=None)
        put_key(service.objects, record)
        valkey.flush()
        assert (await service.http.get("/v1/jobs", headers={"Authorization": f"Bearer {text}"})).status_code == 200


async def test_a_stream_ends_with_its_key(valkey: ValkeyProcess, tmp_path: Path) -> None:
    clock = Clock()
    async with serving(valkey.url, tmp_path, access="keys") as service:
        service.swap(keys=KeyRing(service.objects, SECRET, clock=clock))
        record, text = new_key(SECRET, tenant="acme", name="", scopes=Scope, created_s=0, expires_s=None)
        put_key(service.objects, record)
        me = {"Authorization": f"Bearer {text}"}
        job = (await service.http.post("/v1/jobs", json=ECHO, headers=me)).json()
        async with (
            listening(service) as server,
            httpx2.AsyncClient(timeout=20) as http,
            http.stream("GET", f"{server.url}/v1/jobs/{job['id']}/events", headers=me) as answer,
        ):
            lines = answer.aiter_lines()
            while "event: job.created" not in await anext(lines):
                pass
            revoke_key(service.objects, record.id, at=time.time())
            clock.now_s += FRESH_S
            await service.claim()  # a change: the stream looks again
            assert "event: job.started" not in [line async for line in lines]


async def test_without_the_secret_a_service_with_keys_does_not_start(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="secret is not set"):
        async with serving(valkey.url, tmp_path, access="keys", secret=None):
            pass
