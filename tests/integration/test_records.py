"""The job store on a real Valkey: what each script does, and that doing it twice does nothing more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    UnknownDelivery,
    UnknownJob,
)
from penstock.jobs import Artifact, Claim, Delivery, Job, JobKey, Phase, Progress, State, Status, Submission, Webhook
from penstock.storage import deliveries, queues, records
from penstock.storage.records import JobStore, Outcome, QueueLimits
from tests.valkey import ValkeyProcess

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3)
OOM = OutOfMemory().report()


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    store = JobStore.open(valkey.url)
    yield store
    store.close()


def submission(job_id: str = "a", **changes: Any) -> Submission:
    tenant = changes.pop("tenant", "default")
    return Submission(JobKey(tenant, job_id), **{"model": "m", "queue": "q", "input": {}, "fingerprint": "f"} | changes)


def submit(store: JobStore, job_id: str = "a", limits: QueueLimits = LIMITS, **changes: Any) -> JobKey:
    key = submission(job_id, **changes).key
    store.run(records.submit(submission(job_id, **changes), limits))
    return key


def claim(store: JobStore, n: int = 1, *, nonce: str | None = None, lease_s: float = 30, cap: int = 10) -> list[Claim]:
    command = records.claim(
        "q", slot="s", nonce=nonce or str(time.monotonic_ns()), n=n, lease_s=lease_s, max_tenant_running=cap,
        worker="w", models=["m", "m2"],
    )  # fmt: skip
    return list(store.run(command))


def read(store: JobStore, key: JobKey) -> Job:
    return store.run(records.read(key))


def sweep_until(store: JobStore, done: Callable[[], bool]) -> None:
    """Sweep until something that time brings about has happened."""
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline, "the sweep never did it"
        store.run(records.sweep())


def left_over(store: JobStore) -> list[str]:
    """The indices that hold anything: all must be empty when no job is live."""
    names = ("leases", "deadlines", "delayed", "expiring", "queue:q:waiting", "queue:q:lanes", "tenant:default:live",
             "tenant:default:running")  # fmt: skip
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

    def test_with_the_same_nonce_returns_the_same_jobs(self, store: JobStore) -> None:
        for name in "abc":
            submit(store, name)
        assert claim(store, 2, nonce="x") == claim(store, 2, nonce="x")
        assert [c.key.id for c in claim(store, 2, nonce="y")] == ["c"]

    def test_takes_one_model_and_goes_round_the_tenants(self, store: JobStore) -> None:
        for name in ("a1", "a2", "a3"):
            submit(store, name, tenant="one")
        submit(store, "b1", tenant="two")
        submit(store, "other", tenant="one", model="m2")
        assert [c.key.id for c in claim(store, 3)] == ["a1", "b1", "a2"]
        assert {c.key.id for c in claim(store, 5)} | {c.key.id for c in claim(store, 5)} == {"a3", "other"}

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

    def test_takes_a_job_with_a_crash_behind_it_alone(self, store: JobStore) -> None:
        submit(store, "crashed")
        claim(store, lease_s=0.001)
        sweep_until(store, lambda: read(store, JobKey("default", "crashed")).crashes == 1)
        submit(store, "fresh")
        assert [c.key.id for c in claim(store, 5)] == ["crashed"]
        assert [c.key.id for c in claim(store, 5)] == ["fresh"]

    def test_has_one_busy_worker_run_dry_for_a_last_chance_while_the_others_pass_it_by(self, store: JobStore) -> None:
        submit(store, "crashed")
        for crashes in (1, 2):
            assert claim(store, lease_s=0.001)[0].last_chance is False
            sweep_until(store, lambda crashes=crashes: read(store, JobKey("default", "crashed")).crashes == crashes)
        for name in ("a", "b", "c"):
            submit(store, name)

        def busy(worker: str) -> list[str]:
            command = records.claim(
                "q", slot=worker, nonce=str(time.monotonic_ns()), n=1, lease_s=30, max_tenant_running=10,
                worker=worker, models=["m"], dry=False,
            )  # fmt: skip
            return [claimed.key.id for claimed in store.run(command)]

        assert busy("drying") == []
        assert busy("other") == ["a"]
        assert busy("drying") == []
        [last] = claim(store, 5)
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
    def test_a_release_gives_the_attempt_back(self, store: JobStore) -> None:
        key = submit(store)
        held = claim(store)[0]
        assert store.run(records.release(held)).value == "ok"
        assert store.run(records.release(held)).value == "already"
        assert (read(store, key).state, read(store, key).attempt) == (State.QUEUED, 0)
        assert claim(store)[0].attempt == 1

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

    def test_retention_names_what_may_go(self, store: JobStore) -> None:
        key = submit(store, limits=replace(LIMITS, retention_s=0.001))
        assert store.run(records.retired()) == ()
        store.run(records.cancel(key))
        sweep_until(store, lambda: store.run(records.retired()) == (key,))


class TestViews:
    def test_a_list_is_newest_first_and_filtered(self, store: JobStore) -> None:
        for name in "abcde":
            submit(store, name, model="m2" if name == "c" else "m")
        submit(store, "foreign", tenant="other")
        store.run(records.cancel(JobKey("default", "b")))
        first = store.run(records.list_jobs("default", limit=3))
        rest = store.run(records.list_jobs("default", limit=3, cursor=first.next_cursor))
        assert [job.key.id for job in first.jobs + rest.jobs] == ["e", "d", "c", "b", "a"]
        canceled = store.run(records.list_jobs("default", status=Status.CANCELED))
        assert [job.key.id for job in canceled.jobs] == ["b"]
        assert [job.key.id for job in store.run(records.list_jobs("default", model="m2")).jobs] == ["c"]

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

    def test_a_queues_figures(self, store: JobStore) -> None:
        for name in "abc":
            submit(store, name)
        claim(store)
        store.run(queues.seen("q", "w", 4))
        stats = store.run(queues.queue_stats("q"))
        assert (stats.queued, stats.running, stats.workers, stats.slots, stats.known) == (2, 1, 1, 4, True)
        assert store.run(queues.backlog()) == {"q": 2}
        assert not store.run(queues.queue_stats("nowhere")).known

    @pytest.mark.parametrize("slots", [1, 3])
    def test_the_estimate_is_right_within_a_factor_of_two_on_a_steady_queue(self, store: JobStore, slots: int) -> None:
        """Slots come free one after the other, all jobs take ten seconds, and the clock is the test's own."""
        took_s, now_s = 10.0, 0.0
        store.run(queues.seen("q", "w", slots))
        for number in range(12 * slots):
            submit(store, str(number))
        running = claim(store, slots)
        told: list[tuple[str, float, float]] = []
        ended: dict[str, float] = {}
        while running:
            now_s += took_s / slots
            self.end_after(store, running[0], took_s)
            ended[running.pop(0).key.id] = now_s
            running += claim(store)
            for position, key in enumerate(store.run(queues.waiting("q", "default", 100)), start=1):
                job = read(store, key)
                assert job.queue_position == position
                assert job.eta_s is not None
                told.append((key.id, now_s, job.eta_s))
        assert len(told) > 50
        for name, at, eta_s in told:
            assert 0.5 < eta_s / (ended[name] - at) < 2

    @staticmethod
    def end_after(store: JobStore, held: Claim, took_s: float) -> None:
        """End a job as if it had run for so long."""
        began_us = int((store.client.time()[0] - took_s) * 1e6)
        store.client.hset(f"penstock:tenant:default:job:{held.key.id}", "started_us", began_us)
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))

    def test_only_one_keeper_leads(self, store: JobStore) -> None:
        assert store.run(records.lead("one", 30))
        assert not store.run(records.lead("two", 30))
        assert not store.run(records.step_down("two"))
        assert store.run(records.step_down("one"))
        assert store.run(records.lead("two", 30))


