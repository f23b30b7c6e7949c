"""Jobs: submit, read, wait, list, cancel, retry, delete."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Annotated, Any, TypeVar
from zlib import crc32

import structlog
import uuid_utils
from fastapi import APIRouter, Header, Query, Request, Response

from penstock.api import dry_runs
from penstock.api.auth import Key, Tenant, is_job_id, job_key
from penstock.api.body import read_model, require_type
from penstock.api.connection import turn
from penstock.api.errors import problems
from penstock.api.forms import FORM
from penstock.api.idempotency import id_from
from penstock.api.job_forms import form_body, is_form, read_job_form
from penstock.api.query import FILTERS, JobQuery
from penstock.api.schemas.estimates import EstimateView
from penstock.api.schemas.jobs import JobList, JobView
from penstock.api.services import Api, Services
from penstock.api.submissions import examine_large, require_fitting, require_room, submission
from penstock.api.tracing import joins, traceparent
from penstock.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    JobGone,
    MediaNotFound,
    NotReady,
    Overloaded,
    PenstockError,
    TooManyJobs,
    UnknownJob,
)
from penstock.intake.submissions import Origin, servable
from penstock.jobs import Job, JobKey, State, Status, Submission
from penstock.requests import JobRequest
from penstock.storage.deadline import request_deadline, time_to_store
from penstock.storage.journal import journal, usage_ledger
from penstock.storage.redis import listing, records
from penstock.storage.redis.changes import Watch
from penstock.storage.redis.listing import Page
from penstock.storage.redis.records import Submitted
from penstock.storage.redis.usage import job_usage

T = TypeVar("T")
log = structlog.get_logger(__name__)

#: Longest wait of a request in seconds: proxies (nginx, AWS) end a request that is silent for 60 s.
MAX_WAIT_S = 55.0
#: Largest `Retry-After` of a job, in seconds.
MAX_RETRY_AFTER_S = 30
#: Pages of 1,000 jobs that one list request reads while none of the jobs match.
MAX_PAGES = 10

_PREFER_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*(\"?)(\d{1,6}(?:\.\d{1,6})?)\1\s*(?=$|[,;])", re.IGNORECASE)
#: UUIDv5 namespace of job ids from an Idempotency-Key and the tenant.
_NAMESPACE = uuid.UUID("6d3c1f0e-6c0a-5d0e-9a53-5f1f3a1f6a52")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))
_ENDED = "The job ended within `Prefer: wait=n`, or before the request was repeated."
_SUBMITTING = problems(400, 403, 408, 410, 413, 415, 422, 429) | {200: {"model": JobView, "description": _ENDED}}
_POSTING = _SUBMITTING | {200: {"model": JobView | EstimateView, "description": f"{_ENDED} Or a dry run's estimate."}}
_READ: dict[int | str, dict[str, Any]] = problems(404, 410, 422) | {
    304: {"description": "The job is unchanged since `If-None-Match`."}
}
_RETRIED: dict[int | str, dict[str, Any]] = {
    200: {"model": JobView, "description": "An earlier request created the retry, and it has ended."}
}

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=n`: wait for the end of the job, at most n seconds (55 at most; fractions are rounded up). "
        "An invalid preference is ignored (RFC 7240); `Preference-Applied` reports the applied one."
    ),
]
DryRun = Annotated[bool, Query(description="Check the request and answer 200 with an estimate; create no job.")]
Wait = Annotated[float, Query(ge=0, description="Seconds to wait for the end (55 at most).")]


@router.post("", status_code=202, response_model=JobView, openapi_extra=form_body(JobRequest), responses=_POSTING)
async def submit_job(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
    prefer: Prefer = None,
    dry_run: DryRun = False,
) -> JobView | Response:
    """Submit a job: 202, or 200 where it has already ended. With an `Idempotency-Key`, safe to repeat.

    The body is JSON, or a form that carries the files too: the job's fields as texts (`input` as JSON), and each file
    under the name of the field of the input that it fills (`scene`; `scene.file` inside another field; `images[]` for
    a list). A form's files together may have the size of one upload; send larger ones as uploads.
    """
    if dry_run:
        return await dry_runs.dry_run(request, api, new_key(tenant, None))
    key = new_key(tenant, idempotency_key)
    origin = Origin(traceparent(request.headers), idempotency_key)
    return await _answer_submission(request, response, api, key, origin, prefer)


@router.put("/{job_id}", status_code=202, openapi_extra=form_body(JobRequest), responses=_SUBMITTING)
async def put_job(
    job_id: str, request: Request, response: Response, api: Api, tenant: Tenant, prefer: Prefer = None
) -> JobView:
    """Submit a job under an id of your own (a UUID). Repeating the same request finds the same job.

    The id serves as idempotency key, so an `Idempotency-Key` header is rejected.
    """
    if not is_job_id(job_id):
        raise InvalidRequest("the job id is not valid; send a UUID")
    if "idempotency-key" in request.headers:
        raise InvalidRequest("the id in the path already serves as idempotency key; remove the Idempotency-Key header")
    origin = Origin(traceparent(request.headers))
    return await _answer_submission(request, response, api, job_key(tenant, job_id), origin, prefer)


@router.head("/{job_id}", response_model=JobView, include_in_schema=False)
@router.get("/{job_id}", response_model=JobView, responses=_READ)
async def read_job(
    key: Key, response: Response, api: Api, wait: Wait = 0, if_none_match: Annotated[str | None, Header()] = None
) -> JobView | Response:
    """Return a job; with `wait`, when it has ended. 304 where it is unchanged since `If-None-Match`."""
    job = await wait_for_end(api, key, wait) if wait else await api.journal.run(journal.read(key))
    response.headers["ETag"] = etag = _etag(job)
    response.headers["Cache-Control"] = "no-cache"
    if if_none_match and _matches(if_none_match, etag):
        return Response(status_code=304, headers=dict(response.headers))
    made_by = await api.provenance(job)
    if made_by is not None and "environment" in made_by and "software" not in made_by:
        del response.headers["ETag"]  # the next answer may tell more
    return api.view(await api.whole(job), provenance=made_by, followers=list(job.followers))


@router.get("", responses=problems(422), openapi_extra=FILTERS)
async def list_jobs(
    api: Api,
    tenant: Tenant,
    query: Annotated[JobQuery, Query()],
) -> JobList:
    """List jobs, newest first. `metadata.KEY=VALUE`, which may be repeated, filters by metadata.

    Jobs submitted meanwhile do not change later pages. One request reads at most 10,000 jobs and returns at most about
    4 MB: a page may be short or empty and still have a `next_cursor`. Unknown parameters are rejected.
    """
    page = await page_of(api, tenant, query)
    return JobList(jobs=[api.view(job) for job in page.jobs], next_cursor=page.next_cursor)


@router.post("/{job_id}/cancel", responses=problems(404, 410) | {202: {"model": JobView}})
async def cancel_job(key: Key, response: Response, api: Api) -> JobView:
    """Cancel a job: 200 when it is over, 202 while its worker is being notified. Safe to repeat.

    After a 202 the job ends as canceled, unless its outcome was already stored.
    """
    job = await api.journal.run(journal.cancel(key))
    response.status_code = 200 if job.status.terminal else 202
    return api.view(job)


@router.post("/{job_id}/retry", status_code=202, responses=problems(403, 404, 409, 410, 422, 429) | _RETRIED)
async def retry_job(
    key: Key, response: Response, api: Api, idempotency_key: Annotated[str | None, Header()] = None
) -> JobView:
    """Submit the request of a failed, expired or canceled job as a new job (`retry_of`). The old job is unchanged.

    Safe to repeat: a job has one retry, unless each call has its own `Idempotency-Key`. 200 where an earlier call
    created the retry and it has ended.
    """
    new = retry_key(key) if idempotency_key is None else new_key(key.tenant, idempotency_key)
    submitted = await api.journal.run(journal.retry(key, new, api.limits))
    announce(api, submitted)
    _set_headers(response, api, submitted)
    return api.view(submitted.job)


@router.delete("/{job_id}", status_code=204, responses=problems(404, 409) | {202: {"model": JobView}})
async def delete_job(key: Key, api: Api) -> Response:
    """Delete a job and its artifacts: 204. A running job is canceled (202) and deleted when it ends.

    409 where jobs that have not ended wait for the job, or read its artifacts.
    """
    try:
        job = await api.journal.run(journal.cancel(key, delete=True))
        if not job.status.terminal:
            return Response(api.view(job).model_dump_json(by_alias=True), 202, media_type="application/json")
        ended = await api.jobs.run(job_usage([key]))
        # Objects first: after a crash in between, the record still leads to the remaining objects.
        steps = await asyncio.to_thread(usage_ledger.delete_objects, api.objects, [key], ended)
        await api.jobs.run(records.delete(key))
        for step in steps:
            await api.jobs.run(usage_ledger.fold(step))
    except JobGone:
        pass
    return Response(status_code=204)


async def wait_for_end(api: Services, key: JobKey, wait_s: float) -> Job:
    """Return the job when it has ended or after `wait_s` (55 s at most); `NotReady` when the server stops."""
    async with api.jobs.changes(key) as changes:
        return await _end_of(api, await api.journal.run(journal.read(key)), changes, wait_s)


async def submit_and_wait(
    api: Services, key: JobKey, submitting: Awaitable[Submitted], wait_s: float | None
) -> Submitted:
    """Return a submission, with the job at its end or after `wait_s` (55 s at most); None: do not wait.

    Raises `NotReady` when the server stops. The job's changes are watched from before the submission.
    """
    if wait_s is None:
        return await submitting
    async with api.jobs.changes(key) as changes:
        submitted = await submitting
        return replace(submitted, job=await _end_of(api, submitted.job, changes, wait_s))


async def _end_of(api: Services, job: Job, changes: Watch, wait_s: float) -> Job:
    deadline = time.monotonic() + min(wait_s, MAX_WAIT_S)
    while not job.status.terminal and (left_s := deadline - time.monotonic()) > 0:
        await _woken(changes, left_s)
        job = await api.journal.run(journal.read(job.key))
    return job


async def wait_until(api: Services, name: str, wait_s: float, read: Callable[[], Awaitable[tuple[T, bool]]]) -> T:
    """Return the value of `read` when it is final or after `wait_s` (55 s at most).

    Calls `read` again after each change of the batch or delivery `name`. Raises `NotReady` when the server stops.
    """
    deadline = time.monotonic() + min(wait_s, MAX_WAIT_S)
    async with api.jobs.changes(name) as changes:
        while True:
            found, over = await read()
            left_s = deadline - time.monotonic()
            if over or left_s <= 0:
                return found
            await _woken(changes, left_s)


async def _woken(watch: Watch, timeout_s: float) -> None:
    try:
        await watch.wait(timeout_s)
    except asyncio.CancelledError as error:  # the server stops and cancels open requests
        raise NotReady("the service is stopping", retry_after_s=1) from error


async def page_of(api: Services, tenant: str, query: JobQuery, statuses: Collection[Status] | None = None) -> Page:
    """Return the next matching jobs; `statuses` replaces the query's `status`.

    Short reads leave Redis free for other requests in between.
    """
    page = Page((), query.cursor)
    with request_deadline():
        for _ in range(MAX_PAGES):
            page = await api.jobs.run(listing.list_jobs(
                tenant, cursor=page.next_cursor, limit=query.limit, status=statuses or query.status, model=query.model,
                created_after_s=query.after_s, created_before_s=query.before_s,
                metadata=query.metadata, batch_id=query.batch_id,
            ))  # fmt: skip
            if page.jobs or page.next_cursor is None:
                break
    return page


async def _answer_submission(
    request: Request, response: Response, api: Services, key: JobKey, origin: Origin, prefer: str | None
) -> JobView:
    repeatable = request.method == "PUT" or origin.idempotency_key is not None
    require_type(request.headers.get("content-type", ""), "application/json", FORM)
    if is_form(request):
        submitting = _submit_form(request, api, key, repeatable=repeatable, origin=origin)
    else:
        body = await read_model(request, api, JobRequest)
        submitting = submit(request, api, key, body.value, body.fingerprint, repeatable=repeatable, origin=origin)
    wait_s = preferred_wait(prefer)
    submitted = await submit_and_wait(api, key, submitting, wait_s)
    response.headers.update(waited(wait_s))
    _set_headers(response, api, submitted)
    return api.view(submitted.job)


async def _submit_form(request: Request, api: Services, key: JobKey, *, repeatable: bool, origin: Origin) -> Submitted:
    """Store the files of a form whose fields fit the model, and submit its job."""
    refusal: PenstockError | None = None
    async with read_job_form(request, api, key) as form:
        try:
            wanted = form.request.model
            form = form.fitted(servable(wanted, await api.models.read(wanted), key.id).input_schema)
            await require_fitting(request, api, key, form.request)
            if form.files:
                size_bytes = sum(file.size_bytes for file in form.files)
                await require_room(api, key.tenant, form.files[0].upload_id, size_bytes)
        except PenstockError as error:
            if not repeatable:
                raise
            refusal = error  # the job may exist
        else:
            await asyncio.to_thread(form.store, api.objects, key.tenant)
    try:
        return await submit(request, api, key, form.request, form.fingerprint, repeatable=repeatable, origin=origin)
    except MediaNotFound as error:
        raise refusal or error from None


def _set_headers(response: Response, api: Services, submitted: Submitted) -> None:
    """Set the headers; status 200 for a job that has ended."""
    response.headers.update(submission_headers(api, submitted))
    if submitted.job.status.terminal:
        response.status_code = 200


def submission_headers(api: Services, submitted: Submitted) -> dict[str, str]:
    """Return `Location`, `Idempotency-Replayed` and `Retry-After` as the response needs them."""
    job = submitted.job
    headers = {"Location": f"{api.settings.base_url}/v1/jobs/{job.key.id}"}
    if not submitted.created:
        headers["Idempotency-Replayed"] = "true"
    if not job.status.terminal:
        headers["Retry-After"] = str(_retry_after_s(job))
    return headers


def new_key(tenant: str, idempotency_key: str | None) -> JobKey:
    """Return the key of a request's job: the same for each repetition under an `Idempotency-Key`."""
    job_id = str(uuid_utils.uuid7()) if idempotency_key is None else id_from(_NAMESPACE, tenant, idempotency_key)
    return JobKey(tenant, job_id)


