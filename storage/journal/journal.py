"""The transitions of a job that involve both stores: the record in Redis and the manifests in the object store.

With `durability = "manifest"` a job is accepted once its `request.json` is stored, and ended once its `outcome.json`
is stored; Redis follows. A flow may be interrupted between any two steps, and any process may repeat it:

    submit    reserve in Redis -> put the mark of a live job -> put the request -> confirm in Redis
    end       a script proposes the outcome -> put it, or read the stored one -> commit the stored outcome in Redis
              -> delete the mark

A flow is a generator that yields its steps, commands for Redis and calls on the object store, and receives their
results: `Journal` performs them in threads (worker, keeper), `AsyncJournal` for the API's event loop. Jobs of
`durability = "redis"` run the same flows and never have a proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar, cast

import structlog

from penstock.errors import (
    IdempotencyMismatch,
    JobGone,
    ObjectExists,
    ObjectStoreUnavailable,
    PenstockError,
    RecordTooNew,
    RedisUnavailable,
    StateConflict,
    UnknownJob,
    UnknownUpstream,
)
from penstock.jobs import TERMINAL, Claim, Job, JobKey, State, Submission
from penstock.storage.deadline import request_deadline
from penstock.storage.journal import manifests
from penstock.storage.journal.manifests import Manifest, StoredOutcome
from penstock.storage.journal.outputs import read_output
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import chains, queues, records
from penstock.storage.redis.fields import us
from penstock.storage.redis.records import AsyncJobStore, Command, Outcome, QueueLimits, Reply, Runs, Submitted, Swept

T = TypeVar("T")

log = structlog.get_logger(__name__)


Step: TypeAlias = Command[Any] | Callable[[ObjectStore], Any]
Flow: TypeAlias = Generator[Step, Any, T]

#: Seconds after which the keeper settles a reservation.
RESERVATION_S = 30.0
#: Outcomes that the keeper puts into the object store in one sweep.
PROPOSALS = 100
#: Times that a submit begins again after the keeper forgot its reservation.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt: `ok`, `already` or `fenced`; `visible` where its artifacts are the job's result."""

    answer: str
    visible: bool


def submit(submission: Submission, limits: QueueLimits) -> Flow[Submitted]:
    """Create a job, or return the one that the same request created before; errors as `records.submit`.

    A submit also finishes the reservation of an interrupted submit.
    """
    for _ in range(_TRIES):
        try:
            done = yield from _redis(records.submit(submission, limits))
        except UnknownUpstream:  # Redis may have lost it
            if (yield from missing_of(submission.key.tenant, submission.after)):
                raise
            continue
        if done.job.state is not State.RESERVED:
            return done
        try:
            return (yield from _put_request(submission, limits, done))
        except UnknownJob:
            continue  # the object store was so slow that the keeper forgot the reservation
    raise RedisUnavailable("the job store lost the job's reservation or its upstreams: try again", retry_after_s=2)


def retry(key: JobKey, new: JobKey, limits: QueueLimits) -> Flow[Submitted]:
    """Submit the request of a failed, expired or canceled job as a new job; the old job stays unchanged.

    `StateConflict` for any other job. Safe to repeat with the same `new` key.
    """
    job = yield from read(key)
    if job.state not in (State.FAILED, State.EXPIRED, State.CANCELED):
        raise StateConflict(f"the job is {job.status.value}: only failed, expired and canceled ones are retried")
    fingerprint = sha256(f"retry {key} {job.submission.fingerprint}".encode()).hexdigest()
    wanted = replace(job.submission, key=new, retry_of=key.id, fingerprint=fingerprint, idempotency_key=None)
    wanted = replace(wanted, batch_id=None, batch_line=None, custom_id=None)  # the batch counts the old job
    wanted = replace(wanted, drop=None)  # the object's marker names the old job
    done = yield from submit(wanted, limits)
    yield from _redis(queues.remove_dead_letter(job))
    return done


def complete(claim: Claim, outcome: Outcome) -> Flow[Ended]:
    """Commit an attempt's outcome; a durable job's outcome is put into the object store first."""
    reply = yield from _redis(records.complete(claim, outcome))
    return (yield from _finish_attempt(claim, reply, succeeded=outcome.state is State.SUCCEEDED))


