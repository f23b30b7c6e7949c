"""Any operations in any order, repeated, lost half way or stale, with the loss of Redis in between.

A hand-written model says where each job must stand after each of them; the two real stores are compared with it.

    pytest tests/integration/test_state_machine.py --hypothesis-profile=nightly
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import IdempotencyMismatch, JobGone, StateConflict, UnknownJob
from penstock.jobs import Claim, JobKey, Phase, Progress, Submission, Webhook
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.manifests import delete_objects_of, marks
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import deliveries, records, upkeep
from penstock.storage.redis.records import Command, JobStore, QueueLimits
from penstock.workers.keeper.recovery import recover
from tests.support.claims import claiming
from tests.support.crashes import Crashed, Fragile
from tests.support.job_rules import ENDS, WAITING, Expected, Hold, outcome
from tests.support.valkey import ValkeyProcess

NAMES = ("a", "b", "c")
MAX_ATTEMPTS = 3
MAX_CRASHES = 2
#: Examples of the everyday run; the nightly profile has more.
EXAMPLES = 25

names = st.sampled_from(NAMES)
#: A process dies before its step of this number; flows have four at most: the last one is the confirmation or the mark.
steps = st.sampled_from([99, 99, 99, 99, 99, 0, 1, 2, 2, 3, 3])
#: Most jobs should come to something before they are wiped away.
rarely = st.sampled_from([False] * 4 + [True])


def a_claim() -> Command[Claim | None]:
    """Return a claim of a slot, with a nonce of its own."""
    return claiming(lease_s=3600)


@dataclass
class Stores:
    """The real things."""

    store: JobStore
    objects: LocalStore
    desk: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.desk = Journal(self.store, self.objects)


class Jobs(RuleBasedStateMachine):
    """The operations, and what each must do."""

    def __init__(self, stores: Stores) -> None:
        super().__init__()
        self.store, self.objects, self.desk = stores.store, stores.objects, stores.desk
        self.store.client.flushall()
        self.objects.delete_prefix("")
        self.jobs: dict[str, Expected] = {}
        self.gone: set[str] = set()
        self.holds: list[Hold] = []

    def dying(self, before: int) -> Journal:
        return Fragile(self.store, self.objects, before)

    def hold(self, data: st.DataObject) -> tuple[Hold, Expected | None]:
        hold = data.draw(st.sampled_from(self.holds[-4:]))
        return hold, self.jobs.get(hold.claim.key.id)

    def due(self, index: str, name: str) -> None:
        self.store.client.zadd(f"penstock:{index}", {f"default/{name}": 0})

    def those(self, *states: str) -> list[str]:
        return [name for name, job in self.jobs.items() if job.state in states]

    def running(self, hold: Hold, job: Expected | None) -> bool:
        return job is not None and job.state == "running" and job.fence == hold.claim.fence

    def refusal(self, hold: Hold, job: Expected | None) -> str:
        if job is None or job.fence != hold.claim.fence:
            return "fenced"
        return "already" if job.ended_by == hold.claim.fence else "fenced"

    # -- what clients do

    @initialize(durable=st.sampled_from([True, True, False]))
    def begin_with_jobs(self, durable: bool) -> None:
        for name in NAMES:
            self.submit(name, "one", durable, 99)

    @rule(
        name=names,
        body=st.sampled_from(["one"] * 5 + ["other"]),
        durable=st.sampled_from([True, True, False]),
        before=steps,
    )
    def submit_again(self, name: str, body: str, durable: bool, before: int) -> None:
        self.submit(name, body, durable, before)

    def submit(self, name: str, body: str, durable: bool, before: int) -> None:
        job = self.jobs.get(name)
        wanted = Submission(
            JobKey("default", name), "m", "q", {"body": body}, body, webhook=Webhook("http://h/"),
            max_attempts=MAX_ATTEMPTS,
        )  # fmt: skip
        flow = journal.submit(wanted, QueueLimits(100, 100, 3600, MAX_CRASHES, durable))
        if before == 0:
            with pytest.raises(Crashed):
                self.dying(0).run(flow)
            return
        if name in self.gone:
            with pytest.raises(JobGone):
                self.desk.run(flow)
            return
        if job is not None and job.body != body:
            with pytest.raises(IdempotencyMismatch):
                self.desk.run(flow)
            return
        with suppress(Crashed):
            self.dying(before).run(flow)
        if job is None:
            job = self.jobs[name] = Expected(durable, body, state="reserved" if durable else "queued")
        if job.state == "reserved":
            self.accept(job, before)

    def accept(self, job: Expected, before: int) -> None:
        """After the reservation: the mark, the request, the confirmation (with a look for an outcome between)."""
        replayed = job.manifest
        job.manifest = job.manifest or before > 2
        if before == 99 and replayed and job.stored is not None:
            job.finish(job.stored)
        elif before == 99:
            job.state = "queued"

    @rule(name=names, before=steps, now=rarely)
    def cancel(self, name: str, before: int, now: bool) -> None:
        if not now:
            return
        job = self.jobs.get(name)
        if job is None:
            with pytest.raises((UnknownJob, JobGone)):
                self.desk.run(journal.cancel(JobKey("default", name)))
            return
        with suppress(Crashed):
            self.dying(before).run(journal.cancel(JobKey("default", name)))
        if before == 0 or job.over:
            return
        end = job.end("canceled")
        if job.state == "running":
            job.cancel, job.cancel_stored = True, job.cancel_stored or (job.durable and before > 1)
        elif before > 2 or not job.durable:
            job.finish(end)
        else:
            job.cancel = True
            if before == 2:
                job.propose(end)

    @rule(name=names, now=rarely)
    def delete(self, name: str, now: bool) -> None:
        if not now:
            return
        job, key = self.jobs.get(name), JobKey("default", name)
        if job is None or not job.over:
            with suppress(UnknownJob, StateConflict):
                self.store.run(records.delete(key))
            return
        delete_objects_of(self.objects, [key], before=lambda _: None)
        self.store.run(records.delete(key))
        self.store.run(records.delete(key))
        del self.jobs[name]
        self.gone.add(name)

    # -- what workers do

    @precondition(lambda self: self.those("queued"))
    @rule(again=st.booleans())
    def claim(self, again: bool) -> None:
        command = a_claim()
        claim = self.store.run(command)
        wanted = [name for name in self.those("queued") if not self.jobs[name].cancel]  # sweeps end the others
        assert (claim is not None) is bool(wanted)
        if again:
            assert self.store.run(command) == claim
        if claim is None:
            return
        assert claim.key.id in wanted
        self.claimed(claim)
        self.holds.append(Hold(claim))

    def claimed(self, claim: Claim) -> None:
        assert claim.key.id in self.those("queued")
        job = self.jobs[claim.key.id]
        assert claim.fence > job.fence
        job.state, job.fence, job.ended_by, job.checkpoints = "running", claim.fence, 0, 0
        job.attempt += not job.given_back
        job.given_back = False
        assert (claim.attempt, claim.crashes) == (job.attempt, job.crashes)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), checkpoint=st.booleans())
    def heartbeat(self, data: st.DataObject, checkpoint: bool) -> None:
        hold, job = self.hold(data)
        hold.checkpoints += checkpoint
        said = records.heartbeat(hold.claim, Phase.INFERRING, Progress(), checkpoints=hold.checkpoints)
        answer = self.store.run(said)
        if job is None or not self.running(hold, job):
            assert answer == "lost"
        else:
            assert answer == ("cancel" if job.cancel else "go")
            job.checkpoints = hold.checkpoints

    @precondition(lambda self: self.holds)
    @rule(
        data=st.data(),
        how=st.sampled_from(["succeeded", "succeeded", "failed", "canceled", "retry", "retry"]),
        before=steps,
        again=st.booleans(),
    )
    def complete(self, data: st.DataObject, how: str, before: int, again: bool) -> None:
        hold, job = self.hold(data)
        text = uuid.uuid4().hex
        flow = lambda: journal.complete(hold.claim, outcome(how, text))  # noqa: E731
        if job is None or not self.running(hold, job):
            assert self.desk.run(flow()).answer == self.refusal(hold, job)
            return
        ended = None
        with suppress(Crashed):
            ended = self.dying(before).run(flow())
        if before > 0:
            self.ended(job, hold, how, text, before)
        if again and before == 99:
            assert self.desk.run(flow()).answer == self.refusal(hold, job)
        if ended is not None and job.durable and job.over:
            assert ended.visible is self.shows(job, hold)

    def shows(self, job: Expected, hold: Hold) -> bool:
        """Return True where a job ended with what this attempt said, in this try or an earlier one."""
        return job.state == "succeeded" and job.fence == hold.claim.fence

    def ended(self, job: Expected, hold: Hold, how: str, text: str, before: int) -> None:
        if job.cancel:
            how = "canceled"
        elif how == "retry" and job.attempt < MAX_ATTEMPTS:
            job.state, job.ended_by = "delayed", hold.claim.fence
            return
        end = job.end(
            "failed" if how == "retry" else how, text if how == "succeeded" else None, ended_by=hold.claim.fence
        )
        if before > 2 or not job.durable:
            job.finish(end)
        elif before == 2:
            job.propose(end)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        hold, job = self.hold(data)
        answer = self.desk.run(journal.release(hold.claim)).answer
        if job is None or not self.running(hold, job):
            assert answer == self.refusal(hold, job)
        elif job.cancel:
            job.finish(job.end("canceled", ended_by=hold.claim.fence))
        else:
            job.state, job.ended_by = "queued", hold.claim.fence
            job.given_back = True

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        """Adopt the outcome of a job that has a crash behind it, as a worker does first."""
        hold, job = self.hold(data)
        found = self.desk.run(journal.adopt(hold.claim.key)) if job is not None else None
        assert (found is not None) is (job is not None and job.stored is not None)
        if job is not None and job.stored is not None and not job.over:
            job.finish(job.stored)

    # -- what time and keepers do

    def sweep(self, job: Expected | None = None) -> None:
        """Sweep; the end of canceled jobs that wait is proposed again by whatever sweep comes."""
        self.desk.run(journal.sweep())
        for other in self.jobs.values():
            if other is not job and other.cancel and other.state in WAITING:
                other.finish(other.end("canceled"))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def lease_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.those("running")))
        job = self.jobs[name]
        self.due("leases", name)
        self.sweep(job)
        crashes = 1 if job.checkpoints else job.crashes + 1
        job.crashes = crashes
        if job.cancel:
            job.finish(job.end("canceled"))
        elif crashes >= MAX_CRASHES:
            job.finish(job.end("failed"))
        else:
            job.state = "queued"

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def deadline_passes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.those("running")))
        job = self.jobs[name]
        self.due("deadlines", name)
        self.sweep(job)
        job.finish(job.end("failed"))

    @precondition(lambda self: self.those("queued", "delayed"))
    @rule(data=st.data())
    def ttl_passes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.those("queued", "delayed")))
        job = self.jobs[name]
        self.due("expiring", name)
        self.sweep(job)
        job.finish(job.end("canceled" if job.cancel else "expired"))

    @precondition(lambda self: self.those("delayed"))
    @rule(data=st.data())
    def delay_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.those("delayed")))
        job = self.jobs[name]
        self.due("delayed", name)
        self.sweep(job)
        job.state = "queued"
        if job.cancel:
            job.finish(job.end("canceled"))

    @rule()
    def keeper_looks_at_reservations(self) -> None:
        for key in self.store.run(upkeep.reservations(0)):
            self.desk.run(journal.settle_reservation(key))
        for name, job in list(self.jobs.items()):
            if job.state == "reserved" and job.stored is not None and job.manifest:
                job.finish(job.stored)
            elif job.state == "reserved" and job.manifest:
                job.state = "queued"
            elif job.state == "reserved":
                del self.jobs[name]
                self.objects.delete_prefix(JobKey("default", name).prefix)  # what the tidying does after a day

    @precondition(lambda self: self.jobs)
    @rule(now=rarely)
    def redis_is_emptied(self, now: bool) -> None:
        if not now:
            return
        self.store.client.flushall()
        recover(self.store, self.objects)
        self.gone.clear()
        self.holds = self.holds[-3:]
        for name, job in list(self.jobs.items()):
            if not job.manifest:
                del self.jobs[name]
                self.objects.delete_prefix(JobKey("default", name).prefix)
            elif job.stored is not None:
                job.finish(job.stored)
            else:
                again = self.jobs[name] = Expected(durable=True, body=job.body, manifest=True)
                if job.cancel_stored:  # it does not run again
                    again.finish(again.end("canceled"))

    # -- what must always be true

    @invariant()
    def every_job_stands_where_it_must(self) -> None:
        for name, job in self.jobs.items():
            found = self.store.run(records.read(JobKey("default", name)))
            assert found.state.value == job.state, name
            times = [found.created_s, found.started_s, found.completed_s]
            assert (known := [at_s for at_s in times if at_s is not None]) == sorted(known)
            if job.over:
                assert found.text == job.text
                rows = self.store.run(deliveries.deliveries(found.key))
                assert [row.id for row in rows] == [f"msg_{name}_job.{job.state}"]
            else:
                assert (found.attempt, found.crashes, found.fence) == (job.attempt, job.crashes, job.fence)
                assert found.cancel_requested is job.cancel
        for name in set(NAMES) - set(self.jobs):
            with pytest.raises(JobGone if name in self.gone else UnknownJob):
                self.store.run(records.read(JobKey("default", name)))

    @invariant()
    def every_index_holds_what_it_must(self) -> None:
        client = self.store.client

        def those(*states: str) -> set[str]:
            return {f"default/{name}" for name in self.those(*states)}

        # A claim takes a canceled job that nobody ended yet out of its queue, and leaves its end to `sweep`.
        canceled = {f"default/{name}" for name, job in self.jobs.items() if job.cancel}
        queued = those("queued")
        waiting = set(client.zrange("penstock:queue:q:waiting", 0, -1))
        assert queued - canceled <= waiting <= queued
        assert {f"default/{name}" for name in client.zrange("penstock:queue:q:lane:m/default", 0, -1)} == waiting
        assert (queued & canceled) - waiting <= set(client.zrange("penstock:expiring", 0, -1))
        assert set(client.zrange("penstock:leases", 0, -1)) == those("running")
        assert set(client.zrange("penstock:deadlines", 0, -1)) == those("running")
        assert set(client.smembers("penstock:queue:q:running")) == those("running")
        assert set(client.zrange("penstock:delayed", 0, -1)) == those("delayed")
        assert set(client.zrange("penstock:reserved", 0, -1)) == those("reserved")
        assert set(client.zrange("penstock:finished", 0, -1)) == those(*ENDS)
        accepted = {name for name, job in self.jobs.items() if job.manifest and job.stored is None and not job.over}
        assert accepted <= {mark.key.id for mark in marks(self.objects)}
        assert {f"default/{name}" for name in client.smembers("penstock:tenant:default:live")} == those(
            *WAITING, "running"
        )


@pytest.fixture
def stores(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Stores]:
    store = JobStore.open(valkey.url)
    store.client.config_set("appendfsync", "no")  # nobody kills this server: let the disk be
    yield Stores(store, LocalStore(tmp_path / "objects"))
    store.client.config_set("appendfsync", "always")
    store.close()


@pytest.mark.timeout(7200)
def test_any_order_of_operations_leads_where_the_model_says(stores: Stores) -> None:
    wanted: Any = settings()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Jobs(stores),
        settings=settings(
            max_examples=wanted.max_examples if wanted.max_examples > 100 else EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_model_knows_that_the_first_outcome_counts() -> None:
    job = Expected(durable=True, body="one", state="running", fence=5)
    job.propose(job.end("succeeded", "hi", ended_by=5))
    later = replace(job, fence=6)
    later.finish(later.end("canceled"))
    assert (later.state, later.text, later.fence) == ("succeeded", "hi", 5)