async def submit(
    request: Request, api: Services, key: JobKey, job_request: JobRequest, identity: str, *, repeatable: bool,
    origin: Origin, completed: Callable[[Submission], Submission] = lambda checked: checked,
) -> Submitted:  # fmt: skip
    """Submit a job, within the concurrency limit. `identity` is the fingerprint of the request as the client sent it.

    `completed` returns the checked submission with what another interface stores with a job.
    A repeatable request finds its existing job. Raises `IdempotencyMismatch` where the fingerprint of the existing job
    differs, and the errors of `submission` and of the job store.
    """
    joins(request, key)
    examination = await examine_large(request, api, key, job_request)
    async with turn(request, api.concurrency, key.tenant):
        try:
            if (refusal := api.refusals.recent(key.tenant)) is not None:
                raise refusal
            checked = await submission(
                api, key, job_request, fingerprint=identity, origin=origin, examination=examination
            )
        except PenstockError:
            # A repeated request finds its job even where it would be refused now: its upload has expired, for example.
            # A reserved job was never acknowledged to a client.
            existing = await _existing(api, key) if repeatable else None
            if existing is None or existing.state is State.RESERVED:
                raise
            if existing.submission.fingerprint != identity:
                raise IdempotencyMismatch(_mismatch(key, origin)) from None
            return Submitted(existing, created=False)
        try:
            submitted = await submit_checked(api, completed(checked))
        except IdempotencyMismatch as error:
            raise IdempotencyMismatch(_mismatch(key, origin)) from error
    # A random id that already exists was written by our own call, whose reply was lost: report the job as created.
    return submitted if submitted.created or repeatable else replace(submitted, created=True)