def release(claim: Claim, phases: records.PhaseStarts = ()) -> Flow[Ended]:
    """Return a job to its queue, for the same attempt again; cancel a job whose end was requested."""
    reply = yield from _redis(records.release(claim, phases))
    return (yield from _finish_attempt(claim, reply, succeeded=False))


def split(command: Command[Reply[str]], claim: Claim) -> Flow[Ended]:
    """End an attempt by `records.split`; cancel a job whose end was requested."""
    return (yield from _finish_attempt(claim, (yield from _redis(command)), succeeded=False))


def cancel(key: JobKey, *, delete: bool = False) -> Flow[Job]:
    """Request a job's end and return its record; a terminal job comes back unchanged.

    With `delete` the keeper purges the job at its end. The request for a running job is stored as well, so that the job
    does not run again after a loss of Redis.
    """
    command = records.cancel(key, delete=delete)
    reply = yield from _run_or_revive(key, command)
    if reply.must_be_stored:
        yield from _objects(lambda objects: manifests.put_cancel(objects, key, delete=delete))
        # Again: Redis may have been emptied before the request was stored.
        reply = yield from _run_or_revive(key, command)
    return (yield from _finish_stop(key, reply))


def expire(key: JobKey) -> Flow[Job]:
    """End a job because its batch has expired: as `cancel`, but a waiting job expires."""
    return (yield from _finish_stop(key, (yield from _run_or_revive(key, records.expire(key)))))


def read(key: JobKey) -> Flow[Job]:
    """Return a job's record, created again if Redis lost it; `UnknownJob` or `JobGone` without one.

    A reservation is no job yet, and may belong to a job that ended before Redis lost it: it is confirmed or replaced by
    the stored outcome first.
    """
    with suppress(UnknownJob):
        job = yield from _redis(records.read(key))
        if job.state is not State.RESERVED:
            return job
    if not (yield from revive(key)):
        raise UnknownJob
    return (yield from _redis(records.read(key)))


def whole(job: Job) -> Flow[Job]:
    """Return a job with its text and data, which may be in the object store; `JobGone` where they were deleted."""
    stored = job.output
    if stored is None or job.text is not None or job.data is not None:
        return job
    text, data = yield from _objects(lambda objects: read_output(objects, stored))
    return replace(job, text=text, data=data)


def sweep() -> Flow[Swept]:
    """Run `records.sweep`, end the durable jobs that it proposes, at most `PROPOSALS`, and look for lost upstreams."""
    swept = yield from _redis(records.sweep(proposals=PROPOSALS))
    for key, proposal in swept.proposals:
        try:
            stored = yield from _store_and_end(key, proposal)
        except JobGone:
            continue
        except RecordTooNew as error:
            log.warning("record.skipped", detail=error.detail)
            continue
        yield from _forget_checkpoints(key, stored.state, stored.fence)
    for key, lacking in swept.unsure:
        with suppress(RecordTooNew):  # a newer keeper judges it
            yield from _redis(chains.follow(key, (yield from missing_of(key.tenant, lacking))))
    return swept


def missing_of(tenant: str, names: Sequence[str]) -> Flow[list[str]]:
    """Return the jobs that neither store has. Those that only Redis lacks are created again."""
    missing = []
    for name in names:
        try:
            yield from read(JobKey(tenant, name))
        except (UnknownJob, JobGone):
            missing.append(name)
    return missing


def adopt(key: JobKey) -> Flow[Job | None]:
    """Set a job's record to its stored outcome; None without one."""
    stored = yield from _objects(lambda objects: manifests.read_outcome(objects, key))
    return None if stored is None else (yield from _commit(key, stored))


def catch_up(key: JobKey) -> Flow[bool]:
    """Bring the record of a live job up to date with the object store, where Redis may have older data.

    False where the object store does not have the job, because it was purged: `usage_ledger.fold_all` takes it out.
    """
    stored = yield from _objects(lambda objects: manifests.stored_names(objects, key))
    with suppress(JobGone, UnknownJob):  # a keeper has taken it out meanwhile
        if stored.outcome:
            yield from adopt(key)
        elif stored.request and stored.cancel:
            delete = yield from _objects(lambda objects: manifests.read_cancel(objects, key))
            if delete is not None:
                yield from _finish_stop(key, (yield from _redis(records.cancel(key, delete=delete))))
    return stored.request or stored.outcome


