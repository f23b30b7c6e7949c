"""Two stores, one truth: whatever step is the last before a crash, and whatever Redis forgets, a job ends once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from penstock.errors import (
    IdempotencyMismatch,
    InvalidInput,
    JobGone,
    JobStoreError,
    ObjectStoreUnavailable,
    PenstockError,
    UnknownJob,
)
from penstock.formats import READS
from penstock.jobs import Artifact, Claim, Delivery, Job, JobKey, Phase, Progress, State, Status, Submission, Webhook
from penstock.storage.journal import journal, manifests
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.journal.manifests import delete_objects_of
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries, listing, records, upkeep
from penstock.storage.redis.records import Command, JobStore, Outcome, QueueLimits
from penstock.workers.keeper.recovery import TOGETHER, recover, recover_if_lost, restore
from penstock.workers.keeper.webhooks import body_of
from tests.support.claims import claim_up_to
from tests.support.crashes import Crashed, Fragile
from tests.support.valkey import ValkeyProcess

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)
T = TypeVar("T")

KEY = JobKey("default", "a")
HOOK = Webhook("http://h/")
DONE = Outcome(State.SUCCEEDED, "hi", {"n": 1}, metrics={"fetch_ms": 1.5})
FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())


class Away(LocalStore):
    """An object store that does not answer puts."""

    def put_bytes(self, *_: Any, **__: Any) -> ObjectInfo:
        raise ObjectStoreUnavailable


class Interrupted(Journal):
    """Performs flows, and calls `between` before the step that follows the first `steps`."""

    def __init__(self, desk: Journal, steps: int, between: Callable[[], Any]) -> None:
        super().__init__(desk.store, desk.objects)
        self.left = steps
        self._between = between

    def run(self, flow: Flow[T]) -> T:
        """Perform a flow."""
        return super().run(self._watched(flow))

    def _watched(self, flow: Flow[T]) -> Flow[T]:
        step = next(flow)
        while True:
            if self.left == 0:
                self._between()
            self.left -= 1
            try:
                result = yield step
            except PenstockError as error:
                step = flow.throw(error)
            else:
                try:
                    step = flow.send(result)
                except StopIteration as end:
                    return cast("T", end.value)


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    store = JobStore.open(valkey.url)
    yield store
    store.close()


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects")


@pytest.fixture
def desk(store: JobStore, objects: LocalStore) -> Journal:
    return Journal(store, objects)


def submission(**changes: Any) -> Submission:
    fields: dict[str, Any] = {"model": "m", "queue": "q", "input": {"x": 1}, "fingerprint": "f", "webhook": HOOK}
    return Submission(KEY, **(fields | changes))


@pytest.mark.parametrize("hook", [None, HOOK, Webhook("http://h/", ("job.queued",))])
def test_a_submit_returns_the_job_that_redis_has(desk: Journal, hook: Webhook | None) -> None:
    done = desk.run(journal.submit(submission(webhook=hook, priority=1, metadata={"k": "v"}), LIMITS))
    again = desk.run(journal.submit(submission(webhook=hook, priority=1, metadata={"k": "v"}), LIMITS))
    assert (done.created, again.created) == (True, False)
    assert done.job == read(desk) == again.job
    assert (done.job.queue_position, done.job.state) == (1, State.QUEUED)


def test_a_submit_beside_many_models_and_tenants_leaves_out_the_place_among_ones_own_jobs(desk: Journal) -> None:
    for n in range(20):
        key = JobKey(f"t{n}", "a")
        desk.run(journal.submit(Submission(key, model="m", queue="q", input={}, fingerprint="f"), LIMITS))
    made = submit(desk)
    assert (made.queue_position, read(desk).queue_position) == (None, 1)


def test_an_outcomes_lists_are_lists(desk: Journal, objects: LocalStore) -> None:
    submit(desk, webhook=None)
    [held] = claim(desk)
    data = {"none": [], "nothing": {}, "large": 12345678901234567890, "fine": 0.1234567890123456}
    desk.run(journal.complete(held, Outcome(State.SUCCEEDED, data=data)))
    stored = json.loads(objects.get_bytes(f"{KEY.prefix}outcome.json", limit_bytes=10_000))
    assert stored["deliveries"] == []
    assert json.loads(stored["record"]["data"]) == desk.store.run(records.read(KEY)).data == data


def submit(desk: Journal, limits: QueueLimits = LIMITS, **changes: Any) -> Job:
    return desk.run(journal.submit(submission(**changes), limits)).job


def claim(desk: Journal, *, lease_s: float = 30) -> list[Claim]:
    return claim_up_to(desk.store, 5, lease_s=lease_s)


def claim_as_older(desk: Journal) -> list[Claim]:
    """Claim as a worker of an older release, which does not look at the ends that are due."""
    assert isinstance(desk.store, JobStore)
    desk.store.client.delete("penstock:expiring")
    return claim(desk)


def read(desk: Journal) -> Job:
    return desk.store.run(records.read(KEY))


def flush(desk: Journal) -> None:
    assert isinstance(desk.store, JobStore)
    desk.store.client.flushall()


def crash_points(desk: Journal, flow: Callable[[], Flow[Any]], prepare: Callable[[], Any]) -> Iterator[int]:
    """Yield after a crash before each of a flow's steps, on stores made new by `prepare` each time."""
    for steps in itertools.count():
        flush(desk)
        desk.objects.delete_prefix("")
        prepare()
        fragile = Fragile(desk.store, desk.objects, steps)  # type: ignore[arg-type]
        try:
            fragile.run(flow())
        except Crashed:
            yield steps
        else:
            assert steps > 2, "the flow has no steps to crash at"
            return