class TestDeliveries:
    def test_the_end_of_a_job_puts_one_row_into_the_outbox(self, store: JobStore) -> None:
        key = submit(store, webhook=Webhook("http://h/"))
        store.run(records.complete(claim(store)[0], Outcome(State.SUCCEEDED)))
        [(row, job)] = store.run(deliveries.due(10, 60))
        assert (row.event, row.url, row.tries, job.key) == ("job.succeeded", "http://h/", 1, key)
        assert read(store, key).delivery is Delivery.PENDING
        assert store.run(deliveries.due(10, 60)) == ()

    def test_a_try_is_settled_once_and_never_changes_the_job(self, store: JobStore) -> None:
        key = submit(store, webhook=Webhook("http://h/"))
        store.run(records.cancel(key))
        [(row, _)] = store.run(deliveries.due(1, 60))
        note = deliveries.Attempt(1, 1.0, 500, "HTTP 500")
        assert store.run(deliveries.settle(row, Delivery.PENDING, note, "body", delay_s=0)) == "ok"
        [(again, _)] = store.run(deliveries.due(1, 60))
        assert store.run(deliveries.settle(row, Delivery.FAILED, note, "body")) == "stale"
        assert again.body == "body"
        assert store.run(deliveries.settle(again, Delivery.DELIVERED, note, "other")) == "ok"
        [record] = store.run(deliveries.deliveries(key))
        assert (record.tries, record.state, record.body, len(record.log)) == (2, Delivery.DELIVERED, "body", 2)
        assert read(store, key).delivery is Delivery.DELIVERED
        assert read(store, key).state is State.CANCELED

    def test_a_settled_delivery_can_be_asked_for_again(self, store: JobStore) -> None:
        key = submit(store, webhook=Webhook("http://h/"))
        store.run(records.cancel(key))
        [(row, _)] = store.run(deliveries.due(1, 60))
        store.run(deliveries.settle(row, Delivery.FAILED, deliveries.Attempt(1, 1.0, 500, "HTTP 500"), "body"))
        assert store.run(deliveries.redeliver(key, row.id)).state is Delivery.PENDING
        store.run(deliveries.redeliver(key, row.id))
        [(again, job)] = store.run(deliveries.due(10, 60))
        assert (again.id, again.body, again.tries, job.delivery) == (row.id, "body", 2, Delivery.PENDING)
        assert store.run(deliveries.due(10, 60)) == ()
        with pytest.raises(UnknownDelivery):
            store.run(deliveries.redeliver(key, "msg_other"))
        with pytest.raises(UnknownJob):
            store.run(deliveries.redeliver(JobKey("default", "never"), row.id))

    def test_a_try_is_kept_as_it_was_told(self, store: JobStore) -> None:
        key = submit(store, webhook=Webhook("http://h/", ("job.queued",)))
        tries = [deliveries.Attempt(n, 1763684595.123456 + n, None, "fetch_failed") for n in (1, 2)]
        for one, then in zip(tries, (Delivery.PENDING, Delivery.DELIVERED), strict=True):
            [(row, _)] = store.run(deliveries.due(1, 60))
            store.run(deliveries.settle(row, then, one, "body", delay_s=0))
        [record] = store.run(deliveries.deliveries(key))
        assert record.log == tuple(tries)
        told = [event for event in store.run(records.events(key)) if event.type.startswith("delivery.")]
        assert [deliveries.Attempt(**event.data) for event in told] == tries

    def test_nobody_is_told_who_did_not_ask(self, store: JobStore) -> None:
        store.run(records.cancel(submit(store, webhook=Webhook("http://h/", events=("job.succeeded",)))))
        assert store.run(deliveries.due(10, 60)) == ()


def test_no_library_error_leaves_the_store() -> None:
    store = JobStore.open("redis://127.0.0.1:1/0", timeout_s=0.2)
    with pytest.raises(RedisUnavailable):
        store.run(records.ping())
    store.close()


def test_the_scripts_survive_a_restart_of_the_server(store: JobStore, valkey: ValkeyProcess) -> None:
    key = submit(store)
    valkey.restart()
    assert read(store, key).state is State.QUEUED
    assert claim(store)[0].key == key
