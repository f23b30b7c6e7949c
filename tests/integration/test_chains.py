"""Chains: a follower begins after its upstreams have succeeded, ends where one did not, and is never forgotten."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    InvalidInput,
    InvalidRequest,
    JobGone,
    StateConflict,
    TooManyJobs,
    UnknownJob,
    UnknownUpstream,
)
from penstock.formats import CHAINED
from penstock.jobs import TERMINAL, Artifact, Claim, Job, JobKey, State, Status, Submission, Webhook
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import chains, deliveries, upkeep
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.purge import purge, retire
from penstock.workers.keeper.recovery import recover, recover_if_lost
from tests.support.claims import claim_one, claim_up_to, claiming
from tests.support.crashes import Crashed, Fragile
from tests.support.valkey import ValkeyProcess

DURABLE = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)
#: No job is poison, however often its worker dies.
PATIENT = replace(DURABLE, max_crashes=1000)
DONE = Outcome(State.SUCCEEDED, "done")
FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    store = JobStore.open(valkey.url)
    yield store
    store.close()


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    desk = Journal(store, LocalStore(tmp_path / "objects"))
    recover_if_lost(store, desk.objects)
    return desk


@pytest.fixture(params=[True, False], ids=["durable", "redis"])
def limits(request: pytest.FixtureRequest) -> QueueLimits:
    return replace(DURABLE, durable=request.param)


def key(name: str, tenant: str = "default") -> JobKey:
    return JobKey(tenant, name)


def wanted(name: str, *after: str, tenant: str = "default", **changes: Any) -> Submission:
    fields: dict[str, Any] = {"model": "m", "queue": "q", "input": {}, "fingerprint": "f"}
    version = CHAINED if after else 1
    return Submission(key(name, tenant), **(fields | changes), after=after, version=version)


def submit(desk: Journal, name: str, *after: str, limits: QueueLimits = DURABLE, **changes: Any) -> Job:
    return desk.run(journal.submit(wanted(name, *after, **changes), limits)).job


def read(desk: Journal, name: str) -> Job:
    return desk.run(journal.read(key(name)))


def claims(desk: Journal) -> dict[str, Claim]:
    return {claim.key.id: claim for claim in claim_up_to(desk.store, 9)}


def end(desk: Journal, claim: Claim, outcome: Outcome = DONE) -> None:
    assert desk.run(journal.complete(claim, outcome)).answer == "ok"


def flush(desk: Journal) -> None:
    assert isinstance(desk.store, JobStore)
    desk.store.client.flushall()


def settle(desk: Journal) -> None:
    """Sweep until no follower is ended by a sweep any more."""
    while desk.run(journal.sweep()).upstream_failed:
        pass


class TestOrder:
    def test_a_follower_begins_after_its_upstream_has_succeeded(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        follower = submit(desk, "b", "a", limits=limits)
        assert (follower.status, follower.state, follower.submission.after) == (Status.QUEUED, State.DELAYED, ("a",))
        assert read(desk, "b").progress.message == "waits for job a"
        held = claims(desk)
        assert set(held) == {"a"}
        end(desk, held["a"])
        assert (read(desk, "b").state, read(desk, "b").progress.message) == (State.QUEUED, None)
        [second] = claims(desk).values()
        end(desk, second)
        assert read(desk, "b").state is State.SUCCEEDED

    def test_a_follower_of_several_waits_for_the_last_of_them(self, desk: Journal, limits: QueueLimits) -> None:
        for name in "abc":
            submit(desk, name, limits=limits)
        submit(desk, "d", "a", "b", "c", limits=limits)
        assert read(desk, "d").progress.message == "waits for job a and 2 more"
        held = claims(desk)
        end(desk, held["a"])
        end(desk, held["c"])
        assert (claims(desk), read(desk, "d").progress.message) == ({}, "waits for job b")
        end(desk, held["b"])
        assert set(claims(desk)) == {"d"}

    def test_a_job_after_one_that_has_succeeded_is_queued_at_once(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        end(desk, claim_one(desk.store))
        assert submit(desk, "b", "a", limits=limits).state is State.QUEUED

    def test_the_time_in_the_queue_begins_when_the_upstreams_have_ended(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a", queue_ttl_s=1e-6)
        assert desk.run(journal.sweep()).expired == 0
        end(desk, claim_one(desk.store))
        assert desk.run(journal.sweep()).expired == 1
        assert read(desk, "b").status is Status.EXPIRED

    def test_a_claim_has_the_artifacts_of_the_upstreams(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        held = claim_one(desk.store)
        made = Artifact("mask.tif", "image/tiff", 3, "ab", f"{held.prefix}mask.tif")
        end(desk, held, replace(DONE, artifacts=(made,)))
        submit(desk, "b", "a", limits=limits)
        assert (held.upstreams, claim_one(desk.store).upstreams) == ({}, {"a": (made,)})

    def test_an_older_worker_claims_no_follower(self, desk: Journal) -> None:
        submit(desk, "a")
        end(desk, claim_one(desk.store))
        submit(desk, "b", "a")
        command = claiming()
        assert desk.store.run(replace(command, args={**command.args, "version": 1})) is None
        assert claim_one(desk.store).key.id == "b"

    def test_a_follower_that_an_older_keeper_has_queued_waits_all_the_same(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        assert isinstance(desk.store, JobStore)
        name, client = "penstock:tenant:default:job:b", desk.store.client
        client.hset(name, mapping={"state": "queued", "chained": ""})
        client.zrem("penstock:chained", "default/b")
        client.zadd("penstock:queue:q:waiting", {"default/b": 0})
        client.zadd("penstock:queue:q:lane:m/default", {"b": 0})
        held = claims(desk)
        assert (set(held), read(desk, "b").state) == ({"a"}, State.DELAYED)
        end(desk, held["a"])
        assert set(claims(desk)) == {"b"}

    def test_an_end_by_an_older_release_is_found_by_the_keeper(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        submit(desk, "b", "a", limits=limits)
        assert isinstance(desk.store, JobStore)
        client = desk.store.client
        client.zadd("penstock:tenant:default:job:a:followers", {"b": 0})  # so that the end does not look at it
        end(desk, claims(desk)["a"])
        assert read(desk, "b").state is State.DELAYED
        client.zadd("penstock:chained", {"default/b": 1})
        swept = desk.run(journal.sweep())
        assert (swept.released, swept.queues) == (1, ("q",))
        assert set(claims(desk)) == {"b"}


class TestEnds:
    @pytest.mark.parametrize(
        ("outcome", "state"), [(FAILED, State.FAILED), (Outcome(State.CANCELED), State.CANCELED)], ids=["fails", "ends"]
    )
    def test_an_upstream_that_does_not_succeed_ends_all_that_wait(
        self, desk: Journal, limits: QueueLimits, outcome: Outcome, state: State
    ) -> None:
        submit(desk, "a", limits=limits)
        submit(desk, "b", "a", limits=limits, webhook=Webhook("http://h/"))
        submit(desk, "c", "b", limits=limits)
        [held] = claims(desk).values()
        end(desk, held, outcome)
        settle(desk)
        for name, upstream in (("b", "a"), ("c", "b")):
            job = read(desk, name)
            assert job.error is not None
            assert (job.state, job.attempt, job.error.code) == (state, 0, "upstream_failed")
            how = "was canceled" if state is State.CANCELED else state.value
            assert job.error.detail == f"job {upstream}, for which this one waited, {how}"
        due = [task.delivery.event for task in desk.store.run(deliveries.due(10, 60)).tasks]
        assert due == [f"job.{state.value}"]
        assert claims(desk) == {}

    def test_canceling_an_upstream_cancels_its_followers(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        submit(desk, "b", "a", limits=limits)
        desk.run(journal.cancel(key("a")))
        settle(desk)
        assert read(desk, "b").state is State.CANCELED

    def test_a_follower_may_be_canceled_alone(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        submit(desk, "b", "a", limits=limits)
        submit(desk, "c", "b", limits=limits)
        assert desk.run(journal.cancel(key("b"))).state is State.CANCELED
        settle(desk)
        assert [read(desk, name).state for name in "abc"] == [State.QUEUED, State.CANCELED, State.CANCELED]

    def test_a_job_after_one_that_has_failed_is_accepted_and_ends(self, desk: Journal, limits: QueueLimits) -> None:
        submit(desk, "a", limits=limits)
        end(desk, claim_one(desk.store), FAILED)
        assert submit(desk, "b", "a", limits=limits).status is Status.QUEUED
        settle(desk)
        assert read(desk, "b").state is State.FAILED

    def test_an_upstream_that_both_stores_have_lost_ends_its_followers(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        flush(desk)
        desk.objects.delete_prefix(key("a").prefix)
        recover(desk.store, desk.objects)
        assert read(desk, "b").state is State.DELAYED
        desk.run(journal.sweep())
        settle(desk)
        job = read(desk, "b")
        assert job.error is not None
        assert (job.state, job.error.detail) == (State.FAILED, "job a, for which this one waited, was deleted")


class TestLimits:
    def test_an_unknown_upstream_and_that_of_another_tenant_are_refused_alike(self, desk: Journal) -> None:
        submit(desk, "a", tenant="other")
        with pytest.raises(UnknownUpstream) as one:
            submit(desk, "b", "a")
        with pytest.raises(UnknownUpstream) as other:
            submit(desk, "b", "z")
        assert one.value.detail.replace("job a", "job z") == other.value.detail
        with pytest.raises(UnknownJob):
            read(desk, "b")

    def test_a_job_cannot_follow_itself(self, desk: Journal) -> None:
        with pytest.raises(UnknownUpstream):
            submit(desk, "a", "a")

    def test_depth_and_followers_are_bounded(self, desk: Journal, limits: QueueLimits) -> None:
        few = replace(limits, max_followers=2, max_chain_depth=2)
        submit(desk, "a", limits=few)
        submit(desk, "b", "a", limits=few)
        assert submit(desk, "c", "b", limits=few).depth == 2
        with pytest.raises(InvalidRequest, match="max_chain_depth"):
            submit(desk, "d", "c", limits=few)
        submit(desk, "e", "a", limits=few)
        with pytest.raises(InvalidRequest, match="max_followers"):
            submit(desk, "f", "a", limits=few)
        assert submit(desk, "b", "a", limits=few).state is State.DELAYED  # a repetition finds its job

    def test_the_depth_outlives_redis(self, desk: Journal) -> None:
        few = replace(DURABLE, max_chain_depth=2)
        submit(desk, "2", limits=few)
        submit(desk, "1", "2", limits=few)
        submit(desk, "0", "1", limits=few)  # restored before its upstreams
        flush(desk)
        recover(desk.store, desk.objects)
        with pytest.raises(InvalidRequest, match="max_chain_depth"):
            submit(desk, "x", "0", limits=few)

    def test_followers_count_for_the_tenants_limit(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        with pytest.raises(TooManyJobs):
            submit(desk, "c", limits=replace(DURABLE, max_tenant_jobs=2))


class TestFiles:
    def test_an_upstream_is_kept_until_its_followers_have_ended(self, desk: Journal, limits: QueueLimits) -> None:
        brief = replace(limits, retention_s=0)
        submit(desk, "a", limits=limits)
        submit(desk, "b", "a", limits=limits)
        submit(desk, "z", limits=brief)
        held = claims(desk)
        assert isinstance(desk.store, JobStore)
        desk.store.client.hset("penstock:tenant:default:job:a", "retention_us", 0)
        for name in "az":
            end(desk, held[name])
        if limits.durable:
            desk.objects.put_bytes(f"{held['a'].prefix}f", b"1", content_type="text/plain")
        retire(desk.store, desk.objects)
        with pytest.raises(JobGone):
            read(desk, "z")
        assert read(desk, "a").followers == ("b",)
        end(desk, claim_one(desk.store))
        with pytest.raises(JobGone):  # its retention was over long ago
            read(desk, "a")
        desk.store.client.zadd("penstock:finished", {"default/a": 0})
        retire(desk.store, desk.objects)
        assert list(desk.objects.list(key("a").prefix)) == []
        assert not desk.store.client.exists("penstock:tenant:default:job:a:followers")

    def test_nothing_is_purged_before_all_followers_are_known_again(self, desk: Journal) -> None:
        submit(desk, "a", limits=replace(DURABLE, retention_s=0))
        submit(desk, "b", "a")
        end(desk, claim_one(desk.store))
        flush(desk)
        desk.run(journal.revive(key("a")))
        assert not retire(desk.store, desk.objects)
        recover_if_lost(desk.store, desk.objects)
        assert purge(desk.store, desk.objects, [key("a")]) == (key("a"),)
        assert set(claims(desk)) == {"b"}

    def test_the_delete_of_a_followed_job_is_refused_until_its_followers_have_ended(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        end(desk, claim_one(desk.store))
        with pytest.raises(StateConflict, match="wait for this one"):
            desk.run(journal.cancel(key("a"), delete=True))
        assert desk.run(journal.cancel(key("a"))).state is State.SUCCEEDED
        end(desk, claim_one(desk.store))
        assert desk.run(journal.cancel(key("a"), delete=True)).state is State.SUCCEEDED

    def test_a_job_lists_its_followers_and_changes_its_revision_for_a_new_one(self, desk: Journal) -> None:
        before = submit(desk, "a").revision
        submit(desk, "b", "a")
        submit(desk, "c", "a")
        job = read(desk, "a")
        assert (job.followers, job.revision > before) == (("b", "c"), True)
        end(desk, claim_one(desk.store))
        assert read(desk, "a").followers == ("b", "c")


def crash_points(desk: Journal, flow: Callable[[], Flow[Any]], prepare: Callable[[], Any]) -> Iterator[None]:
    """Yield after a crash before each of a flow's steps, on stores made new by `prepare` each time."""
    for steps in itertools.count():
        flush(desk)
        desk.objects.delete_prefix("")
        recover_if_lost(desk.store, desk.objects)
        prepare()
        try:
            Fragile(desk.store, desk.objects, steps).run(flow())  # type: ignore[arg-type]
        except Crashed:
            yield
        else:
            assert steps > 2, "the flow has no steps to crash at"
            return


