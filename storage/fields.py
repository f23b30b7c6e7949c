"""Between Redis' fields and our values: what the scripts store, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import ErrorReport
from penstock.jobs import Artifact, Claim, Delivery, Job, JobKey, Phase, Progress, State, Submission, Webhook

#: Redis' times are in microseconds.
MICRO = 1_000_000


def seconds(microseconds: str | int | None) -> float | None:
    """Return Redis' microseconds as seconds; None for an empty field."""
    return int(microseconds) / MICRO if microseconds not in (None, "") else None


def fields(flat: Sequence[Any]) -> dict[str, Any]:
    """Return the hash behind a flat reply."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def job_of(record: Mapping[str, str]) -> Job:
    """Return the job that a record's fields describe."""
    submission = submission_of(json.loads(record["submission"]))
    state = State(record["state"])
    completed = seconds(record.get("completed_us"))
    retention = int(record["retention_us"]) / MICRO
    return Job(
        submission=submission,
        state=state,
        created_s=int(record["created_us"]) / MICRO,
        cancel_requested=record.get("cancel") == "1",
        phase=Phase(record["phase"]),
        attempt=int(record["attempt"]),
        crashes=int(record["crashes"]),
        fence=int(record["fence"]),
        progress=_progress(record),
        started_s=seconds(record.get("started_us")),
        completed_s=completed,
        due_s=seconds(record.get("due_us")) if state is State.DELAYED else None,
        expires_s=completed + retention if completed is not None else None,
        text=record.get("text") or None,
        data=json.loads(record["data"]) if record.get("data") else None,
        artifacts=tuple(Artifact(**row) for row in json.loads(record.get("artifacts") or "[]")),
        error=ErrorReport.from_json(json.loads(record["error"])) if record.get("error") else None,
        metrics=json.loads(record.get("metrics") or "{}"),
        delivery=Delivery(record["delivery"]),
        revision=int(record["revision"]),
    )


def claim_of(row: Mapping[str, Any]) -> Claim:
    return Claim(
        submission=submission_of(json.loads(row["submission"])),
        attempt=int(row["attempt"]),
        crashes=int(row["crashes"]),
        fence=int(row["fence"]),
        claimed_s=int(row["claimed_us"]) / MICRO,
        lease_s=int(row["lease_us"]) / MICRO,
        last_chance=row["last_chance"],
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a queue works: a job's recent seconds (None = unknown), the workers' slots, and how many are taken."""

    speed_s: float | None
    slots: int
    running: int


def eta_s(job: Job, at: float, position: int | None, pace: Pace) -> float | None:
    """Estimate the seconds until a job ends: from its own progress, else from its model's recent speed."""
    if job.state is State.RUNNING and job.started_s is not None:
        elapsed, progress = at - job.started_s, job.progress
        if progress.total and progress.done:
            return elapsed * (progress.total - progress.done) / progress.done
        return max(0.0, pace.speed_s - elapsed) if pace.speed_s is not None else None
    if position is None or pace.speed_s is None or pace.slots <= 0:
        return None
    # Slots that are taken come free one after the other, the first half a step from now.
    ahead = position - max(0, pace.slots - pace.running)
    return pace.speed_s * (1 + max(0.0, ahead - 0.5) / pace.slots)


def _progress(record: Mapping[str, str]) -> Progress:
    return Progress(
        done=int(record.get("done") or 0),
        total=int(record["total"]) if record.get("total") else None,
        unit=record.get("unit") or "prompts",
        message=record.get("message") or None,
    )


def submission_to_json(submission: Submission) -> dict[str, Any]:
    return {**asdict(submission), "input": dict(submission.input), "metadata": dict(submission.metadata)}


def submission_of(data: dict[str, Any]) -> Submission:
    hook = data["webhook"]
    return Submission(
        **{
            **data,
            "key": JobKey(**data["key"]),
            "webhook": Webhook(hook["url"], tuple(hook["events"])) if hook else None,
        }
    )


def dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def us(seconds: float) -> int:
    return round(seconds * MICRO)
