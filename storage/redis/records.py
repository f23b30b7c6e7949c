"""Jobs in Redis: the record (`record.py`) is the truth, and every transition is one Lua script (`lua/*.lua`).

The functions return commands: values that a `JobStore` or an `AsyncJobStore` runs. All are safe to repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from penstock import formats
from penstock.config import Settings
from penstock.errors import (
    ErrorReport,
    ExecutionTimeout,
    IdempotencyMismatch,
    JobGone,
    QueueExpired,
    StateConflict,
    UnknownJob,
    UpstreamFailed,
    WorkerLost,
)
from penstock.jobs import Artifact, Claim, Delivery, Job, JobEvent, JobKey, Phase, Progress, State, Submission, Usage
from penstock.storage.redis.fetch_hosts import NOT_FULL, Full, hosts_in
from penstock.storage.redis.fields import MICRO, dump, fields, submission_to_json, us
from penstock.storage.redis.record import TABLE, claim_of, encoded, job_of, phases_text
from penstock.storage.redis.refusals import refusal
from penstock.storage.redis.scripts import Arg, AsyncJobStore, Command, JobStore, Runs, query
from penstock.storage.redis.views import view_of

__all__ = ["AsyncJobStore", "Command", "JobStore", "Runs"]

T = TypeVar("T")
#: The phases of an attempt in order, each with the microseconds from the claim to its start.
PhaseStarts: TypeAlias = Sequence[tuple[Phase, int]]

#: Seconds by which one step of priority moves a job ahead: a normal job that waits longer is before a new high one.
PRIORITY_HEAD_START_S = 600
#: Seconds for which a purged job answers 410 instead of 404.
GONE_S = 30 * 86_400
#: Due rows of each index that one sweep reads.
SWEEP_LIMIT = 500
#: No limit, for a job that was accepted before.
NO_LIMIT = -1
#: Age in seconds of the oldest events that are delivered for a job that is created again: the time of all tries.
ANNOUNCE_AGAIN_S = 3 * 86_400
#: Seconds between two looks at a job whose parts run: it is put back in case that all of them are gone.
LOOK_S = 60.0
#: Names of all fields of a record that this release knows.
_FIELDS = " ".join(sorted(TABLE))
#: Names of the counts in a `Usage`.
_COUNTS = tuple(each.name for each in fields_of(Usage) if each.name != "device_s")


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a tenant; None = no limit."""

    device_s_per_day: float | None = None
    kept_bytes: int | None = None

    @property
    def args(self) -> dict[str, Arg]:
        """The quotas as arguments of `submit.lua`."""
        device_s = self.device_s_per_day
        return {"max_device_us": None if device_s is None else us(device_s), "max_kept_bytes": self.kept_bytes}


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a submit, and the limits that it writes into the record."""

    max_queued: int
    max_tenant_jobs: int
    retention_s: float
    max_crashes: int
    #: The job is claimed only after its manifest is stored, and `outcome.json` decides its end.
    durable: bool = False
    #: `max_tenant_jobs` of tenants with a limit of their own.
    tenant_jobs: Mapping[str, int] = field(default_factory=dict)
    #: Most jobs that may follow one, and upstreams in the longest chain up to a job.
    max_followers: int = 100
    max_chain_depth: int = 10
    #: Seconds of devices a day and bytes kept, of all tenants and of those with quotas of their own.
    quotas: Quotas = Quotas()
    tenant_quotas: Mapping[str, Quotas] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> QueueLimits:
        """Return the limits of the settings."""
        return cls(
            max_queued=settings.max_queued,
            max_tenant_jobs=settings.max_tenant_jobs,
            retention_s=settings.retention_s,
            max_crashes=settings.max_crashes,
            max_followers=settings.max_followers,
            max_chain_depth=settings.max_chain_depth,
            durable=settings.durability == "manifest",
            tenant_jobs={tenant: settings.max_jobs(tenant) for tenant in settings.tenants},
            quotas=Quotas(settings.max_tenant_device_s_per_day, settings.max_tenant_kept_bytes),
            tenant_quotas={
                tenant: Quotas(settings.device_s_per_day(tenant), settings.kept_limit_bytes(tenant))
                for tenant in settings.tenants
            },
        )

    def jobs_of(self, tenant: str) -> int:
        """Return the number of jobs of a tenant that may wait or run."""
        return self.tenant_jobs.get(tenant, self.max_tenant_jobs)

    def quotas_of(self, tenant: str) -> Quotas:
        """Return the quotas of a tenant."""
        return self.tenant_quotas.get(tenant, self.quotas)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job's record after a submit; `created` is False when the same request had created it before."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """A script's reply. With a `proposal`, the job's end is only proposed: see `journal.py`."""

    value: T
    #: Outcome (JSON) to put into the object store.
    proposal: str | None = None
    #: The request takes effect later, and must be stored in the object store until then.
    must_be_stored: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """The numbers of jobs that each cause moved, or proposed to end."""

    requeued: int = 0
    poisoned: int = 0
    canceled: int = 0
    timed_out: int = 0
    due: int = 0
    expired: int = 0
    #: Jobs whose upstreams have succeeded, and jobs that end because an upstream did not.
    released: int = 0
    upstream_failed: int = 0
    #: The queues into which jobs came back.
    queues: tuple[str, ...] = ()
    proposals: tuple[tuple[JobKey, str], ...] = ()
    #: Jobs that wait, with the ids of the upstreams that Redis does not have.
    unsure: tuple[tuple[JobKey, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt. `state` DELAYED requests another attempt after `retry_delay_s`."""

    state: State
    text: str | None = None
    data: Mapping[str, Any] | None = None
    artifacts: tuple[Artifact, ...] = ()
    error: ErrorReport | None = None
    metrics: Mapping[str, float] | None = None
    #: The resources that this attempt used.
    usage: Usage = field(default_factory=Usage)
    retry_delay_s: float = 0.0
    progress: Progress = field(default_factory=Progress)
    #: The attempt's phases.
    phases: PhaseStarts = ()
    #: The provenance of the result (JSON); None for an attempt without one.
    provenance: str | None = None
    #: The text and data in the object store: the record has these or `output`.
    output: Artifact | None = None


