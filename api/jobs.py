"""Jobs: submit, read, wait, list, cancel, delete."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, TypeVar
from zlib import crc32

import structlog
import uuid_utils
from fastapi import APIRouter, Header, Query, Request, Response

from penstock.api.auth import Key, Tenant, is_job_id, job_key
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.idempotency import id_from
from penstock.api.query import FILTERS, JobQuery
from penstock.api.schemas import JobList, JobView
from penstock.api.services import Api, Services
from penstock.api.submissions import submission
from penstock.api.tracing import traceparent
from penstock.documents import fingerprint, validated
from penstock.errors import IdempotencyMismatch, InvalidRequest, JobGone, NotReady, TooManyJobs, UnknownJob
from penstock.jobs import Job, JobKey, State, Status, Submission
from penstock.requests import JobRequest
from penstock.storage import journal, listing, records
from penstock.storage.listing import Page
from penstock.storage.manifests import delete_objects
from penstock.storage.records import Submitted
from penstock.storage.submissions import Origin

T = TypeVar("T")
log = structlog.get_logger(__name__)

#: The longest that a request is held open.
MAX_WAIT_S = 60.0
#: What `Retry-After` says at most of a job that will take longer.
MAX_RETRY_AFTER_S = 30
#: How often a list looks at the next 1,000 jobs when none of the last fitted.
MAX_LOOKS = 10

_PREFER_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*(\"?)(\d{1,6}(?:\.\d{1,6})?)\1\s*(?=$|[,;])", re.IGNORECASE)
#: Job ids made from an Idempotency-Key are UUIDv5 under this and the tenant's name.
_NAMESPACE = uuid.UUID("6d3c1f0e-6c0a-5d0e-9a53-5f1f3a1f6a52")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))
_SUBMITTING = problems(400, 408, 410, 413, 415, 422, 429) | {
    200: {"model": JobView, "description": "The job ended within `Prefer: wait=n`, or before this repetition."}
}
_READ: dict[int | str, dict[str, Any]] = problems(404, 410, 422) | {
    304: {"description": "The job is as `If-None-Match` says."}
}
_RETRIED: dict[int | str, dict[str, Any]] = {
    200: {"model": JobView, "description": "The retry was made before and is over."}
}

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=n`: hold the answer until the job ended, at most n whole seconds (60 at most; a fraction "
        "counts as the next whole one). What cannot be read is ignored, as RFC 7240 says: see `Preference-Applied`."
    ),
]
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
    """Submit a job: 202, or 200 when it is over already. With an `Idempotency-Key`, safe to repeat."""
    key, named = new_key(tenant, idempotency_key), idempotency_key
    return await _submit(request, response, api, key, repeatable=named is not None, prefer=prefer, named=named)


@router.put("/{job_id}", status_code=202, openapi_extra=documented(JobRequest), responses=_SUBMITTING)
async def put_job(
    job_id: str, request: Request, response: Response, api: Api, tenant: Tenant, prefer: Prefer = None
) -> JobView:
    """Submit a job under an id of your own (a UUID): the same body again finds the same job.

    The id is the key: an `Idempotency-Key` beside it is refused.
    """
    if not is_job_id(job_id):
        raise InvalidRequest("a job's id is a UUID")
    if "idempotency-key" in request.headers:
        raise InvalidRequest("the id in the path is the key: leave the Idempotency-Key out")
    return await _submit(request, response, api, job_key(tenant, job_id), repeatable=True, prefer=prefer)


@router.head("/{job_id}", response_model=JobView, include_in_schema=False)
@router.get("/{job_id}", response_model=JobView, responses=_READ)
async def read_job(
    key: Key, response: Response, api: Api, wait: Wait = 0, if_none_match: Annotated[str | None, Header()] = None
) -> JobView | Response:
    """Return a job, at once or when it ended; 304 when it is as `If-None-Match` says."""
    job = await wait_for_end(api, key, wait) if wait else await api.journal.run(journal.read(key))
    response.headers["ETag"] = etag = _etag(job)
    response.headers["Cache-Control"] = "no-cache"
    if if_none_match and _matches(if_none_match, etag):
        return Response(status_code=304, headers=dict(response.headers))
    return api.view(job)


@router.get("", responses=problems(422), openapi_extra=FILTERS)
async def list_jobs(
    api: Api,
    tenant: Tenant,
    wanted: Annotated[JobQuery, Query()],
) -> JobList:
    """List jobs, newest first; `metadata.KEY=VALUE`, once or more, asks for what was submitted with them.

    Jobs that are made meanwhile change no later page. One answer looks at no more than 10,000 jobs and ends at about
    4 MB: a page may be short or empty and still have a `next_cursor`. Parameters that are not known are refused.
    """
    page = await page_of(api, tenant, wanted)
    return JobList(jobs=[api.view(job) for job in page.jobs], next_cursor=page.next_cursor)


@router.post("/{job_id}/cancel", responses=problems(404, 410) | {202: {"model": JobView}})
async def cancel_job(key: Key, response: Response, api: Api) -> JobView:
    """Ask for a job's end: 200 when it is over, 202 while its worker is still told. Safe to repeat."""
    job = await api.journal.run(journal.cancel(key))
    response.status_code = 200 if job.status.terminal else 202
    return api.view(job)


