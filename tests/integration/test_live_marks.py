"""Marks of live jobs: a recovery has them queued before it looks at the jobs that are only kept."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.errors import InvalidInput, JobGone, UnknownJob
from penstock.jobs import JobKey, State, Submission, Webhook
from penstock.storage.journal import journal, manifests
from penstock.storage.journal.answered import Answered
from penstock.storage.journal.endpoints import EndpointKey
from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries, records, upkeep
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.keeper.recovery import recover, recover_if_lost
from penstock.workers.keeper.retention import GRACE_S, delete_leftovers
from tests.support.claims import claim_up_to
from tests.support.crashes import Crashed, Fragile
from tests.support.webhook_receivers import a_key, an_endpoint

LIMITS = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=True)
KEY = JobKey("t", "a")
DONE = Outcome(State.SUCCEEDED, "hi")
FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())


class Watched(LocalStore):
    """A store that counts its calls, and calls `before_listing` before it lists the objects of all tenants."""

    def __init__(self, root: Path, before_listing: Callable[[], object] = lambda: None) -> None:
        super().__init__(root)
        self.calls = Counter[str]()
        self.before_listing = before_listing

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List."""
        if prefix == "tenants/":
            self.before_listing()
        self.calls["list"] += 1
        return super().list(prefix)

    def get_bytes(self, key: str, *, limit_bytes: int) -> bytes:
        """Read."""
        self.calls["get"] += 1
        return super().get_bytes(key, limit_bytes=limit_bytes)


@pytest.fixture
def desk(store: JobStore, tmp_path: Path) -> Journal:
    return Journal(store, LocalStore(tmp_path / "objects"))


def submit(desk: Journal, key: JobKey = KEY, **given: Any) -> None:
    desk.run(journal.submit(Submission(key, "m", "q", {}, "f", **given), LIMITS))


def complete(desk: Journal, outcome: Outcome = DONE) -> None:
    [held] = claim_up_to(desk.store, 1)
    desk.run(journal.complete(held, outcome))


def poison(desk: Journal) -> None:
    assert isinstance(desk.store, JobStore)
    for _ in range(3):
        assert claim_up_to(desk.store, 1)
        desk.store.client.zadd("penstock:leases", {str(KEY): 0})
        desk.run(journal.sweep())


def expire(desk: Journal) -> None:
    assert isinstance(desk.store, JobStore)
    desk.store.client.zadd("penstock:expiring", {str(KEY): 0})
    desk.run(journal.sweep())


def marked(desk: Journal) -> list[JobKey]:
    return [mark.key for mark in manifests.marks(desk.objects)]


def flush(desk: Journal) -> None:
    assert isinstance(desk.store, JobStore)
    desk.store.client.flushall()


def state(desk: Journal, key: JobKey = KEY) -> State | None:
    try:
        return desk.store.run(records.read(key)).state
    except (UnknownJob, JobGone):
        return None


def recovered_from_marks(desk: Journal, key: JobKey = KEY) -> State | None:
    """Recover, and return the state that a job had before the listing of all that is kept."""
    assert isinstance(desk.objects, LocalStore)
    found: list[State | None] = []
    recover(desk.store, Watched(desk.objects.root, lambda: found.append(state(desk, key))))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "end",
    [
        complete,
        lambda desk: complete(desk, FAILED),
        lambda desk: desk.run(journal.cancel(KEY)),
        lambda desk: desk.run(journal.expire(KEY)),
        expire,
        poison,
    ],
    ids=["succeeded", "failed", "canceled", "expired by its batch", "expired", "poison"],
)
def test_a_job_is_marked_while_it_is_live(desk: Journal, end: Callable[[Journal], object]) -> None:
    submit(desk)
    assert marked(desk) == [KEY]
    end(desk)
    assert state(desk) in (State.SUCCEEDED, State.FAILED, State.CANCELED, State.EXPIRED)
    assert marked(desk) == []


def test_a_job_without_manifests_has_no_mark(desk: Journal) -> None:
    limits = QueueLimits(max_queued=100, max_tenant_jobs=50, retention_s=3600, max_crashes=3, durable=False)
    desk.run(journal.submit(Submission(KEY, "m", "q", {}, "f"), limits))
    assert marked(desk) == []


def test_marked_jobs_are_queued_before_all_that_is_kept_is_listed(desk: Journal) -> None:
    submit(desk, JobKey("t", "ended"))
    complete(desk)
    submit(desk)
    submit(desk, JobKey("u", "other"))
    flush(desk)
    assert recovered_from_marks(desk) is State.QUEUED
    assert {claim.key.id for claim in claim_up_to(desk.store, 5)} == {"a", "other"}
    assert state(desk, JobKey("t", "ended")) is State.SUCCEEDED


def test_the_requests_for_marked_jobs_do_not_depend_on_those_that_are_kept(desk: Journal) -> None:
    assert isinstance(desk.objects, LocalStore)
    submit(desk, webhook=Webhook("http://h/"))
    seen = []
    for kept in (0, 3, 30):
        while sum(1 for info in desk.objects.list("tenants/t/jobs/") if info.key.endswith("outcome.json")) < kept:
            key = JobKey("t", f"kept{time.time_ns()}")
            submit(desk, key)
            desk.run(journal.cancel(key))
        flush(desk)
        objects = Watched(desk.objects.root)
        objects.before_listing = lambda watched=objects: seen.append(Counter(watched.calls))
        recover(desk.store, objects)
    assert len(seen) == 3
    assert (
        seen[0] == seen[1] == seen[2] == {"list": 3, "get": 3}
    )  # marks, answered, endpoints; request, outcome, cancel


