"""Claims in a queue with many lanes (pairs of model and tenant)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore
from tests.support.bare_store import LIMITS, claim, submit

MANY = replace(LIMITS, max_queued=100_000)
LANES, NAMES = "penstock:queue:q:lanes", "penstock:queue:q:names"
#: Lanes of other models, which are several pages of a claim.
OTHERS = 600


@pytest.fixture
def crowded(store: JobStore) -> JobStore:
    """Return a store whose queue has many lanes of a model that no worker here has."""
    for n in range(OTHERS):
        submit(store, "a", MANY, tenant=f"t{n:03}", model="another")  # their lanes stand before those of "m"
    assert claim(store) == []
    return store


def test_a_job_behind_many_lanes_is_found_by_its_model(crowded: JobStore) -> None:
    submit(crowded, "own", MANY, tenant="zz")
    assert [held.key.tenant for held in claim(crowded)] == ["zz"]


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


def test_a_claim_of_several_jobs_takes_those_of_one_model(crowded: JobStore) -> None:
    for tenant in ("x", "y"):
        for job_id in "ab":
            submit(crowded, job_id, MANY, tenant=tenant)
    submit(crowded, "a", MANY, tenant="z", model="m2")
    assert [(held.key.tenant, held.key.id) for held in claim(crowded, 9)] == [
        ("x", "a"), ("y", "a"), ("x", "b"), ("y", "b"),
    ]  # fmt: skip
    assert [held.key.tenant for held in claim(crowded, 9)] == ["z"]


def test_tenants_at_their_cap_are_passed_by(crowded: JobStore) -> None:
    for job_id in "abc":
        submit(crowded, job_id, MANY, tenant="x")
    submit(crowded, "d", MANY, tenant="y")
    assert [held.key.id for held in claim(crowded, 9, cap=2)] == ["a", "d", "b"]
    assert claim(crowded, 9, cap=2) == []


def test_the_index_of_the_release_before_goes_once_nothing_waits(store: JobStore) -> None:
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
    assert [held.key.tenant for held in claim(crowded, 1001)] == tenants
    assert claim(crowded) == []
