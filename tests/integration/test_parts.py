"""The scripts of parts: a job is split, its parts are claimed, lost, canceled and joined, and never show as jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.errors import UnknownJob
from penstock.jobs import Claim, Job, JobKey, Phase, Progress, State, Status, Usage, Webhook
from penstock.scaling import ScalingBounds
from penstock.storage.journal import endpoints
from penstock.storage.redis import counts, deliveries, listing, parts, queues, records
from penstock.storage.redis.parts import Division, PartRange, part_lane
from penstock.storage.redis.records import JobStore, Outcome
from tests.support.bare_store import LIMITS, claim, read, submission, submit
from tests.support.claims import claim_up_to

RANGES = (PartRange(0, 3, 40), PartRange(4, 7, 40), PartRange(8, 9, 20))
DIVISION = Division("d" * 32, "cpu-x", RANGES)
LANE = part_lane("m", "cpu-x")
KEY = JobKey("default", "a")
PARTS = "penstock:tenant:default:job:a:parts"


def split(store: JobStore, held: Claim, division: Division = DIVISION) -> records.Reply[str]:
    return store.run(parts.split(held, division, Progress(0, 100, "tiles"), Usage(bytes_in=7)))


def claim_parts(store: JobStore, n: int = 1, *, lane: str = LANE, lease_s: float = 30) -> list[Claim]:
    return claim_up_to(store, n, slot="p", lease_s=lease_s, max_tenant_running=10, worker="v", models=["m", lane])


def end(store: JobStore, held: Claim, state: State = State.SUCCEEDED, **outcome: Any) -> str:
    return store.run(records.complete(held, Outcome(state, **outcome))).value


def split_job(store: JobStore, **changes: Any) -> Claim:
    """Submit a job, claim it, and split it."""
    submit(store, **changes)
    [held] = claim(store)
    assert split(store, held).value == "ok"
    return held


def beat(store: JobStore, held: Claim, done: int, total: int) -> str:
    said = records.heartbeat(held, Phase.INFERRING, Progress(done, total, "tiles"), checkpoints=done)
    return store.run(said)


def due(store: JobStore, index: str, key: JobKey) -> records.Swept:
    store.client.zadd(f"penstock:{index}", {str(key): 0})
    return store.run(records.sweep(proposals=10))


def keys(store: JobStore, pattern: str) -> set[str]:
    return {str(key) for key in store.client.scan_iter(pattern)}


def events(store: JobStore) -> Sequence[tuple[str, Any]]:
    return [(event.type, event.data) for event in store.run(records.events(KEY))]


class TestSplit:
    def test_a_split_job_runs_in_parts_and_gives_its_attempt_back(self, store: JobStore) -> None:
        held = split_job(store)
        job = read(store, KEY)
        assert (job.state, job.status, job.phase) == (State.DELAYED, Status.RUNNING, Phase.INFERRING)
        assert (job.parts and job.parts.number, job.parts and job.parts.ended) == (3, 0)
        assert [row.outcome for row in job.attempts] == ["split"]
        assert store.client.zscore("penstock:expiring", str(KEY)) is None
        assert split(store, held).value == "already"
        for part in claim_parts(store, 9):
            assert end(store, part) == "ok"
        [again] = claim(store)
        assert (again.key, again.attempt, again.parts) == (KEY, 1, 3)
        assert again.fence > held.fence

    def test_parts_have_ids_of_job_digest_and_range(self, store: JobStore) -> None:
        split_job(store)
        claimed = claim_parts(store, 9)
        assert [(each.part and each.part.first, each.part and each.part.last) for each in claimed] == [
            (0, 3), (4, 7), (8, 9),
        ]  # fmt: skip
        assert {each.key for each in claimed} == {
            KEY.part("d" * 32, first, last) for first, last in [(0, 3), (4, 7), (8, 9)]
        }
        assert {each.job for each in claimed} == {KEY}
        assert [each.submission.input for each in claimed] == [{}] * 3

    def test_only_machines_of_the_kind_claim_parts(self, store: JobStore) -> None:
        split_job(store)
        assert claim(store, 9) == []
        assert claim_parts(store, lane=part_lane("m", "cuda-x")) == []
        assert len(claim_parts(store)) == 1

    def test_an_attempt_that_lost_its_job_makes_no_parts(self, store: JobStore) -> None:
        submit(store)
        [lost] = claim(store)
        due(store, "leases", KEY)
        assert split(store, lost).value == "fenced"
        assert keys(store, "penstock:*:parts") == set()
        assert len(claim(store)) == 1

    def test_a_job_whose_end_was_requested_is_not_split(self, store: JobStore) -> None:
        submit(store)
        [held] = claim(store)
        store.run(records.cancel(KEY))
        assert split(store, held).value == "ok"
        assert read(store, KEY).state is State.CANCELED
        assert claim_parts(store) == []

    def test_an_ended_part_is_forgotten_before_it_is_made_again(self, store: JobStore) -> None:
        split_job(store)
        first = claim_parts(store, 9)
        for part in first:
            end(store, part, State.FAILED)
        [again] = claim(store)
        store.client.set(f"penstock:tenant:default:gone:{first[0].key.id}", "1")  # an older keeper purged it
        assert split(store, again).value == "ok"
        second = claim_parts(store, 9)
        assert [each.key for each in second] == [each.key for each in first]
        assert all(new.fence > old.fence and new.attempt == 1 for new, old in zip(second, first, strict=True))
        assert keys(store, "penstock:tenant:default:gone:*") == set()


class TestParts:
    def test_a_part_is_no_job_of_its_tenant(self, store: JobStore) -> None:
        submit(store, webhook=Webhook("http://nobody.invalid/", ("job.started", "job.succeeded", "job.failed")))
        [held] = claim(store)
        split(store, held)
        part, failing, _ = claim_parts(store, 9)
        with pytest.raises(UnknownJob):
            read(store, part.key)
        with pytest.raises(UnknownJob):
            store.run(records.cancel(part.key))
        with pytest.raises(UnknownJob):
            store.run(records.events(part.key))
        assert [job.key for job in store.run(listing.list_jobs("default")).jobs] == [KEY]
        assert store.client.scard("penstock:tenant:default:live") == 1
        before = store.client.zcard("penstock:outbox")
        end(store, part)
        end(store, failing, State.FAILED)
        assert store.client.zcard("penstock:outbox") == before
        assert store.client.hgetall("penstock:counts:ended") == {}
        assert store.client.zcard("penstock:finished") == 0

    def test_a_queue_that_is_emptied_loses_the_jobs_and_not_their_parts_one_by_one(self, store: JobStore) -> None:
        split_job(store)
        submit(store, "b")
        assert store.run(queues.waiting("q", "default", 10)) == (JobKey("default", "b"), KEY)

    def test_no_webhook_tells_of_a_parts_progress(self, store: JobStore) -> None:
        endpoint = endpoints.Endpoint(
            endpoints.EndpointKey("default", "e"), "http://nobody.invalid/", (), 0, 0, events=("job.progress",)
        )
        store.run(endpoints.publish(endpoint.key, endpoint))
        split_job(store)
        [part] = claim_parts(store)
        store.run(records.heartbeat(part, Phase.FETCHING, Progress(0, None, "tiles")))
        assert store.client.zcard("penstock:outbox") == 0
        beat(store, part, 10, 40)
        assert [row.event for row in store.run(deliveries.deliveries(KEY))] == ["job.progress"]

    def test_beats_that_tell_nothing_new_are_no_events(self, store: JobStore) -> None:
        split_job(store)
        [part] = claim_parts(store)
        for _ in range(5):
            beat(store, part, 10, 40)
        assert [kind for kind, _ in events(store)].count("job.progress") == 1

    def test_a_split_job_is_listed_as_running(self, store: JobStore) -> None:
        split_job(store)
        assert [job.key for job in store.run(listing.list_jobs("default", status=Status.RUNNING)).jobs] == [KEY]
        assert store.run(listing.list_jobs("default", status=Status.QUEUED)).jobs == ()

    def test_an_ended_part_leaves_nothing(self, store: JobStore) -> None:
        split_job(store)
        claimed = claim_parts(store, 9)
        for part in claimed:
            beat(store, part, 1, 10)
            end(store, part)
        assert not {key for part in claimed for key in keys(store, f"penstock:*{part.key.id}*")}
        assert keys(store, "penstock:*:parts") == set()
        assert store.client.zrange("penstock:leases", 0, -1) == []

    def test_a_lost_part_is_claimed_again_under_a_higher_fence(self, store: JobStore) -> None:
        split_job(store)
        lost, *_ = claim_parts(store, 9)
        due(store, "leases", lost.key)
        [again] = claim_parts(store)
        assert (again.key, again.attempt, again.crashes) == (lost.key, 2, 1)
        assert again.fence > lost.fence
        assert beat(store, lost, 1, 10) == "lost"
        assert end(store, lost) == "fenced"
        assert end(store, again) == "ok"
        job = read(store, KEY)
        assert job.parts is not None
        assert job.parts.ended == 1

    def test_a_part_that_crashes_too_often_leaves_its_job_one_last_chance(self, store: JobStore) -> None:
        split_job(store)
        crashing, running, _ = claim_parts(store, 9)
        for left in reversed(range(LIMITS.max_crashes)):
            due(store, "leases", crashing.key)
            if left:
                [crashing] = claim_parts(store, lane=LANE)
        ends = [data["status"] for kind, data in events(store) if kind == "job.part_ended"]
        assert ends == ["failed"]
        assert read(store, KEY).state is State.DELAYED  # two parts still run
        assert beat(store, running, 1, 10) == "cancel"
        [other] = [JobKey("default", id_) for id_ in store.client.smembers(PARTS) if id_ != running.key.id]
        due(store, "leases", other)  # what is canceled and crashes is not run again
        assert read(store, KEY).state is State.DELAYED
        assert end(store, running, State.CANCELED) == "ok"
        assert read(store, KEY).state is State.QUEUED
        submit(store, "b")
        [last] = claim(store)
        assert (last.key, last.crashes, last.last_chance) == (KEY, LIMITS.max_crashes - 1, True)
        due(store, "leases", KEY)
        assert read(store, KEY).state is State.FAILED

    def test_a_part_that_fails_ends_those_that_wait(self, store: JobStore) -> None:
        split_job(store)
        [failing] = claim_parts(store)
        assert end(store, failing, State.FAILED) == "ok"
        job = read(store, KEY)
        assert (job.state, job.crashes, job.parts and job.parts.ended) == (State.QUEUED, 0, 3)
        assert keys(store, "penstock:*:parts") == set()

    def test_a_part_that_waits_too_long_expires_and_its_job_waits_anew(self, store: JobStore) -> None:
        split_job(store)
        for id_ in store.client.smembers("penstock:tenant:default:job:a:parts"):
            due(store, "expiring", JobKey("default", id_))
        assert read(store, KEY).state is State.QUEUED
        assert store.client.zscore("penstock:expiring", str(KEY)) > time.time() * 1e6

    def test_the_progress_of_a_job_counts_what_its_parts_have_saved(self, store: JobStore) -> None:
        split_job(store)
        one, two, three = claim_parts(store, 9)
        beat(store, one, 10, 40)
        beat(store, two, 5, 50)  # of a plan that computes some tiles twice
        assert read(store, KEY).progress == Progress(14, 100, "tiles")
        end(store, three)
        assert read(store, KEY).progress.done == 34
        due(store, "leases", one.key)
        [again] = claim_parts(store)
        beat(store, again, 2, 40)
        assert read(store, KEY).progress.done == 34
        beat(store, again, 40, 40)
        assert read(store, KEY).progress.done == 64

    def test_the_estimate_of_a_split_job_comes_from_its_progress(self, store: JobStore) -> None:
        split_job(store)
        assert read(store, KEY).eta_s is None
        store.client.hset("penstock:tenant:default:job:a", "started_us", int((time.time() - 10) * 1e6))
        [part] = claim_parts(store)
        beat(store, part, 20, 40)
        assert read(store, KEY).eta_s == pytest.approx(40, rel=0.1)

    def test_what_parts_use_is_used_by_their_job(self, store: JobStore) -> None:
        split_job(store)
        for part in claim_parts(store, 9):
            end(store, part, usage=Usage(device_s=2.0, bytes_in=10, bytes_out=0))
        assert read(store, KEY).usage == Usage(device_s=6.0, bytes_in=37)

    def test_parts_want_workers(self, store: JobStore) -> None:
        split_job(store)
        stats = store.run(queues.queue_stats("q"))
        assert stats.wanted_workers(ScalingBounds(), slots=1) == 3
        claim_parts(store, 1)
        assert store.run(queues.queue_stats("q")).wanted_workers(ScalingBounds(), slots=1) == 3

    def test_the_events_of_a_job_tell_of_its_parts(self, store: JobStore) -> None:
        split_job(store)
        for part in claim_parts(store, 9):
            end(store, part)
        told = [(kind, data.get("parts"), data.get("ended")) for kind, data in events(store) if "part" in str(data)]
        assert told[0] == ("job.split", 3, None)
        assert told[1:4] == [("job.part_ended", 3, n) for n in (1, 2, 3)]
        assert ("job.requeued", {"reason": "parts"}) in events(store)


class TestEnds:
    def test_a_cancel_ends_parts_that_wait_and_then_the_job(self, store: JobStore) -> None:
        split_job(store)
        job = store.run(records.cancel(KEY)).value
        assert job.state is State.CANCELED
        assert claim_parts(store, 9) == []
        assert keys(store, "penstock:*:parts") == set()
        assert store.run(queues.backlog()) == {}

    def test_a_cancel_waits_for_parts_that_run(self, store: JobStore) -> None:
        split_job(store)
        [part] = claim_parts(store)
        job = store.run(records.cancel(KEY)).value
        assert (job.state, job.status) == (State.DELAYED, Status.CANCELING)
        assert claim_parts(store, 9) == []
        assert beat(store, part, 1, 10) == "cancel"
        assert end(store, part, State.CANCELED) == "ok"
        store.run(records.sweep())
        assert read(store, KEY).state is State.CANCELED
        assert claim(store) == []

    def test_a_cancel_of_a_durable_job_is_stored_while_parts_run(self, store: JobStore) -> None:
        store.run(records.submit(submission(), replace(LIMITS, durable=True)))
        store.run(records.confirm(KEY, 1))
        [held] = claim(store)
        split(store, held)
        [part] = claim_parts(store)
        reply = store.run(records.cancel(KEY))
        assert (reply.proposal, reply.must_be_stored) == (None, True)
        due(store, "leases", part.key)  # its worker died
        swept = store.run(records.sweep(proposals=10))
        [(key, proposal)] = swept.proposals
        store.run(records.commit(key, proposal))
        assert read(store, KEY).state is State.CANCELED

    def test_the_end_of_a_batch_ends_parts_too(self, store: JobStore) -> None:
        split_job(store)
        [part] = claim_parts(store)
        store.run(records.expire(KEY))
        assert beat(store, part, 1, 10) == "cancel"
        end(store, part, State.CANCELED)
        store.run(records.sweep())
        assert read(store, KEY).state is State.CANCELED

    def test_an_outcome_that_was_stored_before_ends_the_parts(self, store: JobStore) -> None:
        store.run(records.submit(submission(), replace(LIMITS, durable=True)))
        store.run(records.confirm(KEY, 1))
        [held] = claim(store)
        proposal = store.run(records.complete(held, Outcome(State.SUCCEEDED, text="hi"))).proposal
        split(store, held)
        [part] = claim_parts(store)
        store.run(records.commit(KEY, cast("str", proposal)))
        job: Job = read(store, KEY)
        assert (job.state, job.text) == (State.SUCCEEDED, "hi")
        assert claim_parts(store, 9) == []
        assert beat(store, part, 1, 10) == "cancel"
        end(store, part, State.CANCELED)
        assert read(store, KEY).state is State.SUCCEEDED
        assert keys(store, "penstock:*:parts") == set()

    def test_parts_of_a_job_that_is_gone_are_not_run(self, store: JobStore) -> None:
        split_job(store)
        store.client.delete("penstock:tenant:default:job:a")
        assert claim_parts(store, 9) == []
        assert keys(store, "penstock:*:parts") == set()

    def test_a_sweep_puts_a_job_back_whose_parts_are_gone(self, store: JobStore) -> None:
        split_job(store)
        due(store, "delayed", KEY)
        assert read(store, KEY).state is State.DELAYED
        lost, ended, last = claim_parts(store, 9)
        # As an older keeper does: it ends or purges a part as it does a job.
        store.client.delete(f"penstock:tenant:default:job:{lost.key.id}")
        store.client.hset(f"penstock:tenant:default:job:{ended.key.id}", "state", "failed")
        due(store, "delayed", KEY)
        assert read(store, KEY).state is State.DELAYED  # one lives
        store.client.delete(f"penstock:tenant:default:job:{last.key.id}")
        due(store, "delayed", KEY)
        assert read(store, KEY).state is State.QUEUED
        assert keys(store, "penstock:*:parts") == set()

    def test_the_last_part_puts_its_job_back_although_an_older_keeper_ended_another(self, store: JobStore) -> None:
        split_job(store)
        purged, *others = claim_parts(store, 9)
        store.client.delete(f"penstock:tenant:default:job:{purged.key.id}")
        for part in others:
            end(store, part)
        assert read(store, KEY).state is State.QUEUED

    def test_a_job_that_is_claimed_while_parts_live_waits_for_them(self, store: JobStore) -> None:
        split_job(store)
        # As an older keeper does: its sweep knows no parts.
        store.client.zrem("penstock:delayed", str(KEY))
        store.client.hset("penstock:tenant:default:job:a", "state", "queued")
        store.client.zadd("penstock:queue:q:waiting", {str(KEY): 1})
        store.client.zadd("penstock:queue:q:lane:m/default", {"a": 1})
        store.client.zadd("penstock:queue:q:lanes", {"m/default": 0})
        [held] = claim(store)
        assert held.parts == 0
        assert split(store, held, Division("e" * 32, "cpu-x", RANGES)).value == "ok"
        assert {each.part and each.part.digest for each in claim_parts(store, 9)} == {"d" * 32}


def test_room_counts_workers_jobs_and_drivers(store: JobStore) -> None:
    assert store.run(parts.capacity("q")) == parts.Capacity(0, 0, 0, False)
    for worker in ("v", "w"):
        store.run(queues.seen("q", worker, 2, alive_s=60))
    submit(store, "a")
    submit(store, "b")
    claim(store)
    store.client.set("penstock:queue:q:pool", "1")
    assert store.run(parts.capacity("q")) == parts.Capacity(2, 1, 1, True)
    assert store.run(counts.counts()) is not None
