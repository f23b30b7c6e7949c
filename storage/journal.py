"""What happens to a job where two stores must agree: the record in Redis and the manifests in the object store.

With `durability = "manifest"` a job is accepted when its `request.json` is stored, and over when its `outcome.json` is;
Redis follows. Every flow may stop between any two of its steps and be done again by anybody:

    submit    reserve in Redis -> put the request -> confirm in Redis
    an end    a script proposes it -> put the outcome, or read the one that was first -> commit that one in Redis

A flow is a generator that yields its steps, commands for Redis and calls on the object store, and is sent their
results: `Journal` performs them in threads (worker, keeper), `AsyncJournal` on the API's event loop. Jobs of
`durability = "redis"` take the same flows and never have a proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar, cast

from penstock.errors import (
    IdempotencyMismatch,
    JobGone,
    ObjectStoreUnavailable,
    PenstockError,
    RedisUnavailable,
    StateConflict,
    UnknownJob,
)
from penstock.jobs import TERMINAL, Claim, Job, JobKey, State, Submission
from penstock.storage import manifests, queues, records
from penstock.storage.base import ObjectStore
from penstock.storage.fields import us
from penstock.storage.manifests import Ending, Manifest
from penstock.storage.records import AsyncJobStore, Command, Outcome, QueueLimits, Reply, Runs, Submitted, Swept

T = TypeVar("T")
Step: TypeAlias = Command[Any] | Callable[[ObjectStore], Any]
Flow: TypeAlias = Generator[Step, Any, T]

#: After this the keeper looks whether a reservation's manifest is there.
RESERVATION_S = 30.0
#: Ends that the keeper puts into the object store before it looks at Redis again.
PROPOSALS = 100
#: How often a submit whose reservation was forgotten meanwhile begins again.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an attempt's word: `ok`, `already` or `fenced`, and whether its artifacts are the result."""

    answer: str
    visible: bool


def submit(submission: Submission, limits: QueueLimits) -> Flow[Submitted]:
    """Accept a job, or return the one that the same request made before; errors as `records.submit`.

    A submit that meets the reservation of an interrupted one finishes it.
    """
    for _ in range(_TRIES):
        done = yield from _redis(records.submit(submission, limits))
        if done.job.state is not State.RESERVED:
            return done
        try:
            return (yield from _accept(submission, limits, done))
        except UnknownJob:
            continue  # the object store took so long that the keeper forgot the reservation
    raise RedisUnavailable("the job store forgets reservations", retry_after_s=2)


def retry(key: JobKey, new: JobKey, limits: QueueLimits) -> Flow[Submitted]:
    """Submit what a failed, expired or canceled job asked for as a new job; the old one stays as it is.

    `StateConflict` for any other job. Safe to repeat with the same `new` key.
    """
    job = yield from read(key)
    if job.state not in (State.FAILED, State.EXPIRED, State.CANCELED):
        raise StateConflict(f"the job is {job.status.value}: only failed, expired and canceled ones are retried")
    mark = sha256(f"retry {key} {job.submission.fingerprint}".encode()).hexdigest()
    wanted = replace(job.submission, key=new, retry_of=key.id, fingerprint=mark, idempotency_key=None)
    wanted = replace(wanted, batch_id=None, batch_line=None, custom_id=None)  # the batch has its own outcome
    wanted = replace(wanted, drop=None)  # and the object's marker names the job that failed
    done = yield from submit(wanted, limits)
    yield from _redis(queues.bury(job))
    return done


def complete(claim: Claim, outcome: Outcome) -> Flow[Ended]:
    """End an attempt."""
    reply = yield from _redis(records.complete(claim, outcome))
    return (yield from _ended(claim, reply, succeeded=outcome.state is State.SUCCEEDED))


def release(claim: Claim) -> Flow[Ended]:
    """Give a job back to the queue, its attempt to be begun again; one whose end was asked for is canceled."""
    reply = yield from _redis(records.release(claim))
    return (yield from _ended(claim, reply, succeeded=False))


def cancel(key: JobKey, *, delete: bool = False) -> Flow[Job]:
    """Ask for a job's end and return its record; a terminal job comes back unchanged.

    With `delete` it is gone as soon as it ends, and the keeper purges it. Of a running job that is stored as well, so
    that an emptied Redis does not begin again what nobody wants.
    """
    command = records.cancel(key, delete=delete)
    reply = yield from _asked(key, command)
    if reply.lasting:
        yield from _objects(lambda objects: manifests.put_cancel(objects, key, delete=delete))
        reply = yield from _asked(key, command)  # Redis may have been emptied before that was stored
    return (yield from _stopped(key, reply))


def expire(key: JobKey) -> Flow[Job]:
    """End a job because the time of its batch is over: as `cancel`, but a waiting one expires."""
    return (yield from _stopped(key, (yield from _asked(key, records.expire(key)))))


def read(key: JobKey) -> Flow[Job]:
    """Return a job's record, made anew from its manifest where Redis lost it; `UnknownJob` or `JobGone` without one."""
    try:
        return (yield from _redis(records.read(key)))
    except UnknownJob:
        if not (yield from revive(key)):
            raise
    return (yield from _redis(records.read(key)))


def sweep() -> Flow[Swept]:
    """Do what time alone does to jobs, and bring about the ends that it proposes, as far as `PROPOSALS` goes."""
    swept = yield from _redis(records.sweep(proposals=PROPOSALS))
    for key, proposal in swept.proposals:
        try:
            _, job = yield from _end(key, proposal)
        except JobGone:
            continue
        yield from _forget_checkpoints(job)
    return swept


