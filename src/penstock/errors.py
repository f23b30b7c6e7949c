"""One tree of errors. It answers two questions: whose fault is it, and does retrying help?

* PenstockError
  * RequestError        the caller's request; refused before a job exists
    · Unauthorized, InsufficientScope
    · MalformedBody, BodyTimeout, UnsupportedContentType, InvalidRequest, ContextExceeded, HostRefused, OriginRefused,
      LinkRefused
    · UnknownModel, ModelNotServed, ModelUnfit, UnknownQueue, UnknownJob, UnknownBatch, BatchGone, BatchClosed,
      UnknownArtifact, UnknownUpload, UnknownDelivery, UnknownEndpoint, JobGone, EventsNotAwaited
    · PayloadTooLarge, IdempotencyMismatch, StateConflict, ResultNotReady, TooManyJobs,
      TooManyRequests, ClientLeft
  * InputError          the job's data; the job fails and is never retried
    · MediaNotFound, MediaRefused, MediaTooLarge, MediaUnreadable, MediaChanged, MissingBands, InvalidInput,
      TensorsRefused
  * ServiceError        ours, or the machinery's; retried where `retryable`
    · RedisUnavailable, ObjectStoreUnavailable, EventQueueUnavailable, QueueFull, QueueDraining, FetchFailed, Unreached,
      OutOfMemory, OutOfSpace, DeviceLost, ModelUnavailable, ProcessorFailed, NotReady, Overloaded, WaitOver
    · ExecutionTimeout, WorkerLost, QueueExpired   (written by the keeper, not raised)
  * ConfigError         the operator's; stops the start
  * ObjectNotFound, ObjectExists                   answers of an object store
  * Interruption        not failures: what ends an attempt from outside
    · Canceled, Fenced, Drained

A class's docstring is its title; `detail` is the sentence for this occurrence. `HTTP status` is one table in
`penstock.api.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.reports import ErrorReport, Issue, with_places


class PenstockError(Exception):
    """Something went wrong inside the service."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str | None = None, *, errors: Sequence[Issue] = (), retry_after_s: float | None = None
    ) -> None:
        self.title = (type(self).__doc__ or "").strip()
        self.detail = detail or self.title
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    def __str__(self) -> str:
        """Return the sentence and the places that it is about."""
        return with_places(self.detail, self.errors)

    def report(self) -> ErrorReport:
        """Return what may be told to the caller."""
        return ErrorReport(self.code, self.title, self.detail, self.retryable, self.errors)


class RequestError(PenstockError):
    """The request was refused."""

    code = "request_refused"


class Unauthorized(RequestError):
    """The request has no valid API key."""

    code = "unauthorized"


class InsufficientScope(RequestError):
    """The API key is not for this."""

    code = "insufficient_scope"


class MalformedBody(RequestError):
    """The body is not what its content type says."""

    code = "malformed_body"


class BodyTimeout(RequestError):
    """The body stopped coming."""

    code = "body_timeout"
    retryable = True


class UnsupportedContentType(RequestError):
    """The body's content type is not accepted here."""

    code = "unsupported_content_type"


class InvalidRequest(RequestError):
    """The request does not fit its schema."""

    code = "invalid_request"


class ContextExceeded(InvalidRequest):
    """A text is longer than the model takes."""

    code = "context_length_exceeded"


class UnknownModel(RequestError):
    """There is no such model."""

    code = "unknown_model"


class ModelNotServed(UnknownModel):
    """There is no such model."""


class ModelUnfit(UnknownModel):
    """The model does not do this."""

    code = "model_unfit"


class UnknownQueue(RequestError):
    """There is no such queue."""

    code = "unknown_queue"


class UnknownJob(RequestError):
    """There is no such job."""

    code = "unknown_job"


class UnknownArtifact(RequestError):
    """The job has no such artifact."""

    code = "unknown_artifact"


class UnknownDelivery(RequestError):
    """There is no such delivery."""

    code = "unknown_delivery"


class UnknownEndpoint(RequestError):
    """There is no such webhook endpoint."""

    code = "unknown_endpoint"


class UnknownUpload(RequestError):
    """There is no such upload."""

    code = "unknown_upload"


class JobGone(RequestError):
    """The job is over and its record was purged."""

    code = "job_gone"


class UnknownBatch(RequestError):
    """There is no such batch."""

    code = "unknown_batch"


class BatchGone(RequestError):
    """The batch is over and its record was purged."""

    code = "batch_gone"


class BatchClosed(RequestError):
    """The batch takes no more jobs."""

    code = "batch_closed"


class HostRefused(RequestError):
    """The service is not reached under this host name."""

    code = "host_refused"


class OriginRefused(RequestError):
    """A page of another origin may not change anything here."""

    code = "origin_refused"