async def submit_checked(api: Services, checked: Submission) -> Submitted:
    """Submit a checked submission; remember the refusal of a tenant at its job limit.

    Raises `Overloaded` where the client has waited too long in line: no job was stored yet, and storing takes time.
    """
    if not time_to_store():
        await api.jobs.run(records.ping())  # a Redis that hangs is the reason
        raise Overloaded("the request waited too long for admission; try again", retry_after_s=1)
    try:
        submitted = await api.journal.run(journal.submit(checked, api.limits))
    except TooManyJobs as error:
        api.refusals.record(checked.key.tenant, error)
        raise
    announce(api, submitted)
    return submitted


def announce(api: Services, submitted: Submitted) -> None:
    """Send a hint for a submitted job, and log it where this request created it."""
    api.hints.send(submitted.job.submission.queue)
    log_submitted(submitted)


def log_submitted(submitted: Submitted) -> None:
    """Log a job that this request created."""
    if submitted.created:
        log.info("job.submitted", model=submitted.job.submission.model, **submitted.job.submission.log_ids)


def _mismatch(key: JobKey, origin: Origin) -> str:
    if origin.idempotency_key is None:
        return f"the job {key.id} was submitted before, by a request with another body; use a new id"
    return "the Idempotency-Key was used before, by a request with another body; send a new key"