def submit(
    submission: Submission, limits: QueueLimits, *, carried: Mapping[str, str] = MappingProxyType({})
) -> Command[Submitted]:
    """Create a job and put it into its queue, or return the one that the same request created before.

    A durable job is RESERVED until `confirm`. `carried` are fields of a newer format from its manifest. Raises
    `IdempotencyMismatch`, `JobGone`, `TooManyJobs`, `DeviceQuotaExceeded`, `StorageQuotaExceeded`, `QueueFull`,
    `QueueDraining`, for a member of a batch `BatchClosed`, for a job with upstreams `UnknownUpstream` or
    `InvalidRequest`: then nothing was written.
    """
    key = submission.key
    record = encoded(
        version=submission.version, submission=submission, fingerprint=submission.fingerprint, tenant=key.tenant,
        id=key.id, model=submission.model, queue=submission.queue, batch=submission.batch_id, drop=submission.drop,
        metadata=dump(dict(submission.metadata)) if submission.metadata else None, retry_of=submission.retry_of,
        webhook=_webhook(submission), durable=limits.durable, ttl_us=us(submission.queue_ttl_s),
        execution_us=us(submission.execution_timeout_s), retention_us=us(limits.retention_s),
        max_attempts=submission.max_attempts, max_crashes=limits.max_crashes, phase=Phase.WAITING, attempt=0, crashes=0,
        fence=0, delivery=Delivery.NONE, media_bytes=submission.media_bytes, fetch_hosts=hosts_in(submission.input),
        after=" ".join(submission.after), depth=carried.get("depth"),
    )  # fmt: skip
    args: dict[str, Arg] = {
        **names_of(key), "record": {**_unknown(carried), **record},
        "priority_us": us(submission.priority * PRIORITY_HEAD_START_S),
        "max_tenant_jobs": limits.jobs_of(key.tenant), "max_queued": limits.max_queued,
        "max_followers": limits.max_followers, "max_chain_depth": limits.max_chain_depth,
        **limits.quotas_of(key.tenant).args,
    }  # fmt: skip
    return Command("submit", args, lambda reply: _submitted(submission, reply))


def claim(
    queue: str, *, slot: str, nonce: str, lease_s: float, max_tenant_running: int, worker: str,
    models: Iterable[str], dry: bool = True, running_caps: Mapping[str, int] = MappingProxyType({}),
    full: Full = NOT_FULL,
) -> Command[Claim | None]:  # fmt: skip
    """Lease a waiting job to a slot; None if there is none.

    The same slot and nonce get the same job again, so that a lost reply loses no job. A worker that runs other jobs is
    not `dry`, and gets no job on its last chance, because such a job runs alone. `running_caps` has the limits of
    tenants whose limit is not `max_tenant_running`. Jobs that would fetch media where the worker is `full` stay in the
    queue.
    """
    args: dict[str, Arg] = {
        "queue": queue, "slot": slot, "nonce": nonce, "lease_us": us(lease_s), "worker": worker, "dry": dry,
        "max_tenant_running": max_tenant_running, "models": sorted(models), "caps": running_caps,
        "version": formats.RUNS, "fetches_none": full.all,
        "full_tenants": sorted(full.tenants), "full_hosts": sorted(full.hosts),
    }  # fmt: skip
    return Command("claim", args, lambda reply: claim_of(json.loads(reply)) if reply else None)


