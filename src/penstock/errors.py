"""The tree of errors: it answers whose fault an error is, and if retrying helps.

* PenstockError
  * RequestError        the caller's request; rejected before a job exists
    · Unauthorized, InsufficientScope, HostRefused, OriginRefused, LinkRefused
    · MalformedBody, BodyTimeout, UnsupportedContentType, InvalidRequest, ContextExceeded
    · UnknownModel, ModelNotServed, ModelUnfit, UnknownQueue, UnknownWorker, UnknownJob, JobGone, UnknownUpstream,
      UnknownBatch, BatchGone, BatchClosed, UnknownArtifact, UnknownUpload, UnknownDelivery, UnknownEndpoint
    · UnknownSubscription, PayloadTooLarge, IdempotencyMismatch, StateConflict, ResultNotReady, TooManyJobs
    · EventsNotAwaited, TooManyRequests, DeviceQuotaExceeded, StorageQuotaExceeded, ClientLeft
  * InputError          the job's data; the job fails and is never retried
    · MediaNotFound, MediaRefused, MediaTooLarge, MediaUnreadable, MediaChanged, MissingBands, InvalidInput,
      TensorsRefused
  * ServiceError        the service's or the machine's; retried where `retryable`
    · JobStoreError: RedisUnavailable, RedisFull, RedisRefused, RedisFailed, RecordTooNew
    · ObjectStoreUnavailable, ObjectStoreFull, EventQueueUnavailable, QueueFull, QueueDraining, FetchFailed, Unreached,
      OutOfMemory, OutOfSpace, DeviceLost, ModelUnavailable, LoadFailed, ModelServerFailed, ModelProcessEnded,
      ProcessorFailed, NotReady, Overloaded, WaitOver
    · ExecutionTimeout, WorkerLost, QueueExpired, UpstreamFailed   (written by the keeper, not raised)
  * ConfigError         the operator's; stops the start
  * ObjectNotFound, ObjectExists                   results of an object store
  * Interruption        not failures: they end an attempt from outside
    · Canceled, Fenced, Drained

A class's docstring is its title; `detail` is the sentence for this occurrence. `penstock.api.errors` has the statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from penstock.formats import known


@dataclass(frozen=True, slots=True)
class Issue:
    """One fault in a document: a JSON pointer to its place, and a sentence."""

    pointer: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The description of an error: the same object is `job.error` and the core of a problem+json body."""

    code: str
    title: str = ""
    detail: str = ""
    retryable: bool = False
    errors: tuple[Issue, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return asdict(self) | {"errors": [asdict(issue) for issue in self.errors]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ErrorReport:
        """Rebuild a report from `to_json`'s data."""
        issues = tuple(Issue(**known(Issue, issue)) for issue in data.get("errors", ()))
        return cls(data["code"], data["title"], data["detail"], data["retryable"], issues)


def with_places(detail: str, issues: Sequence[Issue]) -> str:
    """Return an error's sentence followed by its issues; an issue that repeats its end adds only its place."""
    end = detail.rstrip(".")
    rows = [(each.pointer, "" if end.endswith(each.detail.rstrip(".")) else each.detail) for each in issues]
    named = "; ".join(": ".join(part for part in row if part) for row in rows if any(row))
    return f"{detail} ({named})" if named else detail


class PenstockError(Exception):
    """Something went wrong inside the service."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        cls.code = code or cls.code
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(
        self, detail: str | None = None, *, errors: Sequence[Issue] = (), retry_after_s: float | None = None
    ) -> None:
        self.title = (type(self).__doc__ or "").strip()
        self.detail = detail or self.title
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    def __str__(self) -> str:
        """Return the sentence, with the places of the issues."""
        return with_places(self.detail, self.errors)

    def report(self) -> ErrorReport:
        """Return the report for the caller."""
        return ErrorReport(self.code, self.title, self.detail, self.retryable, self.errors)


class RequestError(PenstockError, code="request_refused"):
    """The request was refused."""


class Unauthorized(RequestError, code="unauthorized"):
    """The request has no valid API key."""


class InsufficientScope(RequestError, code="insufficient_scope"):
    """The API key does not have the required scope."""


class MalformedBody(RequestError, code="malformed_body"):
    """The body does not match its content type."""


class BodyTimeout(RequestError, code="body_timeout", retryable=True):
    """The body did not arrive in time."""


class UnsupportedContentType(RequestError, code="unsupported_content_type"):
    """The body's content type is not accepted here."""


class InvalidRequest(RequestError, code="invalid_request"):
    """The request does not fit its schema."""


class ContextExceeded(InvalidRequest, code="context_length_exceeded"):
    """A text is longer than the model's context."""


class UnknownModel(RequestError, code="unknown_model"):
    """There is no such model."""


class ModelNotServed(UnknownModel):
    """There is no such model."""


class ModelUnfit(UnknownModel, code="model_unfit"):
    """The model does not support this."""


class UnknownQueue(RequestError, code="unknown_queue"):
    """There is no such queue."""


class UnknownWorker(RequestError, code="unknown_worker"):
    """There is no such worker, and there was none within the last hour."""


class UnknownJob(RequestError, code="unknown_job"):
    """There is no such job."""


class UnknownUpstream(InvalidRequest, code="unknown_upstream"):
    """There is no such job to wait for."""


class UnknownArtifact(RequestError, code="unknown_artifact"):
    """The job has no such artifact."""


class UnknownDelivery(RequestError, code="unknown_delivery"):
    """There is no such delivery."""


class UnknownEndpoint(RequestError, code="unknown_endpoint"):
    """There is no such webhook endpoint."""


class UnknownSubscription(RequestError, code="unknown_subscription"):
    """No subscription of this tenant has this name."""


class UnknownUpload(RequestError, code="unknown_upload"):
    """There is no such upload."""


class JobGone(RequestError, code="job_gone"):
    """The job has ended, and its record was purged: at a request, or after its retention."""


class UnknownBatch(RequestError, code="unknown_batch"):
    """There is no such batch."""


class BatchGone(RequestError, code="batch_gone"):
    """The batch has ended, and its record was purged: at a request, or after its retention."""


class BatchClosed(RequestError, code="batch_closed"):
    """The batch accepts no more jobs."""


class HostRefused(RequestError, code="host_refused"):
    """The service does not accept this host name."""


class OriginRefused(RequestError, code="origin_refused"):
    """A page of another origin may not change anything here."""


class LinkRefused(RequestError, code="link_refused"):
    """The link is not valid or has expired."""


class EventsNotAwaited(RequestError, code="events_not_awaited"):
    """No drop rule accepts events here."""


class PayloadTooLarge(RequestError, code="payload_too_large"):
    """The body is larger than the limit."""


class IdempotencyMismatch(RequestError, code="idempotency_mismatch"):
    """The same id or key was used before with another body."""


class StateConflict(RequestError, code="state_conflict"):
    """The job's state does not allow this."""


class ResultNotReady(StateConflict, code="result_not_ready"):
    """The job has not ended: it has no results yet."""


class TooManyJobs(RequestError, code="too_many_jobs", retryable=True):
    """The tenant has reached its limit of jobs."""


class TooManyRequests(RequestError, code="too_many_requests", retryable=True):
    """The tenant exceeds its rate limit."""


class DeviceQuotaExceeded(RequestError, code="device_quota_exceeded", retryable=True):
    """The jobs of the tenant that ended today have used its device seconds of a day."""


class StorageQuotaExceeded(RequestError, code="storage_quota_exceeded"):
    """The tenant keeps as many bytes as it may."""


class ClientLeft(RequestError, code="client_left"):
    """The client did not wait for the answer."""


class InputError(PenstockError, code="invalid_input"):
    """The input cannot be processed."""


class InvalidInput(InputError):
    """The input does not fit the model."""


class MediaNotFound(InputError, code="media_not_found"):
    """The media was not found."""


class MediaRefused(InputError, code="media_refused"):
    """The service may not fetch this media: see the settings allowed_hosts and s3_input_buckets."""


class MediaTooLarge(InputError, code="media_too_large"):
    """The media is larger than the model's limit."""

    @classmethod
    def beyond(cls, limit_bytes: int) -> MediaTooLarge:
        """Return the error for media of more than these bytes."""
        return cls(f"The media is larger than the limit of {limit_bytes:,} bytes.")


class MediaUnreadable(InputError, code="media_unreadable"):
    """The media cannot be read as its declared type."""


class MediaChanged(InputError, code="media_changed"):
    """The media changed after the job was submitted."""


class MissingBands(InputError, code="missing_bands"):
    """The scene lacks bands that the model needs."""


class TensorsRefused(InputError, code="tensors_refused"):
    """The tenant may not send raw tensors."""


class ServiceError(PenstockError, code="service_error", retryable=True):
    """The service could not do its part."""


class JobStoreError(ServiceError, code="job_store_error"):
    """The job store did not carry out a command."""


class RedisUnavailable(JobStoreError, code="redis_unavailable"):
    """The job store does not answer."""


class RedisFull(JobStoreError, code="redis_full"):
    """The job store cannot store more."""


class RedisRefused(JobStoreError, code="redis_refused", retryable=False):
    """The job store refuses the service."""


class RedisFailed(JobStoreError, code="redis_failed", retryable=False):
    """The service made a mistake in its use of the job store."""


class RecordTooNew(JobStoreError, code="record_too_new", retryable=False):
    """The job was stored by a newer version of the service."""


class ObjectStoreUnavailable(ServiceError, code="object_store_unavailable"):
    """The object store does not answer."""


class ObjectStoreFull(ObjectStoreUnavailable, code="object_store_full"):
    """The object store is full."""


class EventQueueUnavailable(ServiceError, code="event_queue_unavailable"):
    """The queue of bucket events does not answer."""


class QueueFull(ServiceError, code="queue_full"):
    """The queue is full."""


class QueueDraining(ServiceError, code="queue_draining"):
    """The queue accepts no new jobs."""


class FetchFailed(ServiceError, code="fetch_failed"):
    """The media could not be fetched."""


class Unreached(FetchFailed):
    """The media could not be fetched."""  # `detail` has the cause, which only allowed hosts may reveal


class OutOfMemory(ServiceError, code="out_of_memory"):
    """The device ran out of memory."""


class OutOfSpace(ServiceError, code="out_of_space"):
    """The scratch disk is full."""


class DeviceLost(ServiceError, code="device_lost"):
    """The device stopped working."""


class ModelUnavailable(ServiceError, code="model_unavailable", retryable=False):
    """The model could not be loaded."""


class LoadFailed(ModelUnavailable, code="model_load_failed", retryable=True):
    """The model's load ended its process."""

    #: The end of the load: "was ended by SIGABRT".
    how: str = ""
    #: The last lines that the load wrote.
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: str, how: str, lines: Sequence[str] = ()) -> LoadFailed:
        """Return the error of a model's load that ended in this way, with its last lines."""
        last = f"; its last lines: {' | '.join(lines)}" if lines else ""
        error = cls(f"model {model!r} could not be loaded: its load {how}{last}")
        error.how, error.lines = how, tuple(lines)
        return error


class ModelServerFailed(ServiceError, code="model_server_failed"):
    """The server that computes for the model failed or did not answer."""


class ModelProcessEnded(ServiceError, code="model_process_ended", retryable=True):
    """The process of the model ended while it computed."""


class ProcessorFailed(ServiceError, code="processor_failed", retryable=False):
    """The model's processor or network failed."""


class NotReady(ServiceError, code="not_ready"):
    """The service is not ready."""


class Overloaded(ServiceError, code="overloaded"):
    """The service has more requests than it can answer."""


class WaitOver(ServiceError, code="wait_over", retryable=False):
    """The job takes longer than a request may wait."""


class ExecutionTimeout(ServiceError, code="execution_timeout", retryable=False):
    """The job ran longer than its execution timeout."""


class WorkerLost(ServiceError, code="worker_lost", retryable=False):
    """The job's worker died too often while running it."""


class QueueExpired(ServiceError, code="queue_expired", retryable=False):
    """The job waited longer than its queue TTL."""


class UpstreamFailed(ServiceError, code="upstream_failed", retryable=False):
    """A job that this one waited for did not succeed."""


class ConfigError(PenstockError, code="config_error"):
    """The configuration is not usable."""


class ObjectNotFound(PenstockError, code="object_not_found"):
    """There is no such object."""


class ObjectExists(PenstockError, code="object_exists"):
    """The object exists already."""


class Interruption(PenstockError, code="interrupted"):
    """The attempt was ended from outside."""


class Canceled(Interruption, code="canceled"):
    """The job was canceled."""


class Fenced(Interruption, code="fenced"):
    """The attempt's lease was lost: another one may be running."""


class Drained(Interruption, code="drained"):
    """The worker is shutting down."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; empty for an error without a text."""
    return next(iter(str(error).strip().splitlines()), "")
