"""The reasons for which the job store refuses a submission, as errors."""

from __future__ import annotations

from typing import Any

from penstock.errors import (
    BatchClosed,
    DeviceQuotaExceeded,
    InvalidRequest,
    Issue,
    JobGone,
    PenstockError,
    QueueDraining,
    QueueFull,
    StorageQuotaExceeded,
    TooManyJobs,
    UnknownUpstream,
)
from penstock.jobs import Submission
from penstock.storage.redis.fields import MICRO

#: Longest `Retry-After` in seconds.
MAX_PATIENCE_S = 600.0


def refusal(submission: Submission, reply: list[Any]) -> PenstockError:
    """Return the error of a submission that `submit.lua` refused with this reply."""
    match reply[0]:
        case "gone":
            return JobGone(f"job {submission.key.id} has ended, and was purged at a request or after its retention")
        case "closed":
            return BatchClosed()
        case "draining":
            return QueueDraining(f"queue {submission.queue} is draining and accepts no new jobs")
        case "tenant":
            # The next of the tenant's own jobs that ends makes room.
            return TooManyJobs(f"{reply[1]} jobs are waiting or running", retry_after_s=_patience_s(1, *reply[2:]))
        case "device":
            return _device_quota_exceeded(int(reply[1]), int(reply[2]))
        case "kept":
            return StorageQuotaExceeded(
                f"the tenant keeps {reply[1]} bytes: delete jobs or batches; uploads go with time"
            )
        case "upstream":
            return UnknownUpstream(f"there is no job {reply[1]}", errors=[Issue("/after", "there is no such job")])
        case "followers":
            detail = f"as many jobs follow job {reply[1]} as may follow one (max_followers)"
            return InvalidRequest(detail, errors=[Issue("/after", detail)])
        case "depth":
            detail = "the chain of jobs up to this one is longer than allowed (max_chain_depth)"
            return InvalidRequest(detail, errors=[Issue("/after", detail)])
        case _:
            patience_s = _patience_s(int(reply[1]), *reply[2:])
            return QueueFull(f"{reply[1]} jobs are waiting in queue {submission.queue}", retry_after_s=patience_s)


def _device_quota_exceeded(used_us: int, left_us: int) -> DeviceQuotaExceeded:
    """Return the error of a tenant whose device time of today is used; it ends with the day."""
    detail = f"the jobs that ended today used {used_us / MICRO:.1f} device seconds; the day ends at midnight UTC"
    return DeviceQuotaExceeded(detail, retry_after_s=max(1.0, left_us / MICRO))


def _patience_s(jobs: int, speed_us: str | None, slots: int) -> float:
    """Return the seconds of so many jobs at the recent speed (one second each if it is unknown)."""
    return min(MAX_PATIENCE_S, max(1.0, jobs * int(speed_us or MICRO) / MICRO / max(1, slots)))
