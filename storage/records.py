"""Jobs in Redis: the record is the truth, and every transition is one Lua script (`lua/*.lua`, model in `common.lua`).

The functions here return commands: values that a `JobStore` or an `AsyncJobStore` runs. All are safe to repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.config import Settings
from penstock.errors import (
    ErrorReport,
    ExecutionTimeout,
    IdempotencyMismatch,
    JobGone,
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
    Status,
    Submission,
)
from penstock.models import CatalogueEntry
from penstock.storage.fields import MICRO, claim_of, dump, eta_s, fields, job_of, seconds, submission_to_json, us
from penstock.storage.scripts import Arg, AsyncJobStore, Command, JobStore, Runs

__all__ = ["AsyncJobStore", "Command", "JobStore", "Runs"]

#: How far ahead of the queue one step of priority puts a job. It ages: a normal job that has waited this long stands
#: before a new high one.
PRIORITY_HEAD_START_S = 600
#: How long a purged job answers 410 instead of 404.
GONE_S = 30 * 86_400
#: Due rows that one sweep looks at per index.
SWEEP_LIMIT = 500


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a submit may not exceed, and what it writes into the record for the keeper."""

    max_queued: int
    max_tenant_jobs: int
    retention_s: float
    max_crashes: int

    @classmethod
    def of(cls, settings: Settings) -> QueueLimits:
        """Return what the settings say."""
        return cls(settings.max_queued, settings.max_tenant_jobs, settings.retention_s, settings.max_crashes)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job's record after a submit; `created` is False when the same request had made it before."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first, and where the next page begins."""

    jobs: tuple[Job, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What autoscaling needs to know of a queue. `eta_s` is the time to empty it; None where nothing is known."""

    queued: int
    running: int
    oldest_age_s: float
    throughput_per_s: float
    workers: int
    slots: int
    eta_s: float | None
    known: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """How many jobs each cause moved."""

    requeued: int
    poisoned: int
    canceled: int
    timed_out: int
    due: int
    expired: int


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

    Raises `IdempotencyMismatch`, `JobGone`, `TooManyJobs` or `QueueFull`: then nothing was written.
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
        limits.max_tenant_jobs,
        limits.max_queued,
    )
    return Command("submit", args, lambda reply: _submitted(submission, reply))


def claim(
    queue: str, *, slot: str, nonce: str, n: int, lease_s: float, max_tenant_running: int, worker: str,
    models: Iterable[str],
) -> Command[tuple[Claim, ...]]:  # fmt: skip
    """Lease up to `n` waiting jobs of one model to a slot.

    The same slot and nonce get the same jobs again: a lost reply is not a lost job.
    """
    args = (queue, slot, nonce, n, us(lease_s), max_tenant_running, worker, dump(sorted(models)))
    return Command("claim", args, lambda reply: tuple(claim_of(row) for row in json.loads(reply)))


def heartbeat(claim: Claim, phase: Phase, progress: Progress) -> Command[str]:
    """Renew an attempt's lease and store its progress; the reply is `go`, `cancel` or `lost`."""
    args = (
        *_held(claim),
        us(claim.lease_s),
        phase.value,
        progress.done,
        "" if progress.total is None else progress.total,
        progress.unit,
        progress.message or "",
        dump(ExecutionTimeout().report().to_json()),
    )
    return Command("heartbeat", args, str)


def complete(claim: Claim, outcome: Outcome) -> Command[str]:
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
    )
    return Command("complete", args, lambda reply: str(reply[0]))


def release(claim: Claim) -> Command[str]:
    """Give a job back to the queue without counting the attempt; replies as `complete`."""
    return Command("release", _held(claim), str)


def cancel(key: JobKey) -> Command[Job]:
    """Ask for a job's end and return its record; a terminal job comes back unchanged."""
    return Command("cancel", (key.tenant, key.id), lambda reply: _job(_known(reply)))


def read(key: JobKey) -> Command[Job]:
    """Return a job's record with its place in the queue and an estimate; `UnknownJob` or `JobGone` without one."""
    return Command("read", (key.tenant, key.id), lambda reply: _with_estimate(*_known(reply)))


def delete(key: JobKey) -> Command[None]:
    """Purge a terminal job's record and leave a marker; `StateConflict` while it is live."""
    return Command("forget", (key.tenant, key.id, GONE_S), _forgotten)


def list_jobs(
    tenant: str, *, cursor: str | None = None, limit: int = 50, status: Status | None = None, model: str | None = None
) -> Command[Page]:
    """Return a page of a tenant's jobs, newest first. A short page with a cursor is possible."""
    states, canceling = _states(status)
    args = (tenant, f"({cursor}" if cursor else "+inf", limit, dump(states), model or "", canceling)
    return Command("list", args, _page)