def adopt(key: JobKey) -> Flow[Job | None]:
    """Make a job's record what its stored outcome says; None if it has none."""
    ending = yield from _objects(lambda objects: manifests.read_ending(objects, key))
    return None if ending is None else (yield from _redis(records.commit(key, ending.text)))


def revive(key: JobKey) -> Flow[bool]:
    """Make a job anew in Redis from its manifest and its outcome; False without a manifest. Nothing if it is there."""
    manifest = yield from _objects(lambda objects: manifests.read_manifest(objects, key))
    if manifest is None:
        return False
    try:
        if (yield from adopt(key)) is None:
            done = yield from _redis(records.submit(manifest.submission, _again(manifest)))
            if done.job.state is State.RESERVED:
                yield from _redis(records.confirm(key, manifest.created_us))
            delete = yield from _objects(lambda objects: manifests.read_cancel(objects, key))
            if delete is not None:
                yield from _stopped(key, (yield from _redis(records.cancel(key, delete=delete))))
    except JobGone:
        return False
    return True


def settle_reservation(key: JobKey) -> Flow[bool]:
    """Confirm a reservation that was left alone if its manifest is there, forget it otherwise."""
    with suppress(IdempotencyMismatch):  # the manifest is that of another request
        if (yield from revive(key)):
            return True
    yield from _redis(records.unreserve(key))
    return False


def names(claim: Claim) -> Flow[bool]:
    """Return whether a stored outcome makes this attempt's artifacts the job's result."""
    ending = yield from _objects(lambda objects: manifests.read_ending(objects, claim.key))
    return ending is not None and ending.shows(claim)


class Journal:
    """Performs flows for threads."""

    def __init__(self, store: Runs, objects: ObjectStore) -> None:
        self.store = store
        self.objects = objects

    def run(self, flow: Flow[T]) -> T:
        """Perform a flow and return its result; its errors come out as they are."""
        result: Any = None
        error: PenstockError | None = None
        while True:
            try:
                step = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as end:
                return cast("T", end.value)
            try:
                result = self.store.run(step) if isinstance(step, Command) else step(self.objects)
                error = None
            except PenstockError as raised:
                error = raised


class AsyncJournal:
    """Performs flows for the API: commands on its loop, the object store beside it."""

    def __init__(self, store: AsyncJobStore, objects: ObjectStore) -> None:
        self.store = store
        self.objects = objects

    async def run(self, flow: Flow[T]) -> T:
        """Perform a flow and return its result; its errors come out as they are."""
        result: Any = None
        error: PenstockError | None = None
        while True:
            try:
                step = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as end:
                return cast("T", end.value)
            try:
                result = await self._perform(step)
                error = None
            except PenstockError as raised:
                error = raised

    async def _perform(self, step: Step) -> Any:
        return await (self.store.run(step) if isinstance(step, Command) else asyncio.to_thread(step, self.objects))


def _asked(key: JobKey, command: Command[Reply[Job]]) -> Flow[Reply[Job]]:
    try:
        return (yield from _redis(command))
    except UnknownJob:
        if not (yield from revive(key)):
            raise
    return (yield from _redis(command))


def _stopped(key: JobKey, reply: Reply[Job]) -> Flow[Job]:
    job = reply.value if reply.proposal is None else (yield from _end(key, reply.proposal))[1]
    yield from _forget_checkpoints(job)
    return job


def _accept(submission: Submission, limits: QueueLimits, done: Submitted) -> Flow[Submitted]:
    manifest = Manifest(submission, us(done.job.created_s), limits.retention_s, limits.max_crashes)
    stored = yield from _objects(lambda objects: manifests.put_manifest(objects, manifest))
    if stored is None:
        return replace(done, job=(yield from _redis(records.confirm(submission.key, manifest.created_us))))
    # Our own put, whose answer was lost, or a job that Redis has lost: maybe of another request, maybe over.
    if stored.submission.fingerprint != submission.fingerprint:
        yield from _redis(records.unreserve(submission.key))
        yield from revive(submission.key)
        raise IdempotencyMismatch(f"job {submission.key.id} was made before, by a request with another body")
    job = yield from adopt(submission.key)
    if job is None:
        job = yield from _redis(records.confirm(submission.key, stored.created_us))
    return Submitted(job, created=done.created and stored == manifest)


def _ended(claim: Claim, reply: Reply[str], *, succeeded: bool) -> Flow[Ended]:
    if reply.proposal is not None:
        ending, _ = yield from _end(claim.key, reply.proposal)
        return Ended("ok", ending.shows(claim))
    if reply.value == "ok":
        return Ended("ok", succeeded)
    # An earlier try of ours may have stored the outcome, whoever committed it.
    shown = yield from names(claim)
    return Ended(reply.value, shown or (succeeded and reply.value == "already"))


def _end(key: JobKey, proposal: str) -> Flow[tuple[Ending, Job]]:
    ending = yield from _objects(lambda objects: manifests.put_ending(objects, key, proposal))
    return ending, (yield from _redis(records.commit(key, ending.text)))


def _forget_checkpoints(job: Job) -> Flow[None]:
    """Delete what the attempts of an ended job saved; where the object store does not answer, the keeper does later."""
    if job.state in TERMINAL and job.fence:
        with suppress(ObjectStoreUnavailable):
            yield from _objects(lambda objects: objects.delete_prefix(job.key.checkpoints))


def _again(manifest: Manifest) -> QueueLimits:
    """Return limits that refuse nothing: the job was accepted once."""
    return QueueLimits(records.NO_LIMIT, records.NO_LIMIT, manifest.retention_s, manifest.max_crashes, durable=True)


def _redis(command: Command[T]) -> Flow[T]:
    result: T = yield command
    return result


def _objects(call: Callable[[ObjectStore], T]) -> Flow[T]:
    result: T = yield call
    return result