@router.post("/{job_id}/retry", status_code=202, responses=problems(404, 409, 410, 422, 429) | _RETRIED)
async def retry_job(
    key: Key, response: Response, api: Api, idempotency_key: Annotated[str | None, Header()] = None
) -> JobView:
    """Submit what a failed, expired or canceled job asked for as a new job (`retry_of`); the old one stays as it is.

    Safe to repeat: a job has one retry, unless each call has an `Idempotency-Key` of its own. 200 where the retry was
    made before and is over.
    """
    named = idempotency_key
    new = retried_key(key) if named is None else JobKey(key.tenant, id_from(_NAMESPACE, key.tenant, named))
    done = await api.journal.run(journal.retry(key, new, api.limits))
    api.hints.send(done.job.submission.queue)
    log_made(done)
    _tell_of(response, api, Accepted(done.job, done.created))
    return api.view(done.job)


@router.delete("/{job_id}", status_code=204, responses=problems(404) | {202: {"model": JobView}})
async def delete_job(key: Key, api: Api) -> Response:
    """Delete a job and its artifacts: 204. A running one is canceled: 202, and it goes by itself when it ended."""
    try:
        job = await api.journal.run(journal.cancel(key, delete=True))
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

    async def read() -> tuple[Job, bool]:
        job = await api.journal.run(journal.read(key))
        return job, job.status.terminal

    return await wait_until(api, str(key), wait_s, read)


async def wait_until(api: Services, name: str, wait_s: float, read: Callable[[], Awaitable[tuple[T, bool]]]) -> T:
    """Return what `read` gives when it is over or the time is (60 s at most), read again with each change of `name`.

    Raises `NotReady` when the server stops before.
    """
    ends = time.monotonic() + min(wait_s, MAX_WAIT_S)
    async with api.jobs.changes(name) as changes:
        while True:
            found, over = await read()
            left = ends - time.monotonic()
            if over or left <= 0:
                return found
            try:
                await changes.wait(left)
            except asyncio.CancelledError as error:  # the server stops, and its patience with us is over
                raise NotReady("the service is stopping", retry_after_s=1) from error


async def page_of(api: Services, tenant: str, wanted: JobQuery, statuses: Collection[Status] | None = None) -> Page:
    """Return the next jobs that fit, and are of one of these statuses where there are any.

    Looking in short steps leaves Redis to others between them.
    """
    page = Page((), wanted.cursor)
    for _ in range(MAX_LOOKS):
        page = await api.jobs.run(listing.list_jobs(
            tenant, cursor=page.next_cursor, limit=wanted.limit, status=statuses or wanted.status, model=wanted.model,
            created_after_s=wanted.after_s, created_before_s=wanted.before_s,
            metadata=wanted.metadata, batch_id=wanted.batch_id,
        ))  # fmt: skip
        if page.jobs or page.next_cursor is None:
            break
    return page


async def _submit(
    request: Request,
    response: Response,
    api: Services,
    key: JobKey,
    *,
    repeatable: bool,
    prefer: str | None,
    named: str | None = None,
) -> JobView:
    body = await read_json(request, settings=api.settings)
    origin = Origin(traceparent(request.headers), named)
    wanted, mark = validated(JobRequest, body), fingerprint(body)
    accepted = await accept(api, key, wanted, mark, repeatable=repeatable, origin=origin)
    wait_s = preferred_wait(prefer)
    if wait_s is not None:
        accepted = replace(accepted, job=await wait_for_end(api, key, wait_s))
        response.headers["Preference-Applied"] = f"wait={wait_s}"
    _tell_of(response, api, accepted)
    return api.view(accepted.job)