async def _existing(api: Services, key: JobKey) -> Job | None:
    with suppress(UnknownJob):
        return await api.jobs.run(records.read(key))
    return None


def retry_key(key: JobKey) -> JobKey:
    """Return the key of a job's retry: the same for every call, so that two calls create one job."""
    return JobKey(key.tenant, str(uuid.uuid5(_NAMESPACE, f"retry of {key}")))


def preferred_wait(prefer: str | None) -> int | None:
    """Return the seconds of `wait=n` in a `Prefer` header, 55 at most; None without a valid one."""
    found = _PREFER_WAIT.search(prefer or "")
    return min(ceil(float(found[2])), int(MAX_WAIT_S)) if found else None


def waited(wait_s: int | None) -> dict[str, str]:
    """Return `Preference-Applied` for an applied preference."""
    return {} if wait_s is None else {"Preference-Applied": f"wait={wait_s}"}


def _retry_after_s(job: Job) -> int:
    return min(MAX_RETRY_AFTER_S, max(1, ceil(job.eta_s or 1)))


def _matches(if_none_match: str, etag: str) -> bool:
    """Compare entity tags weakly, as RFC 9110 requires for this header: `W/` is ignored."""
    known = {candidate.strip().removeprefix("W/") for candidate in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


def _etag(job: Job) -> str:
    # Weak, because the estimate changes with the clock. The creation time covers a job created again under its id.
    problem = crc32((job.model_problem or "").encode())
    return f'W/"{job.created_s:.6f}-{job.revision}-{job.queue_position or 0}-{problem:x}"'