class TestCrashes:
    @pytest.mark.parametrize("lost", [False, True], ids=["redis-stays", "flushall"])
    def test_a_crash_in_the_submit_of_a_follower_loses_and_doubles_nothing(self, desk: Journal, lost: bool) -> None:
        for _ in crash_points(desk, lambda: journal.submit(wanted("b", "a"), DURABLE), lambda: submit(desk, "a")):
            if lost:
                flush(desk)
                recover_if_lost(desk.store, desk.objects)
            held = claims(desk)
            assert set(held) == {"a"}
            end(desk, held["a"])
            assert submit(desk, "b", "a").state is State.QUEUED
            assert set(claims(desk)) == {"b"}

    @pytest.mark.parametrize("lost", [False, True], ids=["redis-stays", "flushall"])
    @pytest.mark.parametrize("outcome", [DONE, FAILED], ids=["succeeds", "fails"])
    def test_a_crash_in_the_end_of_an_upstream_ends_the_chain_once(
        self, desk: Journal, outcome: Outcome, lost: bool
    ) -> None:
        held: dict[str, Claim] = {}

        def prepare() -> None:
            submit(desk, "a")
            submit(desk, "b", "a")
            held.clear()
            held.update(claims(desk))

        for _ in crash_points(desk, lambda: journal.complete(held["a"], outcome), prepare):
            assert isinstance(desk.store, JobStore)
            if lost:
                flush(desk)
                recover_if_lost(desk.store, desk.objects)
            else:
                desk.store.client.zadd("penstock:leases", {"default/a": 0})
            desk.run(journal.sweep())
            again = claims(desk)
            if "a" in again:
                assert set(again) == {"a"}
                desk.run(journal.complete(again["a"], outcome))
                again = claims(desk)
            settle(desk)
            assert read(desk, "a").state is outcome.state
            assert set(again) == ({"b"} if outcome is DONE else set())
            assert read(desk, "b").state is (State.RUNNING if outcome is DONE else State.FAILED)

    @pytest.mark.parametrize("lost", [False, True], ids=["redis-stays", "flushall"])
    def test_a_crash_in_the_sweep_that_ends_a_follower_is_finished_by_the_next(self, desk: Journal, lost: bool) -> None:
        def prepare() -> None:
            submit(desk, "a")
            submit(desk, "b", "a")
            end(desk, claims(desk)["a"], FAILED)

        for _ in crash_points(desk, journal.sweep, prepare):
            if lost:
                flush(desk)
                recover_if_lost(desk.store, desk.objects)
            assert claims(desk) == {}
            settle(desk)
            assert read(desk, "b").state is State.FAILED


