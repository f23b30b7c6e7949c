"""Jobs in the form of RunPod's API: requests, states, outputs and pieces of streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from penstock.api.facades.openai.answers import UnsentText
from penstock.api.schemas.jobs import JobView
from penstock.errors import ExecutionTimeout
from penstock.jobs import JobEvent, Status
from penstock.models import CatalogueEntry
from penstock.requests import DAY_S, Incoming, JobRequest, WebhookRequest
from penstock.storage.redis.queues import OwnJobs

_STATES: Mapping[Status, str] = MappingProxyType(
    {
        Status.QUEUED: "IN_QUEUE",
        Status.RUNNING: "IN_PROGRESS",
        Status.SUCCEEDED: "COMPLETED",
        Status.FAILED: "FAILED",
        Status.CANCELED: "CANCELLED",
        Status.EXPIRED: "TIMED_OUT",
    }
)


class Policy(Incoming):
    """RunPod's `policy`: times in milliseconds."""

    executionTimeout: Annotated[int, Field(ge=1000, le=7 * DAY_S * 1000)] | None = None  # noqa: N815  (RunPod's name)
    ttl: Annotated[int, Field(gt=0, le=30 * DAY_S * 1000)] | None = None
    lowPriority: bool = False  # noqa: N815  (RunPod's name)


class RunRequest(Incoming):
    """The body of `/run` and `/runsync`."""

    input: dict[str, Any]
    webhook: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = None
    policy: Policy = Policy()


def job_request(entry: CatalogueEntry, wanted: RunRequest) -> JobRequest:
    """Return a run as a job of the model."""
    policy = wanted.policy
    return JobRequest(
        model=entry.name,
        input=wanted.input,
        webhook=None if wanted.webhook is None else WebhookRequest(url=wanted.webhook),
        priority="low" if policy.lowPriority else "normal",
        queue_ttl=None if policy.ttl is None else policy.ttl / 1000,
        execution_timeout=None if policy.executionTimeout is None else policy.executionTimeout / 1000,
    )


def state(view: JobView) -> str:
    """Return a job's state in RunPod's words."""
    if view.error is not None and view.error.code == ExecutionTimeout.code:
        return "TIMED_OUT"
    return _STATES.get(view.status, "IN_PROGRESS")


def answer(view: JobView) -> dict[str, Any]:
    """Return a job as `/run`, `/runsync`, `/status` and `/cancel` do; the output of a job is an object."""
    found: dict[str, Any] = {"id": view.id, "status": state(view)}
    metrics = view.metrics or {}
    if "queue_ms" in metrics:
        found["delayTime"] = round(metrics["queue_ms"])
    if view.started_at is not None and view.completed_at is not None:
        found["executionTime"] = round((view.completed_at - view.started_at).total_seconds() * 1000)
    if view.attempts:
        found["workerId"] = view.attempts[-1].worker
    if view.status is Status.SUCCEEDED:
        found["output"] = output(view)
    if view.error is not None:
        found["error"] = f"{view.error.code}: {view.error.detail}"
    return found


def output(view: JobView) -> dict[str, Any]:
    """Return the parts that a result has: `text`, `json`, and `artifacts` with their links."""
    said = view.output.model_dump(mode="json", by_alias=True) if view.output else {}
    found = {name: value for name, value in said.items() if value is not None}
    if view.artifacts:
        found["artifacts"] = [artifact.model_dump(mode="json") for artifact in view.artifacts]
    return found


def pieces(view: JobView, events: Iterable[JobEvent], sent: int) -> tuple[list[dict[str, Any]], int]:
    """Return the pieces of a job's stream after the first `sent` characters, and the new number.

    A result without a text is one piece, which counts as one character.
    """
    unsent = UnsentText(sent)
    found = [piece for event in events if (piece := unsent.delta(event))]
    text = None if view.output is None else view.output.text
    if view.status is Status.SUCCEEDED and text is None:
        return ([], sent) if sent else ([{"output": output(view)}], 1)
    if text is not None and (rest := unsent.rest(text)):
        found.append(rest)
    return [{"output": piece} for piece in found], unsent.sent_chars


def health(own: OwnJobs) -> dict[str, Any]:
    """Return a tenant's jobs of a model and the workers; ended jobs are not counted.

    A worker counts as running where it holds a job of the tenant: those of other tenants are not shown.
    """
    busy = min(own.busy, own.workers)
    workers = {"idle": own.workers - busy, "running": busy, "ready": own.workers - busy}
    none = dict.fromkeys(("initializing", "throttled", "unhealthy"), 0)
    jobs = {"inQueue": own.queued, "inProgress": own.running}
    return {"jobs": {"completed": 0, "failed": 0, "retried": 0, **jobs}, "workers": {**workers, **none}}
