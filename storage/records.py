"""Jobs in Redis: the record is the truth, and every transition is one Lua script (`lua/*.lua`, model in `common.lua`).

The functions here return commands: values that a `JobStore` or an `AsyncJobStore` runs. All are safe to repeat.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from penstock.config import Settings
from penstock.errors import (
    BatchClosed,
    ExecutionTimeout,
    IdempotencyMismatch,
    JobGone,
    QueueDraining,
    QueueExpired,
    QueueFull,
    StateConflict,
    TooManyJobs,
    UnknownJob,
    WorkerLost,
)
from penstock.jobs import (
    Artifact,
    Claim,
    Job,
    JobEvent,
    JobKey,
    Phase,
    Progress,
    State,
    Submission,
)
from penstock.reports import ErrorReport
from penstock.storage.fields import MICRO, claim_of, dump, fields, job_of, submission_to_json, us, view_of
from penstock.storage.scripts import Arg, AsyncJobStore, Command, JobStore, Runs

__all__ = ["AsyncJobStore", "Command", "JobStore", "Runs"]

T = TypeVar("T")

#: How far ahead of the queue one step of priority puts a job. It ages: a normal job that has waited this long stands
#: before a new high one.
PRIORITY_HEAD_START_S = 600
#: How long a purged job answers 410 instead of 404.
GONE_S = 30 * 86_400
#: Due rows that one sweep looks at per index.
SWEEP_LIMIT = 500
#: As a limit: the job was accepted before, nothing is refused.
NO_LIMIT = -1
#: A record that is made anew tells its receivers again of what happened so recently: as long as webhooks are tried.
ANNOUNCE_AGAIN_S = 3 * 86_400
#: A `Retry-After` is no longer than this.
MAX_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a submit may not exceed, and what it writes into the record for the keeper."""

    max_queued: int
    max_tenant_jobs: int
    retention_s: float
    max_crashes: int
    #: Whether the job waits for its manifest before it may be claimed, and ends by its `outcome.json`.
    durable: bool = False
    #: `max_tenant_jobs` of tenants that have another.
    tenant_jobs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> QueueLimits:
        """Return what the settings say."""
        return cls(
            max_queued=settings.max_queued,
            max_tenant_jobs=settings.max_tenant_jobs,
            retention_s=settings.retention_s,
            max_crashes=settings.max_crashes,
            durable=settings.durability == "manifest",
            tenant_jobs={tenant: settings.max_jobs(tenant) for tenant in settings.tenants},
        )

    def jobs_of(self, tenant: str) -> int:
        """Return how many jobs of a tenant may wait or run."""
        return self.tenant_jobs.get(tenant, self.max_tenant_jobs)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job's record after a submit; `created` is False when the same request had made it before."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a script answered. With a `proposal` the job's end is decided but has not happened: see `journal.py`."""

    value: T
    #: The outcome (JSON) that is to be put into the object store.
    proposal: str | None = None
    #: What was asked for is still to come, and is to be put into the object store until it has.
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """How many jobs each cause moved, or would end by a proposal."""

    requeued: int = 0
    poisoned: int = 0
    canceled: int = 0
    timed_out: int = 0
    due: int = 0
    expired: int = 0
    #: The queues into which jobs came back.
    queues: tuple[str, ...] = ()
    proposals: tuple[tuple[JobKey, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `state` DELAYED asks for another try after `retry_delay_s`."""

    state: State
    text: str | None = None
    data: Mapping[str, Any] | None = None
    artifacts: tuple[Artifact, ...] = ()
    error: ErrorReport | None = None
    metrics: Mapping[str, float] | None = None
    retry_delay_s: float = 0.0
    progress: Progress = field(default_factory=Progress)


def submit(submission: Submission, limits: QueueLimits) -> Command[Submitted]:
    """Create a job and put it into its queue, or return the one that the same request made before.

    Of a durable job this is a reservation: it is RESERVED until `confirm`. Raises `IdempotencyMismatch`, `JobGone`,
    `TooManyJobs`, `QueueFull`, `QueueDraining` or, for a member of a batch, `BatchClosed`: then nothing was written.
    """
    hook = submission.webhook
    args = (
        submission.key.tenant,
        submission.key.id,
        dump(submission_to_json(submission)),
        submission.fingerprint,
        submission.model,
        submission.queue,
        us(submission.priority * PRIORITY_HEAD_START_S),
        us(submission.queue_ttl_s),
        us(submission.execution_timeout_s),
        us(limits.retention_s),
        submission.max_attempts,
        limits.max_crashes,
        dump(asdict(hook)) if hook else "",
        submission.retry_of or "",
        limits.jobs_of(submission.key.tenant),
        limits.max_queued,
        "1" if limits.durable else "",
        dump(dict(submission.metadata)) if submission.metadata else "",
        submission.batch_id or "",
        submission.drop or "",
    )
    return Command("submit", args, lambda reply: _submitted(submission, reply))