class LinkRefused(RequestError):
    """The link is not valid, or no longer."""

    code = "link_refused"


class EventsNotAwaited(RequestError):
    """No drop rule waits for events here."""

    code = "events_not_awaited"


class PayloadTooLarge(RequestError):
    """The body is larger than the limit."""

    code = "payload_too_large"


class IdempotencyMismatch(RequestError):
    """The same id or key was used before with another body."""

    code = "idempotency_mismatch"


class StateConflict(RequestError):
    """The job's state does not allow this."""

    code = "state_conflict"


class ResultNotReady(StateConflict):
    """The job is not over: it has no results yet."""

    code = "result_not_ready"


class TooManyJobs(RequestError):
    """The tenant has reached its limit of jobs."""

    code = "too_many_jobs"
    retryable = True


class TooManyRequests(RequestError):
    """The tenant submits faster than it may."""

    code = "too_many_requests"
    retryable = True


class ClientLeft(RequestError):
    """The client did not wait for the answer."""

    code = "client_left"


class InputError(PenstockError):
    """The input cannot be processed."""

    code = "invalid_input"


class InvalidInput(InputError):
    """The input does not fit the model."""


class MediaNotFound(InputError):
    """The media was not found."""

    code = "media_not_found"


class MediaRefused(InputError):
    """The service may not fetch this media."""

    code = "media_refused"


class MediaTooLarge(InputError):
    """The media is larger than the model's limit."""

    code = "media_too_large"


class MediaUnreadable(InputError):
    """The media cannot be read as what it claims to be."""

    code = "media_unreadable"


class MediaChanged(InputError):
    """The media changed after the job was submitted."""

    code = "media_changed"


class MissingBands(InputError):
    """The scene lacks bands that the model needs."""

    code = "missing_bands"


class TensorsRefused(InputError):
    """The tenant may not send raw tensors."""

    code = "tensors_refused"


class ServiceError(PenstockError):
    """The service could not do its part."""

    code = "service_error"
    retryable = True


class RedisUnavailable(ServiceError):
    """The job store does not answer."""

    code = "redis_unavailable"


class ObjectStoreUnavailable(ServiceError):
    """The object store does not answer."""

    code = "object_store_unavailable"


class EventQueueUnavailable(ServiceError):
    """The queue of bucket events does not answer."""

    code = "event_queue_unavailable"


class QueueFull(ServiceError):
    """The queue is full."""

    code = "queue_full"


class QueueDraining(ServiceError):
    """The queue accepts no new jobs."""

    code = "queue_draining"


class FetchFailed(ServiceError):
    """The media could not be fetched."""

    code = "fetch_failed"


class Unreached(FetchFailed):
    """The media could not be fetched."""

    #: Its `detail` says why: only of a host that the operator allowed, others tell the same whatever happened.


class OutOfMemory(ServiceError):
    """The device ran out of memory."""

    code = "out_of_memory"


class OutOfSpace(ServiceError):
    """The worker's disk is full."""

    code = "out_of_space"


class DeviceLost(ServiceError):
    """The device stopped working."""

    code = "device_lost"


class ModelUnavailable(ServiceError):
    """The model could not be loaded."""

    code = "model_unavailable"
    retryable = False


class ProcessorFailed(ServiceError):
    """The model's processor or network failed on this input."""

    code = "processor_failed"
    retryable = False


class NotReady(ServiceError):
    """The service is not ready."""

    code = "not_ready"


class Overloaded(ServiceError):
    """The service has more requests than it can answer."""

    code = "overloaded"


class WaitOver(ServiceError):
    """The job takes longer than a request is held open."""

    code = "wait_over"
    retryable = False


class ExecutionTimeout(ServiceError):
    """The job ran longer than its execution timeout."""

    code = "execution_timeout"
    retryable = False


class WorkerLost(ServiceError):
    """The job's worker died too often while running it."""

    code = "worker_lost"
    retryable = False


class QueueExpired(ServiceError):
    """The job waited longer than its queue TTL."""

    code = "queue_expired"
    retryable = False


class ConfigError(PenstockError):
    """The configuration is not usable."""

    code = "config_error"


class ObjectNotFound(PenstockError):
    """There is no such object."""

    code = "object_not_found"


class ObjectExists(PenstockError):
    """The object exists already."""

    code = "object_exists"


class Interruption(PenstockError):
    """The attempt was ended from outside."""

    code = "interrupted"


class Canceled(Interruption):
    """The job was canceled."""

    code = "canceled"


class Fenced(Interruption):
    """The attempt's lease was lost: another one may be running."""

    code = "fenced"


class Drained(Interruption):
    """The worker is shutting down."""

    code = "drained"