@pytest.mark.parametrize("end", [journal.cancel, journal.expire, None], ids=["cancel", "expire", "ttl"])
def test_a_job_whose_end_is_proposed_is_not_claimed_before_it_is_stored(
    desk: Journal, end: Callable[[JobKey], Flow[Job]] | None
) -> None:
    submit(desk, **({} if end else {"queue_ttl_s": 0.0}))
    shown = []

    def look() -> None:
        assert claim(desk) == []
        shown.append(read(desk))

    interrupted = Interrupted(desk, 1, look)
    job = interrupted.run(end(KEY)) if end else (interrupted.run(journal.sweep()), read(desk))[1]
    assert [(each.state, each.attempt) for each in shown] == [(State.QUEUED, 0)]
    assert (job.status.terminal, job.attempt, job.started_s) == (True, 0, None)
    assert "job.started" not in {event.type for event in desk.store.run(records.events(KEY))}


@pytest.mark.parametrize("end", [records.cancel, records.expire])
def test_a_proposed_end_that_nobody_stores_is_proposed_again(desk: Journal, end: Callable[[JobKey], Any]) -> None:
    submit(desk)
    assert desk.store.run(end(KEY)).proposal is not None  # and its process dies
    assert claim(desk) == []
    desk.run(journal.sweep())
    assert read(desk).status.value == {records.cancel: "canceled", records.expire: "expired"}[end]


def test_a_claim_of_an_older_release_after_the_proposed_end_leaves_no_trace_in_the_record(desk: Journal) -> None:
    submit(desk)
    proposal = desk.store.run(records.cancel(KEY)).proposal
    assert proposal is not None
    [held] = claim_as_older(desk)  # before the outcome is stored
    stored = manifests.put_outcome(desk.objects, KEY, proposal)
    desk.store.run(records.commit(KEY, stored.text))
    before = read(desk)
    assert desk.run(journal.complete(held, DONE)).answer == "fenced"
    assert (before.state, before.attempt, before.started_s) == (State.CANCELED, 0, None)
    assert before.completed_s is not None
    assert before.created_s <= before.completed_s
    flush(desk)
    recover(desk.store, desk.objects)
    assert replace(read(desk), revision=0) == replace(before, revision=0)


