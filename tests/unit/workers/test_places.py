"""The bounds of a worker's fetches, and the places themselves."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from penstock.errors import Canceled, FetchFailed
from penstock.jobs import Claim, JobKey, Submission
from penstock.storage.redis.fetch_hosts import Full
from penstock.workers.places import SLOW_S, JobFetch, Limits, Places

#: 2 slots and 8 further fetches: 10 at once, 4 of a tenant, 6 from a host.
LIMITS = Limits(2, 8)


def fetch(
    number: int = 0, *, tenant: str | None = None, host: str | None = None, lent_s: float | None = 0.0
) -> JobFetch:
    return JobFetch(tenant or f"t{number}", (host or f"h{number}",), lent_s)


def claim(name: str = "a", *hosts: str, tenant: str = "t") -> Claim:
    submission = Submission(JobKey(tenant, name), "m", "q", {}, "f")
    return Claim(submission, attempt=1, crashes=0, fence=1, claimed_s=0, lease_s=30, fetch_hosts=hosts)


def test_a_worker_that_fetches_nothing_is_not_full() -> None:
    assert LIMITS.full([], 2, at=0) == Full()


@pytest.mark.parametrize(("running", "full"), [(1, False), (2, True)])
def test_a_fetch_counts_as_if_it_had_its_slot(running: int, *, full: bool) -> None:
    assert LIMITS.full([fetch()], running, at=SLOW_S - 1).all is full


def test_a_slow_fetch_keeps_no_other_from_fetching() -> None:
    assert LIMITS.full([fetch(1), fetch(2)], 2, at=SLOW_S) == Full(tenants=frozenset(), hosts=frozenset())


def test_a_fetch_of_a_tenant_in_trouble_keeps_no_other_from_fetching() -> None:
    assert not LIMITS.full([replace(fetch(), in_trouble=True)], 2, at=0).all
    assert LIMITS.full([replace(fetch(lent_s=None), in_trouble=True)], 2, at=0).all


def test_a_job_that_has_its_slot_is_no_slow_fetch() -> None:
    assert LIMITS.full([fetch(lent_s=None)], 2, at=1e9).all


def test_all_fetches_of_a_worker_are_bounded() -> None:
    slow = [fetch(number) for number in range(10)]
    assert not LIMITS.full(slow[:9], 9, at=SLOW_S).all
    assert LIMITS.full(slow, 10, at=SLOW_S).all


def test_the_fetches_of_a_tenant_and_from_a_host_are_bounded() -> None:
    slow = [fetch(number, tenant="busy") for number in range(4)]
    assert LIMITS.full(slow, 4, at=SLOW_S) == Full(tenants=frozenset({"busy"}), hosts=frozenset())
    slow = [fetch(number, host="slow.example") for number in range(6)]
    assert LIMITS.full(slow, 6, at=SLOW_S) == Full(tenants=frozenset(), hosts=frozenset({"slow.example"}))


def test_a_slot_is_lent_and_taken_again() -> None:
    places, held = Places(1, 8), claim("a", "h")
    assert places.take()
    places.claimed(held)
    with places.beside(held, lambda: None, pytest.fail, on_the_web=True):
        assert places.take()
        assert not places.take()
        places.give_back()
    assert not places.take()
    assert places.ended(held)


@pytest.mark.parametrize(("hosts", "on_the_web"), [((), True), (("h",), False)], ids=["older submit", "no media there"])
def test_a_job_without_hosts_or_without_media_on_the_web_keeps_its_slot(
    hosts: tuple[str, ...], *, on_the_web: bool
) -> None:
    places, held = Places(1, 8), claim("a", *hosts)
    assert places.take()
    places.claimed(held)
    with places.beside(held, lambda: None, pytest.fail, on_the_web=on_the_web):
        assert not places.take()
    assert places.full(1, at=0) == Full()
    assert places.ended(held)


@pytest.mark.parametrize("is_free", [True, False])
def test_a_job_whose_fetch_fails_has_a_slot_if_one_is_free_and_waits_for_none(*, is_free: bool) -> None:
    places, held = Places(1, 8), claim("a", "h")
    assert places.take()
    places.claimed(held)

    def fail_to_fetch() -> None:
        with places.beside(held, pytest.fail, pytest.fail, on_the_web=True):
            assert is_free or places.take()
            raise FetchFailed

    with pytest.raises(FetchFailed):
        fail_to_fetch()
    assert places.ended(held) is is_free
    assert places.full(0, at=0) == Full()
    assert not places.take()


def test_after_a_fetch_that_failed_those_of_its_tenant_keep_no_other_from_fetching() -> None:
    places, others, failing = Places(1, 8), claim("b", "h", tenant="other"), claim("a", "h")

    def keeps_others(held: Claim, *, fails: bool = False) -> bool:
        assert places.take()
        places.claimed(held)
        with suppress(FetchFailed), places.beside(held, pytest.fail, pytest.fail, on_the_web=True):
            keeps = places.full(1, at=time.monotonic()).all
            if fails:
                raise FetchFailed
        places.ended(held)
        places.give_back()
        return keeps

    assert keeps_others(failing, fails=True)
    assert not keeps_others(failing)
    assert keeps_others(others)


def test_a_job_that_is_canceled_while_it_waits_for_a_slot_ends_without_one() -> None:
    places, held, waits = Places(1, 8), claim("a", "h"), list[bool]()
    assert places.take()
    places.claimed(held)

    def check() -> None:
        assert places.awaited
        raise Canceled

    def fetch_while_the_slot_is_taken() -> None:
        with places.beside(held, check, waits.append, on_the_web=True):
            assert places.take()

    with pytest.raises(Canceled):
        fetch_while_the_slot_is_taken()
    assert (waits, places.awaited, places.ended(held)) == ([True, False], False, False)


def test_a_job_that_waits_gets_the_next_free_slot() -> None:
    places, held, waiting = Places(1, 8), claim("a", "h"), threading.Event()
    assert places.take()
    places.claimed(held)

    def give_back() -> None:
        assert waiting.wait(30)
        places.give_back()

    other = threading.Thread(target=give_back)
    with places.beside(held, lambda: None, lambda waits: waits and waiting.set(), on_the_web=True):
        assert places.take()
        other.start()
    other.join(30)
    assert places.ended(held)
    assert not places.take()
