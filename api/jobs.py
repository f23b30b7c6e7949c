"""Jobs: submit, read, wait, list, cancel, delete."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

import uuid_utils
from fastapi import APIRouter, Header, Query, Request, Response

from penstock.api.auth import Key, Tenant, is_job_id, job_key
from penstock.api.body import documented, fingerprint, read_json, validated
from penstock.api.errors import problems
from penstock.api.schemas import JobList, JobRequest, JobView
from penstock.api.services import Api, Services
from penstock.api.submissions import submission
from penstock.errors import IdempotencyMismatch, InvalidRequest, JobGone, NotReady, UnknownJob
from penstock.jobs import Job, JobKey, State, Status
from penstock.storage import journal, records
from penstock.storage.manifests import delete_objects

#: The longest that a request is held open.
MAX_WAIT_S = 60.0
#: What `Retry-After` says at most of a job that will take longer.
MAX_RETRY_AFTER_S = 30
MAX_IDEMPOTENCY_KEY_CHARS = 255

_PREFER_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?", re.IGNORECASE)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: Job ids made from an Idempotency-Key are UUIDv5 under this and the tenant's name.
_NAMESPACE = uuid.UUID("6d3c1f0e-6c0a-5d0e-9a53-5f1f3a1f6a52")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))
_SUBMITTING = problems(400, 408, 410, 413, 415, 422, 429) | {
    200: {"model": JobView, "description": "The job ended within `Prefer: wait=n`."}
}

Prefer = Annotated[str | None, Header(description="`wait=n`: hold the answer until the job ended, at most n seconds.")]
Wait = Annotated[float, Query(ge=0, description="Seconds to wait for the job's end (60 at most).")]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job, and whether this request made it."""

    job: Job
    created: bool


@router.post("", status_code=202, openapi_extra=documented(JobRequest), responses=_SUBMITTING)
async def submit_job(
    request: Request,
    response: Response,
    api: Api,
    tenant: Tenant,
    idempotency_key: Annotated[str | None, Header()] = None,
    prefer: Prefer = None,
) -> JobView:
    """Submit a job: 202, or 200 when `Prefer: wait=n` saw it end. With an `Idempotency-Key`, safe to repeat."""
    named = idempotency_key is not None
    job_id = str(uuid_utils.uuid7()) if idempotency_key is None else _id_from(tenant, idempotency_key)
    return await _submit(request, response, api, JobKey(tenant, job_id), repeatable=named, prefer=prefer)


@router.put("/{job_id}", status_code=202, openapi_extra=documented(JobRequest), responses=_SUBMITTING)
async def put_job(
    job_id: str, request: Request, response: Response, api: Api, tenant: Tenant, prefer: Prefer = None
) -> JobView:
    """Submit a job under an id of your own (a UUID): the same body again finds the same job."""
    if not is_job_id(job_id):
        raise InvalidRequest("a job's id is a UUID")
    return await _submit(request, response, api, job_key(tenant, job_id), repeatable=True, prefer=prefer)


@router.get("/{job_id}", response_model=JobView, responses=problems(404, 410, 422))
async def read_job(
    key: Key, response: Response, api: Api, wait: Wait = 0, if_none_match: Annotated[str | None, Header()] = None
) -> JobView | Response:
    """Return a job, at once or when it ended; 304 when it is as `If-None-Match` says."""
    job = await wait_for_end(api, key, wait) if wait else await api.journal.run(journal.read(key))
    response.headers["ETag"] = etag = _etag(job)
    response.headers["Cache-Control"] = "no-cache"
    if if_none_match and etag in (candidate.strip() for candidate in if_none_match.split(",")):
        return Response(status_code=304, headers=dict(response.headers))
    return api.view(job)