def revive(key: JobKey) -> Flow[bool]:
    """Create a job in Redis again from its manifest and outcome; False without a manifest. Keep an existing record."""
    manifest = yield from _objects(lambda objects: manifests.read_manifest(objects, key))
    if manifest is None:
        return False
    try:
        if (yield from adopt(key)) is None:
            yield from _submit_again(key, manifest)
    except JobGone:
        return False
    return True


def revive_live(key: JobKey) -> Flow[bool]:
    """Create a job again that is probably live and that Redis does not have: `revive` with one request fewer."""
    manifest = yield from _objects(lambda objects: manifests.read_manifest(objects, key))
    if manifest is None:
        return False
    try:
        yield from _submit_again(key, manifest)
    except JobGone:
        return False
    return True


def restore_end(key: JobKey) -> Flow[bool]:
    """Create a job in Redis again whose outcome, or request to end it, a listing has: `revive` with fewer requests."""
    stored = yield from _objects(lambda objects: manifests.read_outcome(objects, key))
    if stored is None:
        return (yield from revive(key))
    try:
        yield from _redis(records.commit_end(key, stored.text))
    except JobGone:
        return False
    return True


def _submit_again(key: JobKey, manifest: Manifest) -> Flow[None]:
    """Create a job from its manifest, or from its outcome, and repeat a request to end it."""
    done = yield from _redis(records.submit(manifest.submission, _unlimited(manifest), carried=manifest.record))
    if done.job.state is State.RESERVED:
        # Before there was a record, the job may have ended and Redis may have lost that end.
        if (yield from adopt(key)) is not None:
            return
        yield from _redis(records.confirm(key, manifest.created_us))
    delete = yield from _objects(lambda objects: manifests.read_cancel(objects, key))
    if delete is not None:
        yield from _finish_stop(key, (yield from _redis(records.cancel(key, delete=delete))))


def settle_reservation(key: JobKey) -> Flow[bool]:
    """Confirm an abandoned reservation if its manifest is stored, forget it otherwise."""
    with suppress(IdempotencyMismatch):  # the manifest belongs to another request
        if (yield from revive(key)):
            return True
    yield from _redis(records.unreserve(key))
    return False


def shows_artifacts(claim: Claim) -> Flow[bool]:
    """Return True where a stored outcome makes this attempt's artifacts the job's result."""
    stored = yield from _objects(lambda objects: manifests.read_outcome(objects, claim.key))
    return stored is not None and stored.shows(claim)


class Journal:
    """Performs flows for threads."""

    def __init__(self, store: Runs, objects: ObjectStore) -> None:
        self.store = store
        self.objects = objects

    def run(self, flow: Flow[T]) -> T:
        """Perform a flow and return its result; raise its errors unchanged."""
        result: Any = None
        error: PenstockError | None = None
        while True:
            try:
                step = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as end:
                return cast("T", end.value)
            try:
                result = self.perform(step)
                error = None
            except PenstockError as raised:
                error = raised

    def perform(self, step: Step) -> Any:
        """Perform one step and return its result."""
        match step:
            case Command():
                return self.store.run(step)
            case _:
                return step(self.objects)


class AsyncJournal:
    """Performs flows for the API: commands on the event loop, calls on the object store in threads."""

    def __init__(self, store: AsyncJobStore, objects: ObjectStore) -> None:
        self.store = store
        self.objects = objects

    async def run(self, flow: Flow[T]) -> T:
        """Perform a flow, whose commands share one time limit; return its result, raise its errors unchanged."""
        with request_deadline():
            return await self._run(flow)

    async def _run(self, flow: Flow[T]) -> T:
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
        match step:
            case Command():
                return await self.store.run(step)
            case _:
                return await asyncio.to_thread(step, self.objects)