def lose_lease(desk: Journal, times: int = 1) -> None:
    for _ in range(times):
        assert claim(desk)
        assert isinstance(desk.store, JobStore)
        desk.store.client.zadd("penstock:leases", {str(KEY): 0})
        desk.run(journal.sweep())


def due_events(desk: Journal) -> list[tuple[str, str]]:
    return [(task.delivery.id, task.delivery.event) for task in desk.store.run(deliveries.due(10, 60)).tasks]


class TestSubmit:
    def test_makes_a_job_with_a_manifest(self, desk: Journal) -> None:
        done = desk.run(journal.submit(submission(), LIMITS))
        assert (done.created, done.job.state) == (True, State.QUEUED)
        assert [info.key for info in desk.objects.list("")] == ["live/default/a", f"{KEY.prefix}request.json"]
        again = desk.run(journal.submit(submission(), LIMITS))
        assert (again.created, again.job) == (False, done.job)

    def test_that_crashed_is_completed_by_its_repetition(self, desk: Journal) -> None:
        for _ in crash_points(desk, lambda: journal.submit(submission(), LIMITS), lambda: None):
            job = submit(desk)
            assert job.state is State.QUEUED
            assert [c.key for c in claim(desk)] == [KEY]

    def test_that_crashed_is_settled_by_the_keeper(self, desk: Journal) -> None:
        states: list[State | None] = []
        for _ in crash_points(desk, lambda: journal.submit(submission(), LIMITS), lambda: None):
            for key in desk.store.run(upkeep.reservations(0)):
                desk.run(journal.settle_reservation(key))
            try:
                states.append(read(desk).state)
            except UnknownJob:
                states.append(None)
            assert desk.store.run(upkeep.reservations(0)) == ()
        assert states == [None, None, None, State.QUEUED]

    def test_a_reservation_is_not_claimed_and_counts(self, desk: Journal) -> None:
        desk.store.run(records.submit(submission(), LIMITS))
        assert claim(desk) == []
        assert read(desk).status is Status.QUEUED
        assert read(desk).queue_position is None
        other = replace(submission(), key=JobKey("default", "b"))
        with pytest.raises(Exception, match="1 jobs are waiting"):
            desk.run(journal.submit(other, replace(LIMITS, max_queued=1)))
        assert [j.key for j in desk.store.run(listing.list_jobs("default", status=Status.QUEUED)).jobs] == []
        desk.store.run(records.unreserve(KEY))
        with pytest.raises(UnknownJob):
            read(desk)

    def test_a_reservation_can_be_canceled(self, desk: Journal) -> None:
        desk.store.run(records.submit(submission(), LIMITS))
        assert desk.run(journal.cancel(KEY)).state is State.CANCELED
        assert submit(desk).state is State.CANCELED

    def test_without_an_object_store_accepts_nothing(self, desk: Journal, tmp_path: Path) -> None:
        with pytest.raises(ObjectStoreUnavailable):
            submit(Journal(desk.store, Away(tmp_path / "away")))
        assert claim(desk) == []
        assert submit(desk).state is State.QUEUED

    def test_another_request_under_the_id_of_a_job_that_redis_lost_is_refused(self, desk: Journal) -> None:
        submit(desk)
        flush(desk)
        with pytest.raises(IdempotencyMismatch):
            submit(desk, fingerprint="other")
        assert read(desk).submission.fingerprint == "f"

    def test_of_a_job_that_redis_lost_is_a_replay(self, desk: Journal) -> None:
        first = submit(desk)
        flush(desk)
        done = desk.run(journal.submit(submission(), LIMITS))
        assert (done.created, done.job.created_s) == (False, first.created_s)

    def test_of_a_job_that_redis_lost_after_its_end_gives_the_end(self, desk: Journal) -> None:
        submit(desk)
        desk.run(journal.complete(claim(desk)[0], DONE))
        flush(desk)
        assert submit(desk).text == "hi"
        assert claim(desk) == []