def claim(
    queue: str, *, slot: str, nonce: str, n: int, lease_s: float, max_tenant_running: int, worker: str,
    models: Iterable[str], dry: bool = True, running_caps: Mapping[str, int] = MappingProxyType({}),
) -> Command[tuple[Claim, ...]]:  # fmt: skip
    """Lease up to `n` waiting jobs of one model to a slot.

    The same slot and nonce get the same jobs again: a lost reply is not a lost job. A worker that runs anything else is
    not `dry`: it gets no job on its last chance, which wants a worker to itself. `running_caps` are those of tenants
    that may run another number of jobs than `max_tenant_running`.
    """
    caps = dump(dict(running_caps))
    args = (queue, slot, nonce, n, us(lease_s), max_tenant_running, worker, dump(sorted(models)), int(dry), caps)
    return Command("claim", args, lambda reply: tuple(claim_of(row) for row in json.loads(reply)))


def confirm(key: JobKey, created_us: int) -> Command[Job]:
    """Let a reservation be claimed: its manifest is stored and says when it was made. `UnknownJob` without one."""
    return Command("confirm", (key.tenant, key.id, created_us), lambda reply: view_of(*_known(reply)))


def unreserve(key: JobKey) -> Command[bool]:
    """Forget a reservation; False where there is none any more."""
    return Command("unreserve", (key.tenant, key.id), bool)


def reservations(age_s: float) -> Command[tuple[JobKey, ...]]:
    """Return the jobs that were reserved so long ago and not confirmed."""
    return Command("reservations", (us(age_s), SWEEP_LIMIT), _keys)


def commit(key: JobKey, outcome: str) -> Command[Job]:
    """Make a job's record what its stored outcome says, once, and return it; `JobGone` if it was purged."""
    args = (key.tenant, key.id, outcome, us(ANNOUNCE_AGAIN_S))
    return Command("commit", args, lambda reply: _job(_known(reply)))


def alive() -> Command[bool]:
    """Return whether Redis was not emptied since the last recovery ended."""
    return Command("alive", (), bool)


def recovering(who: str, *, begin: bool) -> Command[bool]:
    """Say that a recovery begins or ended; False for an end that does not count, because Redis was emptied again."""
    return Command("recovering", (who, int(begin)), bool)


def heartbeat(claim: Claim, phase: Phase, progress: Progress, *, checkpoints: int = 0) -> Command[str]:
    """Renew an attempt's lease and store its progress; the reply is `go`, `cancel` or `lost`.

    `checkpoints` counts what this attempt stored so that the next one need not do it again: after the first, a crash
    counts as the job's first.
    """
    args = (
        *_held(claim),
        us(claim.lease_s),
        phase.value,
        progress.done,
        "" if progress.total is None else progress.total,
        progress.unit,
        progress.message or "",
        dump(ExecutionTimeout().report().to_json()),
        checkpoints,
    )
    return Command("heartbeat", args, str)


def say(claim: Claim, text: str, *, at: int) -> Command[bool]:
    """Tell the job's followers a piece of the result's text, which stands at character `at` of what this attempt said.

    False where the attempt does not hold the job any more: then nobody is told.
    """
    data = dump({"text": text, "at": at, "attempt": claim.attempt})
    return Command("say", (*_held(claim), at, len(text), data), bool)


def show(claim: Claim, name: str, media_type: str, picture: bytes) -> Command[bool]:
    """Show the job's followers what the artifact `name` looks like so far.

    False where the attempt does not hold the job any more: then nobody is shown it.
    """
    said = base64.b64encode(picture).decode()
    data = dump({"name": name, "content_type": media_type, "data": said, "attempt": claim.attempt})
    return Command("show", (*_held(claim), data), bool)


def complete(claim: Claim, outcome: Outcome) -> Command[Reply[str]]:
    """End an attempt; the reply is `ok`, `already` (this attempt had ended) or `fenced` (it is not ours any more)."""
    name = "retry" if outcome.state is State.DELAYED else outcome.state.value
    args = (
        *_held(claim),
        name,
        outcome.text or "",
        "" if outcome.data is None else dump(outcome.data),
        dump([asdict(artifact) for artifact in outcome.artifacts]),
        dump(outcome.error.to_json()) if outcome.error else "",
        dump(outcome.metrics or {}),
        us(outcome.retry_delay_s),
        outcome.progress.done,
        "" if outcome.progress.total is None else outcome.progress.total,
        outcome.progress.unit,
    )
    return Command("complete", args, _replied)


def release(claim: Claim) -> Command[Reply[str]]:
    """Give a job back to the queue; its next attempt has the same number. Replies as `complete`."""
    return Command("release", _held(claim), _replied)


def cancel(key: JobKey, *, delete: bool = False) -> Command[Reply[Job]]:
    """Ask for a job's end and return its record; a terminal job comes back unchanged.

    With `delete` its retention is over at its end.
    """
    return Command("cancel", (key.tenant, key.id, int(delete)), _canceled)