def confirm(key: JobKey, created_us: int) -> Command[Job]:
    """Make a reservation claimable, after its manifest is stored, and return the job; `UnknownJob` without one."""
    return Command("confirm", {**names_of(key), "created_us": created_us}, lambda reply: view_of(*known(reply)))


def unreserve(key: JobKey) -> Command[bool]:
    """Delete a reservation; False without one."""
    return Command("unreserve", names_of(key), bool)


def commit(key: JobKey, outcome: str) -> Command[Job]:
    """Set a job's record to its stored outcome, once, and return the job; `JobGone` if it was purged."""
    args: dict[str, Arg] = {
        **names_of(key), "outcome": outcome, "announce_within_us": us(ANNOUNCE_AGAIN_S), "names": _FIELDS,
    }  # fmt: skip
    return Command("commit", args, lambda reply: job_of(known(reply)))


def commit_end(key: JobKey, outcome: str) -> Command[None]:
    """Set a job's record to its stored outcome, as `commit`, without returning the job."""
    args = commit(key, outcome).args
    return Command("commit", {**args, "brief": True}, lambda reply: None if reply == "ok" else known(reply))


def heartbeat(
    claim: Claim, phase: Phase, progress: Progress, *, checkpoints: int = 0, waited_s: float = 0.0,
    phases: PhaseStarts = (),
) -> Command[str]:  # fmt: skip
    """Renew an attempt's lease and store its progress; the reply is `go`, `cancel` or `lost`.

    `checkpoints` is the number of checkpoints that this attempt has stored. After the first one, a crash counts as the
    job's first. `waited_s` are the seconds that this attempt waited for the object store; the job's execution timeout
    ends so much later. `phases` are the attempt's phases so far.
    """
    args: dict[str, Arg] = {
        **held_by(claim), **_progress(progress), "lease_us": us(claim.lease_s), "phase": phase.value,
        "message": progress.message, "timeout_error": encoded(error=ExecutionTimeout().report())["error"],
        "checkpoints": checkpoints, "waited_us": us(waited_s), "phases": phases_text(claim.fence, phases),
    }  # fmt: skip
    return Command("heartbeat", args, str)


def complete(claim: Claim, outcome: Outcome) -> Command[Reply[str]]:
    """End an attempt; the reply is `ok`, `already` (the attempt had ended) or `fenced` (the attempt lost the job).

    It is `canceled` where the job's end was requested before: the job ends as canceled, whatever the outcome says.
    """
    name = "retry" if outcome.state is State.DELAYED else outcome.state.value
    inline = {"text": outcome.text, "data": outcome.data} if outcome.output is None else {"output": outcome.output}
    record = encoded(
        **inline, artifacts=outcome.artifacts, error=outcome.error,
        metrics=outcome.metrics or {}, provenance=outcome.provenance, **_used(outcome.usage),
    )  # fmt: skip
    args: dict[str, Arg] = {
        **held_by(claim), **_progress(outcome.progress), "outcome": name, "record": record,
        "retry_delay_us": us(outcome.retry_delay_s), "phases": phases_text(claim.fence, outcome.phases),
    }  # fmt: skip
    return Command("complete", args, _replied)


def release(claim: Claim, phases: PhaseStarts = ()) -> Command[Reply[str]]:
    """Return a job to its queue; its next attempt has the same number. Replies as `complete`."""
    return Command("release", {**held_by(claim), "phases": phases_text(claim.fence, phases)}, _replied)


def cancel(key: JobKey, *, delete: bool = False) -> Command[Reply[Job]]:
    """Request a job's end and return its record; a terminal job comes back unchanged.

    With `delete` the job is purged at its end; `StateConflict` for one that has ended and is kept for live followers.
    """
    return Command("cancel", {**names_of(key), "delete": delete}, partial(_canceled, delete=delete))