def _run_or_revive(key: JobKey, command: Command[Reply[Job]]) -> Flow[Reply[Job]]:
    try:
        return (yield from _redis(command))
    except UnknownJob:
        if not (yield from revive(key)):
            raise
    return (yield from _redis(command))


def _finish_stop(key: JobKey, reply: Reply[Job]) -> Flow[Job]:
    job = reply.value if reply.proposal is None else (yield from _store_and_commit(key, reply.proposal))
    yield from _forget_checkpoints(key, job.state, job.fence)
    return job


def _put_request(submission: Submission, limits: QueueLimits, done: Submitted) -> Flow[Submitted]:
    chain = {"after": " ".join(submission.after), "depth": str(done.job.depth)} if submission.after else {}
    manifest = Manifest(submission, us(done.job.created_s), limits.retention_s, limits.max_crashes, chain)
    yield from _objects(lambda objects: manifests.mark(objects, submission.key))
    try:
        yield from _objects(lambda objects: manifests.put_manifest(objects, manifest))
    except ObjectExists:
        stored = yield from _objects(lambda objects: manifests.get_manifest(objects, submission.key))
    else:
        return replace(done, job=(yield from _redis(records.confirm(submission.key, manifest.created_us))))
    if stored.submission.fingerprint != submission.fingerprint:  # another request's job, which Redis had lost
        yield from _redis(records.unreserve(submission.key))
        yield from revive(submission.key)
        raise IdempotencyMismatch(f"job {submission.key.id} was made before, by a request with another body")
    job = yield from adopt(submission.key)  # the same request's job, which had ended before Redis lost it
    if job is None:  # the same request's open job, or our own put, whose reply was lost
        job = yield from _redis(records.confirm(submission.key, stored.created_us))
    return Submitted(job, created=done.created and stored == manifest)


def _finish_attempt(claim: Claim, reply: Reply[str], *, succeeded: bool) -> Flow[Ended]:
    if (proposal := reply.proposal) is not None:
        stored = yield from _store_and_end(claim.key, proposal)
        return Ended("ok", stored.shows(claim))
    if reply.value in ("ok", "canceled"):
        return Ended("ok", succeeded and reply.value == "ok")
    # An earlier try of this attempt may have stored the outcome, whichever process committed it.
    shown = yield from shows_artifacts(claim)
    return Ended(reply.value, shown or (succeeded and reply.value == "already"))


def _store_and_commit(key: JobKey, proposal: str) -> Flow[Job]:
    stored = yield from _objects(lambda objects: manifests.put_outcome(objects, key, proposal))
    return (yield from _commit(key, stored))


def _commit(key: JobKey, stored: StoredOutcome) -> Flow[Job]:
    job = yield from _redis(records.commit(key, stored.text))
    yield from _unmark(key)
    return job


def _store_and_end(key: JobKey, proposal: str) -> Flow[StoredOutcome]:
    stored = yield from _objects(lambda objects: manifests.put_outcome(objects, key, proposal))
    yield from _redis(records.commit_end(key, stored.text))
    yield from _unmark(key)
    return stored


def _unmark(key: JobKey) -> Flow[None]:
    """Delete the mark of an ended job; the keeper repeats this if the object store does not answer."""
    with suppress(ObjectStoreUnavailable):
        yield from _objects(lambda objects: manifests.unmark(objects, key))


def _forget_checkpoints(key: JobKey, state: State, fence: int) -> Flow[None]:
    """Delete the checkpoints of an ended job; the keeper repeats this if the object store does not answer."""
    if state in TERMINAL and fence:
        with suppress(ObjectStoreUnavailable):
            yield from _objects(lambda objects: objects.delete_prefix(key.checkpoints))


def _unlimited(manifest: Manifest) -> QueueLimits:
    """Return limits that reject nothing, because the job was accepted before."""
    return QueueLimits(records.NO_LIMIT, records.NO_LIMIT, manifest.retention_s, manifest.max_crashes, durable=True)


def _redis(command: Command[T]) -> Flow[T]:
    result: T = yield command
    return result


def _objects(call: Callable[[ObjectStore], T]) -> Flow[T]:
    result: T = yield call
    return result