@router.get("", responses=problems(422))
async def list_jobs(
    api: Api,
    tenant: Tenant,
    cursor: Annotated[str | None, Query(pattern=r"^\d{1,20}$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    status: Status | None = None,
    model: str | None = None,
) -> JobList:
    """List jobs, newest first. A page may be short and still have a `next_cursor`."""
    page = await api.jobs.run(records.list_jobs(tenant, cursor=cursor, limit=limit, status=status, model=model))
    return JobList(jobs=[api.view(job) for job in page.jobs], next_cursor=page.next_cursor)


@router.post("/{job_id}/cancel", responses=problems(404, 410) | {202: {"model": JobView}})
async def cancel_job(key: Key, response: Response, api: Api) -> JobView:
    """Ask for a job's end: 200 when it is over, 202 while its worker is still told. Safe to repeat."""
    job = await api.journal.run(journal.cancel(key))
    response.status_code = 200 if job.status.terminal else 202
    return api.view(job)


@router.post("/{job_id}/retry", status_code=202, responses=problems(404, 409, 410, 422, 429))
async def retry_job(
    key: Key, response: Response, api: Api, idempotency_key: Annotated[str | None, Header()] = None
) -> JobView:
    """Submit what a failed, expired or canceled job asked for as a new job (`retry_of`); the old one stays as it is.

    Safe to repeat: a job has one retry, unless each call has an `Idempotency-Key` of its own.
    """
    new = retried_key(key) if idempotency_key is None else JobKey(key.tenant, _id_from(key.tenant, idempotency_key))
    done = await api.journal.run(journal.retry(key, new, api.limits))
    api.hints.send(done.job.submission.queue)
    if not done.created:
        response.headers["Idempotency-Replayed"] = "true"
    response.headers["Location"] = f"{api.settings.base_url}/v1/jobs/{new.id}"
    return api.view(done.job)


@router.delete("/{job_id}", status_code=204, responses=problems(404) | {202: {"model": JobView}})
async def delete_job(key: Key, api: Api) -> Response:
    """Delete a job and its artifacts: 204. A running one is canceled first: 202, repeat when it is over."""
    try:
        job = await api.journal.run(journal.cancel(key))
        if not job.status.terminal:
            return Response(api.view(job).model_dump_json(by_alias=True), 202, media_type="application/json")
        # First the objects: a crash in between leaves a record by which they are found again.
        await asyncio.to_thread(delete_objects, api.objects, key)
        await api.jobs.run(records.delete(key))
    except JobGone:
        pass
    return Response(status_code=204)


async def wait_for_end(api: Services, key: JobKey, wait_s: float) -> Job:
    """Return the job when it ended or the time is over (60 s at most); `NotReady` when the server stops before."""
    ends = time.monotonic() + min(wait_s, MAX_WAIT_S)
    async with api.jobs.changes(key) as changes:
        while True:
            job = await api.journal.run(journal.read(key))
            left = ends - time.monotonic()
            if job.status.terminal or left <= 0:
                return job
            try:
                await changes.wait(left)
            except asyncio.CancelledError as error:  # the server stops, and its patience with us is over
                raise NotReady("the service is stopping", retry_after_s=1) from error


async def _submit(
    request: Request, response: Response, api: Services, key: JobKey, *, repeatable: bool, prefer: str | None
) -> JobView:
    body = await read_json(request, settings=api.settings)
    accepted = await _accept(api, key, body, repeatable=repeatable, traceparent=_traceparent(request))
    job = accepted.job
    wait_s = _preferred_wait(prefer)
    if wait_s is not None:
        job = await wait_for_end(api, key, wait_s)
        response.headers["Preference-Applied"] = f"wait={wait_s:.0f}"
    if not accepted.created:
        response.headers["Idempotency-Replayed"] = "true"
    response.headers["Location"] = f"{api.settings.base_url}/v1/jobs/{key.id}"
    if wait_s is not None and job.status.terminal:
        response.status_code = 200
    else:
        response.headers["Retry-After"] = str(_retry_after_s(job))
    return api.view(job)


async def _accept(api: Services, key: JobKey, body: Any, *, repeatable: bool, traceparent: str | None) -> Accepted:
    wanted, mark = validated(JobRequest, body), fingerprint(body)
    if repeatable and (job := await _made_before(api, key, mark)) is not None:
        return Accepted(job, created=False)
    checked = await submission(api, key, wanted, fingerprint=mark, traceparent=traceparent)
    done = await api.journal.run(journal.submit(checked, api.limits))
    api.hints.send(checked.queue)
    # A new id is never a repetition: if it exists already, the store's first reply was lost and it asked again.
    return Accepted(done.job, done.created or not repeatable)


async def _made_before(api: Services, key: JobKey, mark: str) -> Job | None:
    # Before anything else is checked: a repeated request finds its job even if its upload is gone by now.
    try:
        job = await api.jobs.run(records.read(key))
    except UnknownJob:
        return None
    if job.submission.fingerprint != mark:
        raise IdempotencyMismatch
    # A reservation is a promise that nobody has given yet: submitting again completes it.
    return None if job.state is State.RESERVED else job


def retried_key(key: JobKey) -> JobKey:
    """Return the key of a job's retry: the same for every caller, so that two of them make one job."""
    return JobKey(key.tenant, str(uuid.uuid5(_NAMESPACE, f"retry of {key}")))


def _id_from(tenant: str, idempotency_key: str) -> str:
    if not 0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise InvalidRequest(f"an Idempotency-Key has 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters")
    return str(uuid.uuid5(uuid.uuid5(_NAMESPACE, tenant), idempotency_key))


def _preferred_wait(prefer: str | None) -> float | None:
    found = _PREFER_WAIT.search(prefer or "")
    return min(float(found[1]), MAX_WAIT_S) if found else None


def _retry_after_s(job: Job) -> int:
    return min(MAX_RETRY_AFTER_S, max(1, ceil(job.eta_s or 1)))


def _traceparent(request: Request) -> str | None:
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _etag(job: Job) -> str:
    # Weak: the estimate moves with the clock. Creation time: a job re-created under its id counts from the start.
    return f'W/"{job.created_s:.6f}-{job.revision}-{job.queue_position or 0}"'