def expire(key: JobKey) -> Command[Reply[Job]]:
    """End a job because the time of its batch is over: as `cancel`, but a waiting one expires."""
    report = QueueExpired("the time of the job's batch is over").report()
    return Command("expire", (key.tenant, key.id, dump(report.to_json())), _canceled)


def read(key: JobKey) -> Command[Job]:
    """Return a job's record with its place in the queue and an estimate; `UnknownJob` or `JobGone` without one."""
    return Command("read", (key.tenant, key.id), lambda reply: view_of(*_known(reply)))


def delete(key: JobKey) -> Command[None]:
    """Purge a terminal job's record and leave a marker; `StateConflict` while it is live."""
    return Command("forget", (key.tenant, key.id, GONE_S), _forgotten)


def sweep(*, proposals: int = 0) -> Command[Swept]:
    """Do what time alone does to jobs: ended leases, timeouts, delays and TTLs.

    At most `proposals` ends of durable jobs come back; the others stay for a later sweep.
    """
    reports = (WorkerLost().report(), ExecutionTimeout().report(), QueueExpired().report())
    args: tuple[Arg, ...] = (SWEEP_LIMIT, proposals, *(dump(report.to_json()) for report in reports))
    return Command("sweep", args, _swept)


def events(key: JobKey, *, after: str = "0", count: int = 500) -> Command[tuple[JobEvent, ...]]:
    """Return what happened to a job after the entry `after`, oldest first, at most `count` entries."""
    args = (key.tenant, key.id, after, count)
    return Command("events", args, lambda reply: tuple(_event(*row) for row in _known(reply)[0]))


def retired() -> Command[tuple[JobKey, ...]]:
    """Return terminal jobs whose retention is over."""
    return Command("retired", (SWEEP_LIMIT,), _keys)


def lead(who: str, lease_s: float) -> Command[bool]:
    """Become or stay the active keeper; False while another one is."""
    return Command("lead", (who, round(lease_s * 1000)), bool)


def step_down(who: str) -> Command[bool]:
    """Stop being the active keeper."""
    return Command("step_down", (who,), bool)


def ping() -> Command[None]:
    """Return if the job store answers."""
    return Command("ping", (), lambda _: None)


def _held(claim: Claim) -> tuple[Arg, ...]:
    return claim.key.tenant, claim.key.id, claim.fence


def _submitted(submission: Submission, reply: list[Any]) -> Submitted:
    match reply[0]:
        case "created" | "exists" as how:
            return Submitted(view_of(*reply[1]), created=how == "created")
        case "mismatch":
            raise IdempotencyMismatch(f"job {submission.key.id} was made before, by a request with another body")
        case "gone":
            raise JobGone(f"job {submission.key.id} is over and was purged")
        case "closed":
            raise BatchClosed
        case "draining":
            raise QueueDraining(f"queue {submission.queue} takes no new jobs at the moment")
        case "tenant":
            # The tenant's own jobs, one slot's speed apart: room comes with the next that ends.
            raise TooManyJobs(f"{reply[1]} jobs are waiting or running", retry_after_s=_patience_s(1, *reply[2:]))
        case _:
            patience_s = _patience_s(int(reply[1]), *reply[2:])
            raise QueueFull(f"{reply[1]} jobs are waiting in queue {submission.queue}", retry_after_s=patience_s)


def _patience_s(jobs: int, speed_us: str | None, slots: int) -> float:
    """Return how long so many jobs take at the recent speed (one second each where none is known)."""
    return min(MAX_PATIENCE_S, max(1.0, jobs * int(speed_us or MICRO) / MICRO / max(1, slots)))


def _replied(reply: list[Any]) -> Reply[str]:
    return Reply(str(reply[0]), reply[1])


def _canceled(reply: Any) -> Reply[Job]:
    record, proposal, *lasting = _known(reply)
    return Reply(_job(record), proposal, lasting=lasting == [1])


def _swept(reply: list[Any]) -> Swept:
    (requeued, poisoned, canceled, timed_out, due, expired), rows, names = reply
    proposals = tuple((JobKey.parse(name), proposal) for name, proposal in rows)
    return Swept(requeued, poisoned, canceled, timed_out, due, expired, tuple(names), proposals)


def _keys(names: Iterable[str]) -> tuple[JobKey, ...]:
    return tuple(map(JobKey.parse, names))


def _known(reply: Any) -> Any:
    if reply == 0:
        raise UnknownJob
    if reply == 1:
        raise JobGone
    return reply


def _job(flat: Sequence[str]) -> Job:
    return job_of(fields(flat))


def _event(entry_id: str, flat: Sequence[str]) -> JobEvent:
    row = fields(flat)
    data = json.loads(row["data"])
    if row.get("error"):
        data["error"] = json.loads(row["error"])
    return JobEvent(entry_id, row["type"], int(entry_id.partition("-")[0]) / 1000, data)


def _forgotten(reply: str) -> None:
    if reply == "unknown":
        raise UnknownJob
    if reply == "live":
        raise StateConflict("the job is not over: cancel it first")