def _tell_of(response: Response, api: Services, accepted: Accepted) -> None:
    """Say where the job is, whether it was made before, and when to look again; 200 if it is over."""
    job = accepted.job
    response.headers["Location"] = f"{api.settings.base_url}/v1/jobs/{job.key.id}"
    if not accepted.created:
        response.headers["Idempotency-Replayed"] = "true"
    if job.status.terminal:
        response.status_code = 200
    else:
        response.headers["Retry-After"] = str(_retry_after_s(job))


def new_key(tenant: str, idempotency_key: str | None) -> JobKey:
    """Return the key of a job that a request makes: the same for each repetition under an `Idempotency-Key`."""
    named = idempotency_key
    return JobKey(tenant, str(uuid_utils.uuid7()) if named is None else id_from(_NAMESPACE, tenant, named))


async def accept(
    api: Services, key: JobKey, wanted: JobRequest, mark: str, *, repeatable: bool, origin: Origin
) -> Accepted:
    """Make a request a job when it is its tenant's turn. `mark` is the fingerprint of what the client sent.

    A repeatable request finds the job that it made before. Raises `IdempotencyMismatch` where that has another mark,
    and what `submission` and the job store do.
    """
    async with api.turns.taken(key.tenant):
        return await _accept(api, key, wanted, mark, repeatable=repeatable, origin=origin)


async def _accept(
    api: Services, key: JobKey, wanted: JobRequest, mark: str, *, repeatable: bool, origin: Origin
) -> Accepted:
    made = await _made_before(api, key) if repeatable else None
    # A reservation is a promise that nobody has given yet: submitting again completes it.
    if made is not None and made.state is not State.RESERVED:
        if made.submission.fingerprint != mark:
            raise IdempotencyMismatch(_used(key, origin))
        return Accepted(made, created=False)
    if made is None:
        require_room(api, key.tenant)
    done = await make(api, await submission(api, key, wanted, fingerprint=mark, origin=origin))
    # A new id is never a repetition: if it exists already, the store's first reply was lost and it asked again.
    return Accepted(done.job, done.created or not repeatable)


def require_room(api: Services, tenant: str) -> None:
    """Raise `TooManyJobs` for a tenant that had too many a moment ago."""
    if (full := api.fullness.of(tenant)) is not None:
        raise full


async def make(api: Services, checked: Submission) -> Submitted:
    """Make a checked submission a job; remember a tenant that has too many."""
    try:
        done = await api.journal.run(journal.submit(checked, api.limits))
    except TooManyJobs as error:
        api.fullness.note(checked.key.tenant, error)
        raise
    api.hints.send(checked.queue)
    log_made(done)
    return done


def log_made(done: Submitted) -> None:
    """Write the line of a job that was made, not of one that was there already."""
    if done.created:
        wanted = done.job.submission
        log.info("job.submitted", model=wanted.model, **wanted.log_ids)


def _used(key: JobKey, origin: Origin) -> str:
    what = f"the job {key.id} was made" if origin.idempotency_key is None else "the Idempotency-Key was used"
    return f"{what} before, by a request with another body"


async def _made_before(api: Services, key: JobKey) -> Job | None:
    # Before anything else is checked: a repeated request finds its job even if its upload is gone by now.
    try:
        return await api.jobs.run(records.read(key))
    except UnknownJob:
        return None


def retried_key(key: JobKey) -> JobKey:
    """Return the key of a job's retry: the same for every caller, so that two of them make one job."""
    return JobKey(key.tenant, str(uuid.uuid5(_NAMESPACE, f"retry of {key}")))


def preferred_wait(prefer: str | None) -> int | None:
    found = _PREFER_WAIT.search(prefer or "")
    return min(ceil(float(found[2])), int(MAX_WAIT_S)) if found else None


def _retry_after_s(job: Job) -> int:
    return min(MAX_RETRY_AFTER_S, max(1, ceil(job.eta_s or 1)))


def _matches(if_none_match: str, etag: str) -> bool:
    """Compare weakly, as RFC 9110 says of this header: `W/` makes no difference."""
    known = {candidate.strip().removeprefix("W/") for candidate in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


def _etag(job: Job) -> str:
    # Weak: the estimate moves with the clock. Creation time: a job re-created under its id counts from the start.
    problem = crc32((job.model_problem or "").encode())
    return f'W/"{job.created_s:.6f}-{job.revision}-{job.queue_position or 0}-{problem:x}"'