class TestLossOfRedis:
    @pytest.mark.parametrize("names", ["ab", "ba"], ids=["upstream-first", "follower-first"])
    def test_the_order_is_kept_when_redis_is_emptied(self, desk: Journal, names: Sequence[str]) -> None:
        first, second = names
        submit(desk, first)
        submit(desk, second, first)
        flush(desk)
        recover_if_lost(desk.store, desk.objects)
        desk.run(journal.sweep())
        held = claims(desk)
        assert set(held) == {first}
        end(desk, held[first])
        flush(desk)  # after the end of the first
        recover_if_lost(desk.store, desk.objects)
        desk.run(journal.sweep())
        assert set(claims(desk)) == {second}

    def test_a_follower_that_is_read_first_brings_its_upstream_back(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        flush(desk)
        assert read(desk, "b").state is State.DELAYED
        desk.run(journal.sweep())
        assert read(desk, "b").progress.message == "waits for job a"
        assert set(claims(desk)) == {"a"}

    def test_a_submit_finds_an_upstream_that_redis_lost(self, desk: Journal) -> None:
        submit(desk, "a")
        flush(desk)
        assert submit(desk, "b", "a").state is State.DELAYED
        assert set(claims(desk)) == {"a"}

    def test_the_followers_of_ended_jobs_are_known_again(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        end(desk, claims(desk)["a"])
        end(desk, claims(desk)["b"])
        flush(desk)
        recover_if_lost(desk.store, desk.objects)
        assert read(desk, "a").followers == ("b",)
        assert desk.store.run(chains.followed([key("a")])) == ()

    def test_the_manifest_names_the_upstreams_for_older_releases_too(self, desk: Journal) -> None:
        submit(desk, "a")
        submit(desk, "b", "a")
        stored = json.loads(desk.objects.get_bytes(f"{key('b').prefix}request.json", limit_bytes=10_000))
        assert (stored["version"], stored["record"]) == (CHAINED, {"after": "a", "depth": "1"})
        assert "after" not in stored["submission"]  # which the release before rejects


class RandomChains:
    """Jobs that wait for each other at random, two of which fail, and what was seen of them."""

    def __init__(self, desk: Journal, seed: int) -> None:
        assert isinstance(desk.store, JobStore)
        self.desk, self.client, self.draw = desk, desk.store.client, random.Random(seed)
        self.names = [f"{n:02}" for n in self.draw.sample(range(100), 10)]
        self.after = {name: self.draw.sample(self.names[:n], self.draw.randint(0, min(n, 2))) for n, name in self.each}
        self.fails = set(self.draw.sample(self.names, 2))
        self.ended: dict[str, State] = {}

    @property
    def each(self) -> list[tuple[int, str]]:
        return list(enumerate(self.names))

    def try_to(self, flow: Flow[Any]) -> None:
        """Perform a flow in a process that may die before any of its steps."""
        steps = self.draw.choice([0, 1, 2, 3, 99, 99, 99])
        with suppress(Crashed, UnknownUpstream):
            Fragile(self.desk.store, self.desk.objects, steps).run(flow)  # type: ignore[arg-type]

    def turn(self) -> None:
        for name in self.names:
            if self.draw.random() < 0.3:
                self.try_to(journal.submit(wanted(name, *self.after[name]), PATIENT))
        if self.draw.random() < 0.05:
            flush(self.desk)
        if self.draw.random() < 0.5:
            recover_if_lost(self.desk.store, self.desk.objects)
        for reserved in self.desk.store.run(upkeep.reservations(0)):
            self.try_to(journal.settle_reservation(reserved))
        self.try_to(journal.sweep())
        held = claims(self.desk)
        self.look()  # a recovery may have found ends
        for name, claim in held.items():
            self.run(name, claim)
        self.look()

    def run(self, name: str, claim: Claim) -> None:
        assert all(self.ended.get(each) is State.SUCCEEDED for each in self.after[name]), f"{name} began too early"
        assert name not in self.ended, f"{name} ran after its end"
        self.try_to(journal.complete(claim, FAILED if name in self.fails else DONE))
        self.client.zadd("penstock:leases", {f"default/{name}": 0}, xx=True)  # its worker may be dead
        self.look()

    def look(self) -> None:
        for name in self.names:
            with suppress(UnknownJob):
                job = read(self.desk, name)
                if job.state in TERMINAL:
                    assert self.ended.setdefault(name, job.state) is job.state, f"{name} ended twice"

    @property
    def expected(self) -> set[str]:
        """The jobs that cannot succeed."""
        lost = set(self.fails)
        for name in self.names:
            lost |= {name} if lost & set(self.after[name]) else set()
        return lost


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_crashes_and_losses_loses_doubles_or_reorders_a_job(desk: Journal, seed: int) -> None:
    jobs = RandomChains(desk, seed)
    for _ in range(400):
        jobs.turn()
        if len(jobs.ended) == len(jobs.names):
            break
    assert set(jobs.ended) == set(jobs.names)
    assert {name for name, state in jobs.ended.items() if state is not State.SUCCEEDED} == jobs.expected