def expire(key: JobKey) -> Command[Reply[Job]]:
    """End a job because its batch has expired: as `cancel`, but a waiting job expires."""
    report = QueueExpired("the time of the job's batch is over").report()
    return Command("expire", {**names_of(key), **encoded(error=report)}, _canceled)


def read(key: JobKey) -> Command[Job]:
    """Return a job's record with its place in the queue and an estimate; `UnknownJob` or `JobGone` without one."""
    return query("job", lambda reply: view_of(*known(reply)), **names_of(key))


def delete(key: JobKey) -> Command[None]:
    """Purge a terminal job's record, but keep a marker of it; `StateConflict` while it is live."""
    return Command("forget", {"jobs": [str(key)], "gone_s": GONE_S}, lambda replies: _forgotten(replies[0]))


def sweep(*, proposals: int = 0) -> Command[Swept]:
    """Move the jobs whose lease, timeout, delay or TTL is over.

    At most `proposals` ends of durable jobs are proposed; the others stay for a later sweep.
    """
    causes = {"lost_error": WorkerLost(), "timeout_error": ExecutionTimeout(), "expired_error": QueueExpired()}
    args: dict[str, Arg] = {"limit": SWEEP_LIMIT, "max_proposals": proposals, "look_us": us(LOOK_S)}
    args |= {name: encoded(error=cause.report())["error"] for name, cause in causes.items()}
    args["upstream_error"] = encoded(error=UpstreamFailed("job %s, for which this one waited, %s").report())["error"]
    return Command("sweep", args, _swept)


def events(key: JobKey, *, after: str = "0", count: int = 500) -> Command[tuple[JobEvent, ...]]:
    """Return a job's events after the entry `after`, oldest first, at most `count` entries."""
    return query("events", _events, **names_of(key), after=after, count=count)


def ping() -> Command[None]:
    """Return if the job store answers."""
    return query("ping", lambda _: None)


def names_of(key: JobKey) -> dict[str, Arg]:
    return {"tenant": key.tenant, "id": key.id}


def _progress(progress: Progress) -> dict[str, Arg]:
    return {"done": progress.done, "total": progress.total, "unit": progress.unit}


def _webhook(submission: Submission) -> str | None:
    return dump(submission_to_json(submission)["webhook"]) if submission.webhook else None


def _used(usage: Usage) -> dict[str, int | None]:
    counts = {name: getattr(usage, name) for name in _COUNTS}
    return {**counts, "device_us": None if usage.device_s is None else us(usage.device_s)}


def _unknown(carried: Mapping[str, str]) -> dict[str, Arg]:
    return {name: text for name, text in carried.items() if name not in TABLE}


def held_by(claim: Claim) -> dict[str, Arg]:
    return {**names_of(claim.key), "fence": claim.fence}


def _submitted(submission: Submission, reply: list[Any]) -> Submitted:
    match reply[0]:
        case "reserved":
            created_s, depth = int(reply[1]) / MICRO, int(reply[2])
            return Submitted(Job(submission, State.RESERVED, created_s, depth=depth, revision=1), created=True)
        case "created" | "exists" as how:
            return Submitted(view_of(*reply[1]), created=how == "created")
        case "mismatch":
            raise IdempotencyMismatch(f"job {submission.key.id} was created before, by a request with another body")
        case _:
            raise refusal(submission, reply)


def _replied(reply: list[Any]) -> Reply[str]:
    return Reply(str(reply[0]), reply[1])


def _canceled(reply: Any, *, delete: bool = False) -> Reply[Job]:
    record, proposal, *flags = known(reply)
    must_be_stored, followed = flags or (0, 0)
    if delete and followed:
        raise StateConflict("jobs that have not ended wait for this one: its files are kept until they have")
    return Reply(job_of(record), proposal, must_be_stored=must_be_stored == 1)


def _swept(reply: list[Any]) -> Swept:
    counts, rows, names, lacking = reply
    proposals = tuple((JobKey.parse(name), proposal) for name, proposal in rows)
    unsure = tuple((JobKey.parse(name), tuple(ids)) for name, ids in lacking)
    return replace(Swept(*counts), queues=tuple(names), proposals=proposals, unsure=unsure)


def keys_of(names: Iterable[str]) -> tuple[JobKey, ...]:
    return tuple(map(JobKey.parse, names))


def known(reply: Any) -> Any:
    if reply == 0:
        raise UnknownJob
    if reply == 1:
        raise JobGone
    return reply


def _events(reply: Any) -> tuple[JobEvent, ...]:
    return tuple(_event(*row) for row in known(reply)[0])


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
        raise StateConflict("the job has not ended: cancel it first")