def test_a_job_of_a_release_without_marks_is_found_by_the_listing(desk: Journal) -> None:
    submit(desk)
    manifests.unmark(desk.objects, KEY)
    flush(desk)
    assert recovered_from_marks(desk) is None
    assert state(desk) is State.QUEUED


def test_a_mark_without_a_job_is_no_job(desk: Journal) -> None:
    manifests.mark(desk.objects, KEY)
    assert recovered_from_marks(desk) is None
    assert state(desk) is None


@pytest.mark.parametrize("wish", [None, False, True])
def test_a_marked_job_is_ended_as_it_was_or_as_it_is_wished(desk: Journal, wish: bool | None) -> None:
    submit(desk)
    [held] = claim_up_to(desk.store, 1)
    if wish is None:
        desk.run(journal.complete(held, DONE))
        manifests.mark(desk.objects, KEY)  # its deletion did not come through
    else:
        desk.run(journal.cancel(KEY, delete=wish))
    flush(desk)
    gone = None  # purged at once, since it was to be deleted
    assert recovered_from_marks(desk) is {None: State.SUCCEEDED, False: State.CANCELED, True: gone}[wish]
    assert claim_up_to(desk.store, 1) == []
    assert marked(desk) == []
    assert desk.store.run(upkeep.retired()) == ((KEY,) if wish else ())


def crashes(desk: Journal, flow: Callable[[], Flow[Any]], prepare: Callable[[], object]) -> Iterator[int]:
    """Yield after a crash before each step of a flow, on emptied stores."""
    for steps in range(20):
        flush(desk)
        desk.objects.delete_prefix("")
        prepare()
        try:
            Fragile(desk.store, desk.objects, steps).run(flow())  # type: ignore[arg-type]
        except Crashed:
            yield steps
        else:
            assert steps > 2
            return


def test_an_accepted_job_is_marked_whatever_step_its_submission_died_at(desk: Journal) -> None:
    found = []
    flow = lambda: journal.submit(Submission(KEY, "m", "q", {}, "f"), LIMITS)  # noqa: E731
    for _ in crashes(desk, flow, lambda: None):
        flush(desk)
        found.append((recovered_from_marks(desk), marked(desk)))
        submit(desk)  # the client repeats its request
        assert (state(desk), marked(desk)) == (State.QUEUED, [KEY])
    # Reserved; marked; stored, and so accepted.
    assert found == [(None, []), (None, []), (None, [KEY]), (State.QUEUED, [KEY])]


def test_a_live_job_is_marked_whatever_step_its_end_died_at(desk: Journal) -> None:
    """Whoever dies between the outcome and the mark leaves a mark of an ended job, never a live job without one."""
    found = []

    def prepare() -> None:
        submit(desk)
        held[:] = claim_up_to(desk.store, 1)

    held: list[Any] = []
    for _ in crashes(desk, lambda: journal.complete(held[0], DONE), prepare):
        assert marked(desk) == [KEY]
        flush(desk)
        found.append((recovered_from_marks(desk), marked(desk)))
    ended = (State.SUCCEEDED, [])
    assert found == [(State.QUEUED, [KEY]), (State.QUEUED, [KEY]), ended, ended]


def test_marks_of_no_live_job_are_deleted_after_a_day(desk: Journal) -> None:
    submit(desk)
    left, never = JobKey("t", "left"), JobKey("u", "never")
    submit(desk, left)
    desk.run(journal.cancel(left))
    for key in (left, never):
        manifests.mark(desk.objects, key)
    delete_leftovers(desk.store, desk.objects, Settings())
    assert marked(desk) == [KEY, left, never]
    assert delete_leftovers(desk.store, desk.objects, Settings(), at=time.time() + GRACE_S + 60).marks == 2
    assert marked(desk) == [KEY]


def test_receivers_are_known_before_marked_jobs_are_restored(desk: Journal) -> None:
    """Endpoints made after the copy of an older Redis hear of the jobs; what was answered is not told again."""
    recover_if_lost(desk.store, desk.objects)
    hook = Webhook("http://h/", ("job.queued",))
    submit(desk, webhook=hook)
    answered = Answered(desk.objects)
    answered.add("t", "msg_a_job.queued")
    answered.write()
    endpoint = EndpointKey("t", a_key(1).id)
    an_endpoint(desk, "http://e/", endpoint, events=("job.queued", "job.succeeded"))
    submit(desk, JobKey("t", "b"), webhook=hook)
    flush(desk)
    due: list[set[str]] = []

    def look() -> None:
        due.append({task.delivery.id for task in desk.store.run(deliveries.due(10, 60)).tasks})

    assert isinstance(desk.objects, LocalStore)
    recover(desk.store, Watched(desk.objects.root, look))
    assert due == [{"msg_b_job.queued", f"msg_b_job.queued_{endpoint.id}"}]


def test_the_mark_names_no_data_of_the_job(desk: Journal) -> None:
    submit(desk, metadata={"secret": "x"})
    assert desk.objects.get_bytes("live/t/a", limit_bytes=10) == b""
    assert json.loads(desk.objects.get_bytes(f"{KEY.prefix}request.json", limit_bytes=10_000))["version"]
