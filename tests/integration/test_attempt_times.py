"""The course of a job's attempts in its record: each phase of each attempt with its start and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import ErrorReport
from penstock.jobs import AttemptTimes, Phase, Progress, State, Status
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore, Outcome, PhaseStarts
from tests.support.bare_store import LIMITS, claim, read, submission, submit, sweep_until

PHASES: PhaseStarts = ((Phase.LOADING, 0), (Phase.FETCHING, 1), (Phase.INFERRING, 5))
ERROR = ErrorReport("out_of_memory", "t", "d", True)
DONE = Outcome(State.SUCCEEDED, phases=PHASES)


def outline(attempts: tuple[AttemptTimes, ...]) -> list[tuple[int, str | None, list[Phase]]]:
    return [(each.number, each.outcome, [phase.phase for phase in each.phases]) for each in attempts]


def test_each_phase_begins_where_the_one_before_ended_and_the_last_ends_with_the_attempt(store: JobStore) -> None:
    key = submit(store)
    [held] = claim(store)
    store.run(records.complete(held, DONE))

    job = read(store, key)
    [attempt] = job.attempts
    assert outline(job.attempts) == [(1, "succeeded", [Phase.LOADING, Phase.FETCHING, Phase.INFERRING])]
    assert (attempt.fence, attempt.worker, attempt.ended_s) == (held.fence, "w", job.completed_s)
    begun = [phase.started_s for phase in attempt.phases]
    assert begun[0] == job.started_s
    assert [round((at - begun[0]) * 1e6) for at in begun] == [0, 1, 5]
    assert [phase.ended_s for phase in attempt.phases] == [*begun[1:], job.completed_s]


def test_a_running_attempt_has_the_phases_of_its_heartbeat_and_the_latest_lasts(store: JobStore) -> None:
    key = submit(store)
    [held] = claim(store)
    store.run(records.heartbeat(held, Phase.FETCHING, Progress(), phases=PHASES[:2]))

    [attempt] = read(store, key).attempts
    assert (attempt.ended_s, attempt.outcome) == (None, None)
    assert [(phase.phase, phase.ended_s is None) for phase in attempt.phases] == [
        (Phase.LOADING, False), (Phase.FETCHING, True),
    ]  # fmt: skip


def test_every_attempt_stays_with_its_outcome(store: JobStore) -> None:
    key = submit(store)
    [first] = claim(store)
    store.run(records.release(first, PHASES[:1]))
    [second] = claim(store)
    store.run(records.complete(second, Outcome(State.DELAYED, error=ERROR, phases=PHASES[:2])))
    sweep_until(store, lambda: read(store, key).state is State.QUEUED)
    [third] = claim(store, lease_s=0.01)
    store.run(records.heartbeat(third, Phase.LOADING, Progress(), phases=PHASES[:1]))
    sweep_until(store, lambda: read(store, key).state is State.QUEUED)
    [fourth] = claim(store)
    store.run(records.complete(fourth, DONE))

    attempts = read(store, key).attempts
    assert [(number, outcome, len(phases)) for number, outcome, phases in outline(attempts)] == [
        (1, "released", 1), (1, "retrying", 2), (2, "lost", 1), (3, "succeeded", 3),
    ]  # fmt: skip
    assert [each.fence for each in attempts] == [each.fence for each in (first, second, third, fourth)]
    for attempt in attempts:
        assert attempt.ended_s is not None
        assert attempt.phases[-1].ended_s == attempt.ended_s >= attempt.started_s


def test_an_attempt_is_told_once_where_the_job_ends_while_it_waits(store: JobStore) -> None:
    key = submit(store)
    [held] = claim(store)
    store.run(records.release(held, PHASES[:1]))
    store.run(records.cancel(key))

    job = read(store, key)
    assert job.status is Status.CANCELED
    assert outline(job.attempts) == [(1, "released", [Phase.LOADING])]


def test_a_job_that_lost_all_its_workers_ends_with_a_lost_attempt(store: JobStore) -> None:
    key = submit(store, limits=replace(LIMITS, max_crashes=1))
    claim(store, lease_s=0.01)
    sweep_until(store, lambda: read(store, key).state is State.FAILED)
    assert outline(read(store, key).attempts) == [(1, "lost", [])]


def test_a_record_keeps_the_latest_twenty_attempts_that_ended_before(store: JobStore) -> None:
    key = submit(store)
    fences = []
    for _ in range(22):
        [held] = claim(store)
        fences.append(held.fence)
        store.run(records.release(held, PHASES))
    assert [each.fence for each in read(store, key).attempts] == fences[2:]


def test_the_outcome_in_the_object_store_has_the_attempts(store: JobStore) -> None:
    created = store.run(records.submit(submission(), replace(LIMITS, durable=True))).job
    store.run(records.confirm(created.key, round(created.created_s * 1e6)))
    [held] = claim(store)
    store.run(records.release(held, PHASES[:1]))
    [held] = claim(store)
    reply = store.run(records.complete(held, DONE))
    assert reply.proposal is not None
    store.client.flushall()

    job = store.run(records.commit(created.key, reply.proposal))
    assert [(number, outcome, len(phases)) for number, outcome, phases in outline(job.attempts)] == [
        (1, "released", 1), (1, "succeeded", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("left", ["", "1 loading:0"], ids=["nothing", "phases of an attempt before"])
def test_a_record_of_an_earlier_release_is_read(store: JobStore, left: str) -> None:
    key = submit(store)
    [held] = claim(store)
    store.run(records.complete(held, DONE))
    store.client.hdel("penstock:tenant:default:job:a", "attempts")
    store.client.hset("penstock:tenant:default:job:a", "phases", left)
    assert outline(read(store, key).attempts) == [(1, "succeeded", [])]


def test_a_job_without_an_attempt_has_none(store: JobStore) -> None:
    assert read(store, submit(store)).attempts == ()
