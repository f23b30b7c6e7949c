"""Between Redis' fields and our values: what the scripts store, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.jobs import Artifact, Claim, Delivery, Job, JobKey, Phase, Progress, State, Submission, Webhook
from penstock.reports import ErrorReport

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
        own_done=int(record.get("own_done") or 0),
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
        more=row["more"],
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a queue works, seen from one of its jobs."""

    #: How long a job of this one's model takes lately; None before the first has succeeded.
    speed_s: float | None
    #: The same for the mix of jobs that wait.
    mean_s: float | None
    slots: int
    running: int
    paused: bool

    def wait_and_run_s(self, position: int) -> float | None:
        """Estimate the seconds until the job at this place ends; None where there is nothing to tell it from."""
        if self.speed_s is None or self.slots <= 0 or self.paused:
            return None
        # Slots that are taken come free one after the other, the first half a step from now.
        ahead = position - max(0, self.slots - self.running)
        return self.speed_s + (self.mean_s or self.speed_s) * max(0.0, ahead - 0.5) / self.slots


def pace_of(row: Sequence[Any]) -> Pace:
    """Return what the scripts' `pace` says."""
    speed_us, mean_us, slots, running, paused = row
    return Pace(seconds(speed_us), seconds(mean_us), slots, running, bool(paused))


def eta_s(job: Job, at: float, position: int | None, pace: Pace) -> float | None:
    """Estimate the seconds until a job ends: from its attempt's own progress, else from its model's recent speed."""
    if job.state is State.RUNNING and job.started_s is not None:
        elapsed, total = at - job.started_s, job.progress.total
        if total and job.own_done:
            return elapsed * max(0, total - job.own_done) / job.own_done
        # One that takes longer than others did without having counted anything may take any time.
        return pace.speed_s - elapsed if pace.speed_s is not None and elapsed < pace.speed_s else None
    return None if position is None else pace.wait_and_run_s(position)


def view_of(
    flat: Sequence[str], now_us: str, rank: int | None, pace: Sequence[Any], problem: str | Sequence[str] | None
) -> Job:
    """Return the job that the scripts' `view` describes: with its place in the queue, an estimate, and why it waits."""
    job = job_of(fields(flat))
    position = rank + 1 if rank is not None else None
    left_s = eta_s(job, int(now_us) / MICRO, position, pace_of(pace))
    return replace(job, queue_position=position, eta_s=left_s, model_problem=_model_problem(problem))


def _model_problem(told: str | Sequence[str] | None) -> str | None:
    """Return what the scripts' `problem_of` says in words."""
    if told is None or isinstance(told, str):
        return told
    since = datetime.fromtimestamp(int(told[0]) // MICRO, UTC)
    return f"no worker serves it any more, since {since:%Y-%m-%dT%H:%M:%SZ}"


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
            "webhook": Webhook(hook["url"], tuple(hook["events"]), hook.get("urls", {})) if hook else None,
        }
    )


def dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def us(seconds: float) -> int:
    return round(seconds * MICRO)