def sweep() -> Command[Swept]:
    """Do what time alone does to jobs: ended leases, timeouts, delays and TTLs."""
    reports = (WorkerLost().report(), ExecutionTimeout().report(), QueueExpired().report())
    args: tuple[Arg, ...] = (SWEEP_LIMIT, *(dump(report.to_json()) for report in reports))
    return Command("sweep", args, lambda reply: Swept(*reply))


def queue_stats(queue: str) -> Command[QueueStats]:
    """Return a queue's depth, age and speed."""
    return Command("queue_stats", (queue,), _queue_stats)


def seen(queue: str, worker: str, slots: int) -> Command[str]:
    """Say that a worker claimed or tried to claim."""
    return Command("seen", (queue, worker, slots), str)


def events(key: JobKey, *, after: str = "0", count: int = 500) -> Command[tuple[JobEvent, ...]]:
    """Return what happened to a job after the entry `after`, oldest first, at most `count` entries."""
    args = (key.tenant, key.id, after, count)
    return Command("events", args, lambda reply: tuple(_event(*row) for row in _known(reply)[0]))


def publish(entries: Iterable[CatalogueEntry]) -> Command[str]:
    """Store what workers exported of their models, for the API."""
    return Command("publish", tuple(text for e in entries for text in (e.name, e.model_dump_json())), str)


def catalogue() -> Command[dict[str, CatalogueEntry]]:
    """Return the models that workers exported, by name."""
    return Command(
        "catalogue",
        (),
        lambda flat: {name: CatalogueEntry.model_validate_json(text) for name, text in fields(flat).items()},
    )


def retired() -> Command[tuple[JobKey, ...]]:
    """Return terminal jobs whose retention is over."""
    return Command("retired", (SWEEP_LIMIT,), lambda names: tuple(map(JobKey.parse, names)))


def backlog() -> Command[dict[str, int]]:
    """Return how many jobs wait in each queue that has any."""
    return Command("backlog", (), fields)


def hinted(list_name: str) -> Command[bool]:
    """Return whether a hint waits in a Celery queue's list."""
    return Command("hinted", (list_name,), bool)


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
            return Submitted(_job(reply[1]), created=how == "created")
        case "mismatch":
            raise IdempotencyMismatch(f"job {submission.key.id} was made by another request")
        case "gone":
            raise JobGone(f"job {submission.key.id} is over and was purged")
        case "tenant":
            raise TooManyJobs(f"{reply[1]} jobs are waiting or running", retry_after_s=30)
        case _:
            speed, workers = int(reply[2] or MICRO), max(1, int(reply[3]))
            wait_s = min(600.0, int(reply[1]) * speed / MICRO / workers)
            raise QueueFull(f"{reply[1]} jobs are waiting in queue {submission.queue}", retry_after_s=max(1.0, wait_s))


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
    return JobEvent(entry_id, row["type"], int(entry_id.partition("-")[0]) / 1000, json.loads(row["data"]))


def _with_estimate(
    flat: Sequence[str], now_us: str, rank: int | None, speed_us: str | None, slots: int
) -> Job:  # fmt: skip
    job = _job(flat)
    speed_s = seconds(speed_us)
    position = rank + 1 if rank is not None else None
    return replace(job, queue_position=position, eta_s=eta_s(job, int(now_us) / MICRO, position, speed_s, slots))


def _forgotten(reply: str) -> None:
    if reply == "unknown":
        raise UnknownJob
    if reply == "live":
        raise StateConflict("the job is not over: cancel it first")


def _states(status: Status | None) -> tuple[list[str], str]:
    match status:
        case None:
            return [state.value for state in State], ""
        case Status.QUEUED:
            return [State.QUEUED.value, State.DELAYED.value], ""
        case Status.RUNNING:
            return [State.RUNNING.value], "0"
        case Status.CANCELING:
            return [State.RUNNING.value], "1"
        case _:
            return [status.value], ""


def _page(reply: list[Any]) -> Page:
    rows, before = reply
    return Page(tuple(_job(row) for row in rows), before.removeprefix("(") or None)


def _queue_stats(reply: list[Any]) -> QueueStats:
    now_us, queued, running, oldest_us, done, workers, slots, speeds, known = reply
    speed = [int(us) / MICRO for us in speeds[1::2]]
    mean_s = sum(speed) / len(speed) if speed else None
    oldest_s = seconds(oldest_us)
    return QueueStats(
        queued=queued,
        running=running,
        oldest_age_s=int(now_us) / MICRO - oldest_s if oldest_s is not None else 0.0,
        throughput_per_s=int(done) / 300,
        workers=workers,
        slots=slots,
        eta_s=queued * mean_s / slots if mean_s is not None and slots else None,
        known=bool(known),
    )
