"""The job store on a real Valkey: what each script does, and that doing it twice does nothing more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import (
    IdempotencyMismatch,
    InvalidInput,
    Issue,
    JobGone,
    OutOfMemory,
    QueueFull,
    RedisUnavailable,
    StateConflict,
    TooManyJobs,
    UnknownJob,
)
from penstock.jobs import Artifact, Claim, JobKey, Phase, Progress, State, Status, Webhook
from penstock.storage.redis import deliveries, listing, records, upkeep
from penstock.storage.redis.records import JobStore, Outcome
from tests.support.bare_store import LIMITS, claim, read, submission, submit, sweep_until
from tests.support.claims import claim_up_to
from tests.support.valkey import ValkeyProcess

#: Limits of a queue with more jobs.
MANY = replace(LIMITS, max_queued=1000)
OOM = OutOfMemory().report()


def left_over(store: JobStore) -> list[str]:
    """The indices that hold anything: all must be empty when no job is live."""
    names = ("leases", "deadlines", "delayed", "expiring", "queue:q:waiting", "queue:q:lanes", "queue:q:names",
             "tenant:default:live", "tenant:default:running")  # fmt: skip
    return [name for name in names if store.client.exists(f"penstock:{name}")]


class TestSubmit:
    def test_makes_a_waiting_job(self, store: JobStore) -> None:
        submitted = store.run(records.submit(submission(metadata={"k": "v"}), LIMITS))
        job = read(store, JobKey("default", "a"))
        assert submitted.created
        assert (job.status, job.phase, job.attempt, job.queue_position) == (Status.QUEUED, Phase.WAITING, 0, 1)
        assert job.submission == submission(metadata={"k": "v"})

    def test_twice_is_one_job(self, store: JobStore) -> None:
        first = store.run(records.submit(submission(), LIMITS))
        second = store.run(records.submit(submission(), LIMITS))
        assert (first.created, second.created) == (True, False)
        assert first.job == second.job
        assert len(claim(store, 5)) == 1

    def test_with_another_body_is_refused(self, store: JobStore) -> None:
        submit(store)
        with pytest.raises(IdempotencyMismatch):
            submit(store, fingerprint="other")

    def test_never_exceeds_the_tenants_limit_nor_the_queues(self, store: JobStore) -> None:
        for n in range(2):
            submit(store, f"{n}", replace(LIMITS, max_tenant_jobs=2))
        with pytest.raises(TooManyJobs) as refused:
            submit(store, "2", replace(LIMITS, max_tenant_jobs=2))
        assert refused.value.retry_after_s
        submit(store, "3", tenant="other")
        with pytest.raises(QueueFull) as full:
            submit(store, "4", replace(LIMITS, max_queued=3), tenant="third")
        assert full.value.retry_after_s
        with pytest.raises(UnknownJob):
            read(store, JobKey("third", "4"))


class TestClaim:
    def test_leases_the_oldest_with_a_rising_fence(self, store: JobStore) -> None:
        keys = [submit(store, name) for name in "ab"]
        first, second = claim(store)[0], claim(store)[0]
        assert [first.key, second.key] == keys
        assert 0 < first.fence < second.fence
        assert read(store, first.key).status is Status.RUNNING
        assert claim(store) == []

    def test_with_the_same_nonce_returns_the_same_job(self, store: JobStore) -> None:
        for name in "ab":
            submit(store, name)
        assert claim(store, nonce="x") == claim(store, nonce="x")
        assert [c.key.id for c in claim(store, 2, nonce="y")] == ["b"]

    def test_goes_round_the_tenants_and_their_models(self, store: JobStore) -> None:
        for name in ("a1", "a2", "a3"):
            submit(store, name, tenant="one")
        submit(store, "b1", tenant="two")
        submit(store, "other", tenant="one", model="m2")
        assert [c.key.id for c in claim(store, 9)] == ["a1", "b1", "other", "a2", "a3"]

    def test_goes_round_more_tenants_than_it_reads_at_once(self, store: JobStore) -> None:
        tenants = [f"t{n:03}" for n in range(130)]
        for tenant in tenants:
            for job_id in "ab":
                submit(store, job_id, MANY, tenant=tenant)
        for n in (1, 60, 69):
            claim(store, n)
        second = {held.key.tenant for held in claim(store, 130)}
        assert second == set(tenants)
        assert claim(store, 9) == []

    def test_finds_a_job_behind_many_lanes_that_it_cannot_take(self, store: JobStore) -> None:
        for n in range(120):
            submit(store, "a", MANY, tenant=f"t{n:03}", model="unknown")
        submit(store, "a", MANY, tenant="last")
        assert [held.key.tenant for held in claim(store, 5)] == ["last"]
        assert claim(store, 5) == []

    def test_leaves_models_that_the_worker_cannot_run(self, store: JobStore) -> None:
        submit(store, model="elsewhere")
        assert claim(store) == []

    def test_respects_the_running_cap_of_a_tenant(self, store: JobStore) -> None:
        for name in "abc":
            submit(store, name)
        assert len(claim(store, 5, cap=2)) == 2
        assert claim(store, 5, cap=2) == []

    def test_prefers_high_priority_and_lets_low_ones_age(self, store: JobStore) -> None:
        submit(store, "low", priority=-1)
        submit(store, "normal")
        submit(store, "high", priority=1)
        assert [c.key.id for c in claim(store, 3)] == ["high", "normal", "low"]

    def test_tells_whether_others_wait(self, store: JobStore) -> None:
        for name in ("a", "b", "c"):
            submit(store, name)
        told = [claim(store, n, nonce=nonce) for n, nonce in ((2, "x"), (2, "x"), (1, "y"))]
        assert [[claimed.more for claimed in each] for each in told] == [[True, True], [True, True], [False]]

    def test_has_one_busy_worker_run_dry_for_a_last_chance_while_the_others_pass_it_by(self, store: JobStore) -> None:
        submit(store, "crashed")
        for crashes in (1, 2):
            assert claim(store, lease_s=0.001)[0].last_chance is False
            sweep_until(store, lambda crashes=crashes: read(store, JobKey("default", "crashed")).crashes == crashes)
        for name in ("a", "b", "c"):
            submit(store, name)

        def busy(worker: str) -> list[str]:
            return [held.key.id for held in claim_up_to(store, 1, slot=worker, worker=worker, dry=False)]

        assert busy("drying") == []
        assert busy("other") == ["a"]
        assert busy("drying") == []
        [last] = claim(store)
        assert (last.key.id, last.last_chance) == ("crashed", True)
        assert busy("drying") == ["b"]


class TestHeartbeat:
    def test_keeps_progress_that_never_goes_backwards(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        assert store.run(records.heartbeat(held, Phase.INFERRING, Progress(5, 10, "tiles"))) == "go"
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(3, 10, "tiles")))
        job = read(store, key)
        assert (job.phase, job.progress.done, job.progress.total) == (Phase.INFERRING, 5, 10)
        assert job.eta_s is not None

    def test_tells_of_a_cancel_and_of_a_lost_lease(self, store: JobStore) -> None:
        key = submit(store)
        old = claim(store, lease_s=0.001)[0]
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        new = claim(store)[0]
        assert store.run(records.heartbeat(old, Phase.INFERRING, Progress())) == "lost"
        assert store.run(records.cancel(key)).value.status is Status.CANCELING
        assert store.run(records.heartbeat(new, Phase.INFERRING, Progress())) == "cancel"

    def test_a_crash_after_a_checkpoint_is_the_first_one_again(self, store: JobStore) -> None:
        key = submit(store)
        for checkpoints, crashes in ((0, 1), (0, 2), (3, 1), (0, 2)):
            held = claim(store)[0]
            store.run(records.heartbeat(held, Phase.INFERRING, Progress(), checkpoints=checkpoints))
            store.client.zadd("penstock:leases", {str(key): 0})
            assert store.run(records.sweep()).requeued == 1
            assert read(store, key).crashes == crashes

    def test_fails_a_job_that_runs_past_its_timeout(self, store: JobStore) -> None:
        key = submit(store, execution_timeout_s=0.001)
        held = claim(store)[0]
        while store.run(records.heartbeat(held, Phase.INFERRING, Progress())) != "lost":
            pass
        job = read(store, key)
        assert job.state is State.FAILED
        assert job.error is not None
        assert job.error.code == "execution_timeout"


class TestProgressOverAttempts:
    def again(self, store: JobStore, key: JobKey) -> Claim:
        """Lose the attempt and begin another."""
        store.client.zadd("penstock:leases", {str(key): 0})
        store.run(records.sweep())
        return claim(store)[0]

    def told(self, store: JobStore, key: JobKey) -> list[tuple[Any, Any]]:
        """Return the reports of progress, in their order."""
        found = store.run(records.events(key))
        return [(event.data["done"], event.data["total"]) for event in found if event.type == "job.progress"]

    def test_a_further_attempt_shows_no_less_than_the_one_before(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(3, 10, "tiles")))
        held = self.again(store, key)
        assert read(store, key).progress == Progress(3, 10, "tiles")
        for done, total, shown in ((0, None, 3), (0, 10, 3), (2, 10, 3), (4, 10, 4), (3, 10, 4)):
            store.run(records.heartbeat(held, Phase.INFERRING, Progress(done, total, "tiles")))
            assert read(store, key).progress == Progress(shown, 10, "tiles")
        dones = [done for done, _ in self.told(store, key)]
        assert dones == sorted(dones)

    def test_another_plan_begins_at_the_share_that_was_reached(self, store: JobStore) -> None:
        key = submit(store)
        store.run(records.heartbeat(claim(store)[0], Phase.INFERRING, Progress(5, 10, "tiles")))
        held = self.again(store, key)
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(0, 40, "batches")))
        assert read(store, key).progress == Progress(20, 40, "batches")
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(21, 40, "batches")))
        assert read(store, key).progress == Progress(21, 40, "batches")

    def test_it_survives_a_release_a_retry_and_a_failure(self, store: JobStore) -> None:
        key = submit(store, max_attempts=2)
        held = claim(store)[0]
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(3, 10)))
        store.run(records.release(held))
        held = claim(store)[0]
        store.run(records.complete(held, Outcome(State.DELAYED, error=OOM, progress=Progress(1, 10))))
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        assert read(store, key).progress == Progress(3, 10)
        store.run(records.complete(claim(store)[0], Outcome(State.FAILED, error=OOM)))
        assert read(store, key).progress == Progress(3, 10)

    def test_a_success_is_whole(self, store: JobStore) -> None:
        key = submit(store)
        store.run(records.heartbeat(claim(store)[0], Phase.INFERRING, Progress(3, 10)))
        store.run(records.complete(self.again(store, key), Outcome(State.SUCCEEDED)))
        assert read(store, key).progress == Progress(10, 10)


class TestComplete:
    ARTIFACT = Artifact("x.tif", "image/tiff", 3, "ab", "k")

    def test_makes_the_result_visible_once(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        progress = Progress(2, 4, "tiles")
        outcome = Outcome(State.SUCCEEDED, "hi", {"n": 1}, (self.ARTIFACT,), metrics={"fetch_ms": 1.5})
        outcome = replace(outcome, progress=progress)
        assert store.run(records.complete(held, outcome)).value == "ok"
        assert store.run(records.complete(held, outcome)).value == "already"
        job = read(store, key)
        assert (job.state, job.text, job.data, job.artifacts) == (State.SUCCEEDED, "hi", {"n": 1}, (self.ARTIFACT,))
        assert job.metrics == {"fetch_ms": 1.5}
        assert job.progress == Progress(4, 4, "tiles")
        assert left_over(store) == []

    def test_refuses_who_lost_the_lease(self, store: JobStore) -> None:
        key = submit(store)
        old = claim(store, lease_s=0.001)[0]
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        assert store.run(records.complete(old, Outcome(State.SUCCEEDED))).value == "fenced"
        new = claim(store)[0]
        assert store.run(records.complete(old, Outcome(State.SUCCEEDED))).value == "fenced"
        assert store.run(records.release(old)).value == "fenced"
        assert store.run(records.complete(new, Outcome(State.SUCCEEDED))).value == "ok"
        assert store.run(records.complete(old, Outcome(State.FAILED, error=OOM))).value == "fenced"
        assert read(store, key).state is State.SUCCEEDED

    def test_retries_until_the_attempts_are_used_up(self, store: JobStore) -> None:
        key = submit(store, max_attempts=2)
        retry = Outcome(State.DELAYED, error=OOM, retry_delay_s=0.001)
        held = claim(store)[0]
        assert store.run(records.complete(held, retry)).value == "ok"
        assert store.run(records.complete(held, retry)).value == "already"
        assert read(store, key).status is Status.QUEUED
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        assert store.run(records.complete(claim(store)[0], retry)).value == "ok"
        job = read(store, key)
        assert (job.state, job.attempt, job.error) == (State.FAILED, 2, OOM)
        assert left_over(store) == []


class TestEnds:
    def test_after_a_release_the_attempt_is_begun_again(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        assert store.run(records.release(held)).value == "ok"
        assert store.run(records.release(held)).value == "already"
        assert (read(store, key).state, read(store, key).attempt) == (State.QUEUED, 1)
        assert claim(store, lease_s=0.001)[0].attempt == 1
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        assert claim(store)[0].attempt == 2
        told = [(event.type, event.data["attempt"]) for event in store.run(records.events(key))[1:3]]
        assert told == [("job.started", 1), ("job.released", 1)]

    def test_a_waiting_job_is_canceled_at_once_and_only_once(self, store: JobStore) -> None:
        key = submit(store)
        assert store.run(records.cancel(key)).value.state is State.CANCELED
        again = store.run(records.cancel(key))
        assert again == store.run(records.cancel(key))
        assert claim(store) == []
        assert left_over(store) == []

    def test_a_running_job_is_canceled_by_its_worker_or_by_the_end_of_its_lease(self, store: JobStore) -> None:
        seen, unseen = submit(store, "seen"), submit(store, "unseen")
        held = claim(store)[0]
        claim(store, lease_s=0.001)
        for key in (seen, unseen):
            store.run(records.cancel(key))
        store.run(records.complete(held, Outcome(State.CANCELED)))
        sweep_until(store, lambda: read(store, unseen).state is State.CANCELED)
        assert read(store, seen).state is State.CANCELED
        assert left_over(store) == []

    def test_the_third_lost_lease_is_the_last(self, store: JobStore) -> None:
        key = submit(store)
        for crashes in (1, 2, 3):
            assert claim(store, lease_s=0.001)
            sweep_until(store, lambda crashes=crashes: read(store, key).crashes == crashes)
        job = read(store, key)
        assert job.state is State.FAILED
        assert job.error is not None
        assert job.error.code == "worker_lost"

    def test_a_job_that_waits_too_long_expires(self, store: JobStore) -> None:
        key = submit(store, queue_ttl_s=0.001)
        sweep_until(store, lambda: read(store, key).state is State.EXPIRED)
        assert claim(store) == []
        assert left_over(store) == []

    def test_a_purged_job_is_gone_and_its_id_stays_taken(self, store: JobStore) -> None:
        key = submit(store)
        with pytest.raises(StateConflict):
            store.run(records.delete(key))
        store.run(records.cancel(key))
        store.run(records.delete(key))
        store.run(records.delete(key))
        for command in (records.read(key), records.cancel(key), records.submit(submission(), LIMITS)):
            with pytest.raises(JobGone):
                store.run(command)
        with pytest.raises(UnknownJob):
            store.run(records.delete(JobKey("default", "never")))

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.DELAYED])
    def test_a_job_whose_cancel_was_answered_ends_as_canceled_whatever_its_attempt_says(
        self, store: JobStore, state: State
    ) -> None:
        key = submit(store)
        held = claim(store)[0]
        assert store.run(records.cancel(key)).value.status is Status.CANCELING
        error = None if state is State.SUCCEEDED else OOM
        store.run(records.complete(held, Outcome(state, text="late", error=error)))
        job = read(store, key)
        assert (job.state, job.text, job.error) == (State.CANCELED, None, None)

    def test_after_its_retention_a_job_is_gone_before_it_is_purged(self, store: JobStore) -> None:
        key = submit(store, limits=replace(LIMITS, retention_s=0), webhook=Webhook("http://h/"))
        assert store.run(listing.list_jobs("default")).jobs
        store.run(records.cancel(key))
        asked: tuple[records.Command[Any], ...] = (
            records.read(key), records.cancel(key), records.events(key), records.submit(submission(), LIMITS),
            deliveries.deliveries(key), deliveries.redeliver(key.tenant, f"msg_{key.id}_job.canceled", job_id=key.id),
        )  # fmt: skip
        for command in asked:
            with pytest.raises(JobGone):
                store.run(command)
        assert store.run(listing.list_jobs("default")).jobs == ()
        assert store.run(upkeep.retired()) == (key,)
        store.run(records.delete(key))

    def test_the_sweep_names_the_queues_into_which_jobs_came_back(self, store: JobStore) -> None:
        for name in "ab":
            submit(store, name)
        lost, delayed = claim(store, 2)
        store.run(records.complete(delayed, Outcome(State.DELAYED, error=OOM)))
        assert store.run(records.sweep()).queues == ("q",)
        store.client.zadd("penstock:leases", {str(lost.key): 0})
        assert store.run(records.sweep()).queues == ("q",)
        assert store.run(records.sweep()).queues == ()

    def test_retention_names_what_may_go(self, store: JobStore) -> None:
        key = submit(store, limits=replace(LIMITS, retention_s=0.001))
        assert store.run(upkeep.retired()) == ()
        store.run(records.cancel(key))
        sweep_until(store, lambda: store.run(upkeep.retired()) == (key,))


class TestViews:
    def test_a_list_is_newest_first_and_filtered(self, store: JobStore) -> None:
        for name in "abcde":
            submit(store, name, model="m2" if name == "c" else "m")
        submit(store, "foreign", tenant="other")
        store.run(records.cancel(JobKey("default", "b")))
        first = store.run(listing.list_jobs("default", limit=3))
        rest = store.run(listing.list_jobs("default", limit=3, cursor=first.next_cursor))
        assert [job.key.id for job in first.jobs + rest.jobs] == ["e", "d", "c", "b", "a"]
        canceled = store.run(listing.list_jobs("default", status=Status.CANCELED))
        assert [job.key.id for job in canceled.jobs] == ["b"]
        assert [job.key.id for job in store.run(listing.list_jobs("default", model="m2")).jobs] == ["c"]
        several = store.run(listing.list_jobs("default", status={Status.CANCELED, Status.QUEUED}))
        assert len(several.jobs) == 5
        assert store.run(listing.list_jobs("default", status=())).jobs == ()

    def test_events_tell_the_whole_story(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        store.run(records.heartbeat(held, Phase.INFERRING, Progress(1, 2)))
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        events = store.run(records.events(key))
        assert [e.type for e in events] == ["job.created", "job.started", "job.progress", "job.succeeded"]
        assert store.run(records.events(key, after=events[2].id)) == events[3:]

    def test_an_event_holds_the_very_error_of_the_job(self, store: JobStore) -> None:
        key = submit(store, max_attempts=2)
        [held] = claim(store)
        store.run(records.complete(held, Outcome(State.DELAYED, error=OOM)))
        sweep_until(store, lambda: read(store, key).state is State.QUEUED)
        [held] = claim(store)
        wrong = InvalidInput("bad", errors=[Issue("/input/a", "12345678901234567890")]).report()
        store.run(records.complete(held, Outcome(State.FAILED, error=wrong)))
        told = {event.type: event.data for event in store.run(records.events(key))}
        assert told["job.retrying"]["error"] == OOM.to_json()
        assert told["job.failed"]["error"] == wrong.to_json()
        assert told["job.retrying"]["error"]["errors"] == []

    def test_only_one_keeper_leads(self, store: JobStore) -> None:
        assert store.run(upkeep.lead("one", 30))
        assert not store.run(upkeep.lead("two", 30))
        assert not store.run(upkeep.step_down("two"))
        assert store.run(upkeep.step_down("one"))
        assert store.run(upkeep.lead("two", 30))


def test_no_library_error_leaves_the_store() -> None:
    store = JobStore.open("redis://127.0.0.1:1/0", timeout_s=0.2, tries=1)
    with pytest.raises(RedisUnavailable):
        store.run(records.ping())
    store.close()


def test_the_scripts_survive_a_restart_of_the_server(store: JobStore, valkey: ValkeyProcess) -> None:
    key = submit(store)
    valkey.restart()
    assert read(store, key).state is State.QUEUED
    assert claim(store)[0].key == key


def test_a_tenant_may_have_limits_of_its_own(store: JobStore) -> None:
    limits = replace(LIMITS, max_tenant_jobs=2, tenant_jobs={"small": 1, "large": 3})
    for tenant, most in (("default", 2), ("small", 1), ("large", 3)):
        for n in range(most):
            submit(store, f"{n}", limits, tenant=tenant)
        with pytest.raises(TooManyJobs) as refused:
            submit(store, "9", limits, tenant=tenant)
        assert refused.value.retry_after_s is not None


def test_a_tenant_may_run_another_number_of_jobs_than_the_rest(store: JobStore) -> None:
    for tenant in ("default", "small", "large"):
        for n in range(4):
            submit(store, f"{n}", tenant=tenant)
    claims = claim_up_to(store, 12, max_tenant_running=2, running_caps={"small": 1, "large": 3})
    held = Counter(claim.key.tenant for claim in claims)
    assert held == {"default": 2, "small": 1, "large": 3}
