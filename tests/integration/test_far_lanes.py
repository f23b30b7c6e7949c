"""Claims in a queue with many lanes (pairs of model and tenant): a worker finds its own models' by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore
from tests.support.bare_store import LIMITS, claim, submit

MANY = replace(LIMITS, max_queued=100_000)
LANES, NAMES, COMPARED = "penstock:queue:q:lanes", "penstock:queue:q:names", "penstock:queue:q:compared"
#: Lanes of other models. A claim looks at 50 before it asks for its own.
OTHERS = 600


@pytest.fixture
def crowded(store: JobStore) -> JobStore:
    """Return a store whose queue has many lanes of a model that no worker here has; the index was compared already."""
    for n in range(OTHERS):
        submit(store, "a", MANY, tenant=f"t{n:03}", model="another")  # their lanes stand before those of "m"
    assert claim(store) == []
    return store


def pages_read(store: JobStore) -> int:
    """Return the pages of lanes, and of jobs of a lane, that were read since the statistics were last reset."""
    return int(store.client.info("commandstats").get("cmdstat_zrange", {"calls": 0})["calls"])


def add_as_older_releases_do(store: JobStore, job_id: str, tenant: str) -> None:
    """Queue a job whose lane is missing in the index of names."""
    submit(store, job_id, MANY, tenant=tenant)
    store.client.zrem(NAMES, f"m/{tenant}")


def test_a_claim_that_finds_nothing_does_not_read_all_lanes(crowded: JobStore) -> None:
    crowded.client.config_resetstat()
    assert claim(crowded) == []
    assert pages_read(crowded) <= 8  # all lanes are 13 pages and more


def test_a_job_behind_many_lanes_is_found_by_its_model(crowded: JobStore) -> None:
    submit(crowded, "own", MANY, tenant="zz")
    crowded.client.config_resetstat()
    assert [held.key.tenant for held in claim(crowded)] == ["zz"]
    assert pages_read(crowded) <= 10


def test_new_lanes_are_served_in_the_order_of_their_first_jobs(store: JobStore) -> None:
    """Names do not count. Lanes of older releases, with score 0, come first; lanes that were served come last."""
    submit(store, "a", MANY, tenant="m")
    submit(store, "b", MANY, tenant="m")
    assert [held.key.tenant for held in claim(store)] == ["m"]
    for tenant in ("z", "c", "k"):
        submit(store, "a", MANY, tenant=tenant)
    submit(store, "a", MANY, tenant="old")
    store.client.zadd(LANES, {"m/old": 0})
    assert [held.key.tenant for held in claim(store, 9)] == ["old", "z", "c", "k", "m"]


def test_own_lanes_take_turns(crowded: JobStore) -> None:
    for tenant in ("x", "y", "z"):
        for job_id in "abc":
            submit(crowded, job_id, MANY, tenant=tenant, model="m" if tenant != "y" else "m2")
    told = [claim(crowded)[0].key.tenant for _ in range(9)]
    assert told[:3] == told[3:6] == told[6:]
    assert sorted(told[:3]) == ["x", "y", "z"]
    assert claim(crowded) == []


def test_tenants_at_their_cap_are_passed_by(crowded: JobStore) -> None:
    for job_id in "abc":
        submit(crowded, job_id, MANY, tenant="x")
    submit(crowded, "d", MANY, tenant="y")
    assert [held.key.id for held in claim(crowded, 9, cap=2)] == ["a", "d", "b"]
    assert claim(crowded, 9, cap=2) == []


def test_a_lane_that_an_older_release_made_is_found_at_the_next_comparison(crowded: JobStore) -> None:
    add_as_older_releases_do(crowded, "old", "zz")
    assert claim(crowded) == []
    assert 0 < crowded.client.pttl(COMPARED) <= 30_000
    crowded.client.delete(COMPARED)  # its time is over
    assert [held.key.id for held in claim(crowded)] == ["old"]
    add_as_older_releases_do(crowded, "next", "zz")
    crowded.client.delete(COMPARED)
    assert claim(crowded, cap=1) == []  # the tenant is at its cap, but the index is complete
    assert crowded.client.zscore(NAMES, "m/zz") == 0


@pytest.mark.breadth
def test_a_lane_that_an_older_release_emptied_goes(crowded: JobStore) -> None:
    crowded.client.zadd(NAMES, {"m/gone": 0})
    assert claim(crowded) == []
    assert crowded.client.zscore(NAMES, "m/gone") is None


def test_names_of_an_empty_queue_go(store: JobStore) -> None:
    submit(store, "own", MANY)
    store.client.zadd(NAMES, {"m/gone": 0})
    store.run(records.sweep())
    assert store.client.exists(NAMES)
    claim(store)
    store.run(records.sweep())
    assert not store.client.exists(NAMES)


@pytest.mark.breadth
def test_a_model_with_very_many_lanes_is_found_in_the_order_of_all(crowded: JobStore) -> None:
    tenants = [f"u{n:04}" for n in range(1001)]
    for tenant in tenants:
        submit(crowded, "a", MANY, tenant=tenant)
    assert [held.key.tenant for held in claim(crowded, 60)] == tenants[:60]


def test_the_index_is_that_of_the_lanes(crowded: JobStore) -> None:
    for job_id in "ab":
        submit(crowded, job_id, MANY, tenant="x")
    claim(crowded)
    assert set(crowded.client.zrange(NAMES, 0, -1)) == set(crowded.client.zrange(LANES, 0, -1))
    claim(crowded)
    assert set(crowded.client.zrange(NAMES, 0, -1)) == set(crowded.client.zrange(LANES, 0, -1))