class TestEnds:
    def test_a_result_is_committed_once(self, desk: Journal) -> None:
        submit(desk)
        [held] = claim(desk)
        artifact = Artifact("x.tif", "image/tiff", 3, "ab", f"{held.prefix}x.tif")
        outcome = replace(DONE, artifacts=(artifact,))
        assert desk.run(journal.complete(held, outcome)) == journal.Ended("ok", visible=True)
        assert desk.run(journal.complete(held, outcome)) == journal.Ended("already", visible=True)
        job = read(desk)
        assert (job.state, job.text, job.data, job.artifacts) == (State.SUCCEEDED, "hi", {"n": 1}, (artifact,))
        assert due_events(desk) == [("msg_a_job.succeeded", "job.succeeded")]

    def test_a_crash_in_complete_ends_the_job_once(self, desk: Journal) -> None:
        """Whoever comes next, with whatever outcome: what was stored first counts."""
        held: list[Claim] = []

        def prepare() -> None:
            submit(desk)
            held[:] = claim(desk)

        ends: list[str | None] = []
        for _ in crash_points(desk, lambda: journal.complete(held[0], DONE), prepare):
            assert isinstance(desk.store, JobStore)
            desk.store.client.zadd("penstock:leases", {str(KEY): 0})
            desk.run(journal.sweep())
            again = claim(desk)
            if not again:  # only the mark of the live job was left
                assert read(desk).text == "hi"
                continue
            ended = desk.run(journal.complete(again[0], replace(DONE, text="second")))
            ends.append(read(desk).text)
            assert ended.visible is (read(desk).text == "second")
            assert desk.run(journal.shows_artifacts(held[0])) is not ended.visible
            assert due_events(desk) == [("msg_a_job.succeeded", "job.succeeded")]
        assert ends == ["second", "second", "hi"]

    @pytest.mark.parametrize("times", [1, 3])
    def test_a_crash_in_cancel_is_finished_by_the_keeper(self, desk: Journal, times: int) -> None:
        states: list[State] = []
        for _ in crash_points(desk, lambda: journal.cancel(KEY), lambda: submit(desk)):
            for _ in range(times):
                desk.run(journal.sweep())
            states.append(read(desk).state)
        assert states == [State.QUEUED, State.CANCELED, State.CANCELED, State.CANCELED]

    @pytest.mark.parametrize("delete", [False, True])
    def test_a_running_jobs_cancel_outlives_redis(self, desk: Journal, delete: bool) -> None:
        def prepare() -> None:
            submit(desk)
            claim(desk)

        told = []
        for _ in crash_points(desk, lambda: journal.cancel(KEY, delete=delete), prepare):
            flush(desk)
            assert recover(desk.store, desk.objects) == 1
            told.append(read(desk).state if not delete else None)
        flush(desk)  # after the answer
        assert recover(desk.store, desk.objects) == 1
        assert claim(desk) == []
        if delete:
            with pytest.raises(JobGone):
                read(desk)
            assert desk.store.run(upkeep.retired()) == (KEY,)
        else:
            assert read(desk).state is State.CANCELED
            # Before the wish was stored nobody was told that it is granted.
            assert told == [State.QUEUED, State.QUEUED, State.CANCELED]

    def test_what_was_to_be_deleted_is_so_although_it_is_canceled_again(self, desk: Journal) -> None:
        submit(desk)
        claim(desk)
        desk.run(journal.cancel(KEY, delete=True))
        flush(desk)
        with pytest.raises(JobGone):  # made anew by whoever asks, and over at once
            desk.run(journal.cancel(KEY))

    def test_a_cancel_while_redis_is_emptied_is_not_lost(self, desk: Journal) -> None:
        submit(desk)
        claim(desk)

        class Slow(LocalStore):
            """Stores a cancel after Redis was emptied and the job was made anew."""

            def put_bytes(self, key: str, data: bytes, **options: Any) -> ObjectInfo:
                if key.endswith("/cancel.json"):
                    flush(desk)
                    recover(desk.store, desk.objects)
                return super().put_bytes(key, data, **options)

        assert isinstance(desk.objects, LocalStore)
        assert Journal(desk.store, Slow(desk.objects.root)).run(journal.cancel(KEY)).state is State.CANCELED

    def test_a_cancel_without_manifests_is_nothing_but_redis(self, desk: Journal) -> None:
        submit(desk, replace(LIMITS, durable=False))
        [held] = claim(desk)
        job = Journal(desk.store, Away(Path("nowhere"))).run(journal.cancel(KEY, delete=True))
        assert job.status is Status.CANCELING
        assert desk.run(journal.release(held)).answer == "ok"

    def test_a_cancel_that_was_proposed_reaches_a_worker_of_an_older_release(self, desk: Journal) -> None:
        submit(desk)
        assert desk.store.run(records.cancel(KEY)).proposal
        [held] = claim_as_older(desk)
        assert desk.store.run(records.heartbeat(held, Phase.INFERRING, Progress())) == "cancel"

    def test_of_a_cancel_and_an_expiry_one_wins(self, desk: Journal) -> None:
        submit(desk, queue_ttl_s=1e-6)
        expiry = desk.store.run(records.sweep(proposals=1))
        assert expiry.expired == 1
        assert desk.run(journal.cancel(KEY)).state is State.CANCELED
        [(key, proposal)] = expiry.proposals
        assert desk.store.run(records.commit(key, proposal)).state is State.CANCELED

    def test_the_third_lost_lease_is_a_dead_letter(self, desk: Journal) -> None:
        submit(desk)
        lose_lease(desk, times=3)
        job = read(desk)
        assert (job.state, job.crashes) == (State.FAILED, 3)
        assert job.error is not None
        assert job.error.code == "worker_lost"

    def test_a_timeout_is_told_to_the_worker_and_ended_by_the_keeper(self, desk: Journal) -> None:
        submit(desk, execution_timeout_s=1e-6)
        [held] = claim(desk)
        assert desk.store.run(records.heartbeat(held, Phase.INFERRING, Progress())) == "lost"
        assert desk.run(journal.sweep()).timed_out == 1
        assert read(desk).state is State.FAILED

    def test_a_sweep_that_may_not_propose_leaves_ends_alone(self, desk: Journal) -> None:
        submit(desk, execution_timeout_s=1e-6)
        claim(desk)
        assert desk.store.run(records.sweep()) == records.Swept()
        assert read(desk).state is State.RUNNING

    def test_a_drained_worker_ends_a_canceled_job(self, desk: Journal) -> None:
        submit(desk)
        [held] = claim(desk)
        desk.run(journal.cancel(KEY))
        assert desk.run(journal.release(held)).answer == "ok"
        assert read(desk).state is State.CANCELED

    def test_a_retry_stores_no_outcome(self, desk: Journal) -> None:
        submit(desk)
        [held] = claim(desk)
        later = Outcome(State.DELAYED, error=InvalidInput().report(), retry_delay_s=60)
        assert desk.run(journal.complete(held, later)) == journal.Ended("ok", visible=False)
        assert desk.run(journal.adopt(KEY)) is None

    def test_what_redis_lost_during_the_last_step_is_written_all_the_same(self, desk: Journal) -> None:
        submit(desk)
        [held] = claim(desk)
        reply = desk.store.run(records.complete(held, DONE))
        flush(desk)
        assert reply.proposal is not None
        assert desk.store.run(records.commit(KEY, reply.proposal)).text == "hi"


class TestLossOfRedis:
    def test_ended_jobs_that_are_restored_together_do_not_stop_each_other(self, desk: Journal) -> None:
        keys = [JobKey("default", f"together{number:02}") for number in range(2 * TOGETHER + 3)]
        for key in keys:
            desk.run(journal.submit(replace(submission(), key=key, webhook=None), LIMITS))
            desk.run(journal.cancel(key))
        flush(desk)
        gone, newer = keys[1], keys[3]
        assert isinstance(desk.store, JobStore)
        desk.store.client.set(f"penstock:tenant:default:gone:{gone.id}", "1")
        outcome = json.loads(desk.objects.get_bytes(f"{newer.prefix}outcome.json", limit_bytes=2**20))
        desk.objects.delete(f"{newer.prefix}outcome.json")
        text = json.dumps(outcome | {"version": READS + 1}).encode()
        desk.objects.put_bytes(f"{newer.prefix}outcome.json", text, content_type="application/json")
        assert restore(desk.store, desk.objects) == len(keys) - 2
        for key in keys:
            if key in (gone, newer):
                with pytest.raises((UnknownJob, JobGone)):
                    desk.store.run(records.read(key))
            else:
                assert desk.store.run(records.read(key)).state is State.CANCELED

    def test_commands_of_one_message_have_their_own_replies_and_errors(self, desk: Journal) -> None:
        assert isinstance(desk.store, JobStore)
        submit(desk)
        commands = [records.read(KEY), records.read(JobKey("default", "none")), records.read(KEY)]
        one, error, other = desk.store.run_each(commands)
        assert isinstance(one, Job)
        assert isinstance(error, UnknownJob)
        assert one == other
        [mistake] = desk.store.run_each([replace(commands[0], args={"op": "nonsense"})])
        assert isinstance(mistake, JobStoreError)

    def test_an_end_that_redis_loses_while_its_job_is_restored_stays_the_end(self, desk: Journal) -> None:
        for steps in itertools.count():
            flush(desk)
            desk.objects.delete_prefix("")
            submit(desk)
            flush(desk)
            interrupted = Interrupted(desk, steps, lambda: (desk.run(journal.cancel(KEY)), flush(desk)))
            with suppress(UnknownJob):  # the record was lost while it was being made
                interrupted.run(journal.revive(KEY))
            if interrupted.left >= 0:
                assert steps > 4, "the flow has no steps to be interrupted at"
                return
            assert desk.store.run(listing.list_jobs("default", status=Status.QUEUED)).jobs == ()
            assert desk.run(journal.read(KEY)).state is State.CANCELED

    def test_a_reservation_is_not_shown_as_a_job(self, desk: Journal) -> None:
        desk.store.run(records.submit(submission(), LIMITS))
        assert desk.store.run(listing.list_jobs("default")).jobs == ()
        with pytest.raises(UnknownJob):
            desk.run(journal.read(KEY))

    def test_live_jobs_run_again_and_ended_ones_stay_as_they_ended(self, desk: Journal) -> None:
        submit(desk)
        ended = replace(submission(), key=JobKey("default", "b"), priority=1)
        desk.run(journal.submit(ended, LIMITS))
        [held] = [c for c in claim(desk) if c.key.id == "b"]
        desk.run(journal.complete(held, DONE))
        before = {name: desk.store.run(records.read(JobKey("default", name))) for name in "ab"}
        flush(desk)
        assert recover(desk.store, desk.objects) == 2
        assert recover(desk.store, desk.objects) == 2
        [again] = claim(desk)
        assert again.key == KEY
        assert again.fence > held.fence
        after = desk.store.run(records.read(ended.key))
        assert replace(after, revision=0) == replace(before["b"], revision=0)
        assert read(desk).created_s == before["a"].created_s
        page = desk.store.run(listing.list_jobs("default"))
        assert [job.key.id for job in page.jobs] == ["b", "a"]

    def test_a_webhook_goes_out_again_under_the_same_id(self, desk: Journal) -> None:
        submit(desk)
        desk.run(journal.complete(claim(desk)[0], FAILED))
        [before] = desk.store.run(deliveries.due(10, 60)).tasks
        flush(desk)
        recover(desk.store, desk.objects)
        [after] = desk.store.run(deliveries.due(10, 60)).tasks
        one, again = before.delivery, after.delivery
        assert (again.id, again.created_s, again.url) == (one.id, one.created_s, one.url)
        assert after.job is not None
        assert after.job.delivery is Delivery.PENDING

    def test_no_id_is_ever_told_with_two_bodies(self, desk: Journal) -> None:
        """A receiver is told of a job before and after a loss of Redis, at once and late."""
        told: dict[str, set[str]] = {}

        def tell() -> None:
            for task in desk.store.run(deliveries.due(10, 60)).tasks:
                assert task.job is not None
                told.setdefault(task.delivery.id, set()).add(body_of(task.delivery, task.job, "http://api"))

        submit(desk, webhook=Webhook("http://h/", ("job.queued", "job.started", "job.succeeded")))
        tell()
        claim(desk)
        tell()
        flush(desk)
        recover(desk.store, desk.objects)
        tell()
        [held] = claim(desk)
        desk.run(journal.complete(held, DONE))
        tell()
        flush(desk)
        recover(desk.store, desk.objects)
        tell()
        assert sorted(event.split("_")[2].split(".")[1] for event in told) == [
            "queued", "started", "started", "succeeded",
        ]  # fmt: skip
        assert {event: len(bodies) for event, bodies in told.items()} == dict.fromkeys(told, 1)

    def test_an_event_that_was_not_told_yet_is_not_forgotten(self, desk: Journal) -> None:
        submit(desk, webhook=Webhook("http://h/", ("job.started", "job.succeeded")))
        desk.run(journal.complete(claim(desk)[0], DONE))
        flush(desk)
        recover(desk.store, desk.objects)
        assert {event for _, event in due_events(desk)} == {"job.started", "job.succeeded"}

    def test_is_seen_by_the_marker_it_took_along(self, desk: Journal) -> None:
        submit(desk)
        recover_if_lost(desk.store, desk.objects)
        flush(desk)
        recover_if_lost(desk.store, desk.objects)
        assert read(desk).state is State.QUEUED
        desk.objects.delete_prefix("")
        assert desk.store.run(upkeep.alive())

    def test_a_second_loss_during_a_recovery_asks_for_another(self, desk: Journal) -> None:
        desk.store.run(upkeep.recovering("one", begin=True))
        flush(desk)
        assert not desk.store.run(upkeep.recovering("one", begin=False))
        assert not desk.store.run(upkeep.alive())

    def test_a_read_does_not_wait_for_the_recovery(self, desk: Journal) -> None:
        submit(desk)
        flush(desk)
        assert desk.run(journal.read(KEY)).state is State.QUEUED
        flush(desk)
        assert desk.run(journal.cancel(KEY)).state is State.CANCELED
        with pytest.raises(UnknownJob):
            desk.run(journal.read(JobKey("default", "never")))

    def test_a_worker_that_runs_on_changes_nothing(self, desk: Journal) -> None:
        submit(desk)
        [held] = claim(desk)
        flush(desk)
        assert desk.run(journal.complete(held, DONE)) == journal.Ended("fenced", visible=False)
        recover(desk.store, desk.objects)
        assert desk.run(journal.complete(held, DONE)) == journal.Ended("fenced", visible=False)
        assert read(desk).state is State.QUEUED

    def test_a_job_that_was_half_deleted_is_not_run_again(self, desk: Journal) -> None:
        submit(desk)
        desk.run(journal.complete(claim(desk)[0], DONE))
        desk.objects.delete(f"{KEY.prefix}request.json")
        flush(desk)
        recover(desk.store, desk.objects)
        assert claim(desk) == []
        delete_objects_of(desk.objects, [KEY], before=lambda _: None)
        assert list(desk.objects.list("")) == []


def test_every_command_of_a_flow_is_a_value(desk: Journal) -> None:
    """So that a flow can be performed by anything: the steps of a submit are two commands around two puts."""
    steps = list(itertools.islice(_steps(desk, journal.submit(submission(), LIMITS)), 10))
    assert [isinstance(step, Command) for step in steps] == [True, False, False, True]


def _steps(desk: Journal, flow: Flow[Any]) -> Iterator[Any]:
    result: Any = None
    while True:
        try:
            step = flow.send(result)
        except StopIteration:
            return
        yield step
        result = desk.perform(step)
