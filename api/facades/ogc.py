"""OGC API - Processes 1.0 (OGC 18-062r2) under `/ogc`: a process is a model, its jobs are the same as everywhere.

`ogc_processes.py` describes, `ogc_execution.py` reads requests, `ogc_results.py` answers with results, and
`penstock/ogc.py` says how a job stands: this file is the routes. Reasons: `docs/decisions/0018-ogc-api-processes.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import uuid_utils
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from penstock import ogc
from penstock.api import jobs
from penstock.api.auth import Key, Tenant
from penstock.api.body import documented, read_json
from penstock.api.errors import problems
from penstock.api.facades import ogc_execution, ogc_processes, ogc_results
from penstock.api.facades.ogc_errors import OgcRoute, failure
from penstock.api.facades.ogc_schemas import (
    Conformance,
    ExecuteRequest,
    Landing,
    Link,
    ProcessDescription,
    ProcessList,
    StatusInfo,
    StatusList,
)
from penstock.api.query import CURSOR, NAME_CHARS, JobQuery
from penstock.api.services import Api, Services
from penstock.api.submissions import submission
from penstock.api.tracing import traceparent
from penstock.documents import fingerprint, validated
from penstock.errors import InputError, InvalidRequest
from penstock.jobs import Job, JobKey, Status, Submission
from penstock.ogc import JSON_TYPE, RELATION
from penstock.reports import Issue
from penstock.requests import JobRequest
from penstock.storage import catalogues, journal
from penstock.storage.submissions import Origin, check_receiver, servable

_SPEC = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/"
#: Not `html` (there are no pages), `oas30` (the description is OpenAPI 3.1), `job-list` (its filters are missing).
CONFORMANCE = tuple(_SPEC + name for name in ("core", "json", "ogc-process-description", "dismiss", "callback"))


async def _in_json(f: Literal["json"] = "json") -> None:
    """Take the parameter by which clients ask for a format; there is one."""


async def _only_known(request: Request) -> None:
    """Raise `InvalidRequest` for a filter that there is not: its list would be taken for what was asked for."""
    unknown = [name[:NAME_CHARS] for name in request.query_params if name not in _OF_LISTS]
    if unknown:
        known = ", ".join(_OF_LISTS)
        raise InvalidRequest(errors=[Issue("", f"query parameter {name} is not known: {known}") for name in unknown])


router = APIRouter(prefix="/ogc", tags=["ogc"], route_class=OgcRoute, dependencies=[Depends(_in_json)])

#: What a list of jobs can be asked for.
_OF_LISTS = ("limit", "cursor", "status", "processID", "f")
_PREFER = Header(
    description="`respond-async`: 201 at once. `wait=n`: hold the answer until the job ended, at most n seconds, then "
    "201. Without it the answer is held for up to 60 s."
)
_ANY: dict[str, Any] = {"application/json": {}, "multipart/related": {}, "*/*": {}}
_RESULTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The results, in the form that was asked for.", "content": _ANY},
    204: {"description": "The results are by reference: see the `Link` header."},
    303: {"description": "A large file lies there."},
}
_EXECUTED: dict[int | str, dict[str, Any]] = _RESULTS | {
    201: {"model": StatusInfo, "description": "The job was made and is not over."}
}
_FAILED = (400, 404, 500, 503)


@router.get("/", include_in_schema=False)
@router.get("", responses=problems(400), response_model_exclude_none=True)
async def ogc_landing(api: Api) -> Landing:
    """Say where everything of OGC API - Processes is."""
    base, here = api.settings.base_url, f"{api.settings.base_url}/ogc"
    described = "application/vnd.oai.openapi+json;version=3.1"
    return Landing(
        title="Penstock",
        description="Inference as a job queue: each model is a process.",
        links=[
            Link(href=here, rel="self", type=JSON_TYPE, title="This document"),
            Link(href=f"{base}/openapi.json", rel="service-desc", type=described, title="The API's description"),
            Link(href=f"{base}/docs", rel="service-doc", type="text/html", title="The API's documentation"),
            Link(href=f"{here}/conformance", rel=f"{RELATION}conformance", type=JSON_TYPE),
            Link(href=f"{here}/processes", rel=f"{RELATION}processes", type=JSON_TYPE),
            Link(href=f"{here}/jobs", rel=f"{RELATION}job-list", type=JSON_TYPE),
        ],
    )


@router.get("/conformance", responses=problems(400))
async def ogc_conformance() -> Conformance:
    """Say which classes of the standard are met."""
    return Conformance(conformsTo=list(CONFORMANCE))


@router.get("/processes", responses=problems(400, 503), response_model_exclude_none=True)
async def list_processes(
    api: Api,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="How many to leave out.")] = 0,
) -> ProcessList:
    """List the models that can be used, by name."""
    catalogue = await api.jobs.run(catalogues.catalogue())
    usable = [catalogue[name] for name in sorted(catalogue) if catalogue[name].problem is None]
    page, base, here = usable[offset : offset + limit], api.settings.base_url, f"{api.settings.base_url}/ogc/processes"
    links = [Link(href=f"{here}?limit={limit}&offset={offset}", rel="self", type=JSON_TYPE)]
    if offset + limit < len(usable):
        links.append(Link(href=f"{here}?limit={limit}&offset={offset + limit}", rel="next", type=JSON_TYPE))
    return ProcessList(processes=[ogc_processes.summary(entry, base) for entry in page], links=links)


@router.get("/processes/{process_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def read_process(process_id: str, api: Api) -> ProcessDescription:
    """Describe a model, by its name or an alias: what it takes and what it makes."""
    catalogue = await api.jobs.run(catalogues.catalogue())
    return ogc_processes.description(servable(process_id, catalogue), api.settings.base_url)


@router.post(
    "/processes/{process_id}/execution", response_model=None, openapi_extra=documented(ExecuteRequest),
    responses=_EXECUTED | problems(*_FAILED, 408, 413, 415, 429),
)  # fmt: skip
async def execute_process(
    process_id: str, request: Request, api: Api, tenant: Tenant, prefer: Annotated[str | None, _PREFER] = None
) -> Response:
    """Execute a model: its results once they are there, or 201 and the job where that takes too long to wait for."""
    body = await read_json(request, settings=api.settings)
    wanted = validated(ExecuteRequest, body)
    key = JobKey(tenant, str(uuid_utils.uuid7()))
    origin = Origin(traceparent(request.headers))
    async with api.turns.taken(tenant):
        jobs.require_room(api, tenant)
        checked = await _submission(api, key, process_id, wanted, mark=fingerprint(body), origin=origin)
        done = await jobs.make(api, checked)
    wait_s, applied = patience(prefer)
    job = await jobs.wait_for_end(api, key, wait_s) if wait_s else done.job
    answer = await _results(api, job, request) if job.status.terminal else _accepted(api, job)
    answer.headers.update({} if applied is None else {"Preference-Applied": applied})
    return answer


@router.get(
    "/jobs", responses=problems(400, 503), response_model_exclude_none=True, dependencies=[Depends(_only_known)]
)  # fmt: skip
async def list_ogc_jobs(
    api: Api,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="Of a link `next`.", pattern=CURSOR)] = None,
    status: Annotated[ogc.StatusWord | None, Query(description="Only jobs that stand so.")] = None,
    process: Annotated[str | None, Query(alias="processID", description="Only jobs of this process.")] = None,
) -> StatusList:
    """List jobs, newest first, whichever way they came."""
    statuses = None if status is None else ogc.statuses(status)
    page = await jobs.page_of(api, tenant, JobQuery(limit=limit, cursor=cursor, model=process), statuses)
    base, asked = api.settings.base_url, {"limit": limit, "status": status, "processID": process}
    links = [_page_link(base, "self", {**asked, "cursor": cursor})]
    if page.next_cursor is not None:
        links.append(_page_link(base, "next", {**asked, "cursor": page.next_cursor}))
    return StatusList(jobs=[_status_info(job, base) for job in page.jobs], links=links)


@router.get("/jobs/{job_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def read_ogc_job(key: Key, api: Api) -> StatusInfo:
    """Say how a job stands."""
    return _status_info(await api.journal.run(journal.read(key)), api.settings.base_url)


@router.get("/jobs/{job_id}/results", response_model=None, responses=_RESULTS | problems(*_FAILED))
async def read_results(key: Key, request: Request, api: Api) -> Response:
    """Return a job's results in the form that its execute request asked for; of another job a document of links.

    404 `result-not-ready` while the job is not over; of one that failed its error.
    """
    job = await api.journal.run(journal.read(key))
    ogc_results.require_end(job)
    return await _results(api, job, request)


@router.get("/jobs/{job_id}/results/{output}", response_model=None, responses=_RESULTS | problems(*_FAILED))
async def read_output(key: Key, output: str, request: Request, api: Api) -> Response:
    """Return one output in its own form (not of the standard: where links to what is no file lead)."""
    job = await api.journal.run(journal.read(key))
    ogc_results.require_end(job)
    if job.status is not Status.SUCCEEDED:
        return failure(job)
    return await ogc_results.output(api, job, output, request)


@router.delete("/jobs/{job_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def dismiss_job(key: Key, api: Api) -> StatusInfo:
    """Dismiss a job. One that is not over is canceled and stays to be seen; one that is over goes, with its files."""
    before = await api.journal.run(journal.read(key))
    job = before if before.status.terminal else await api.journal.run(journal.cancel(key))
    # It may also have ended just before the cancel came.
    if before.status.terminal or (job.status.terminal and job.status is not Status.CANCELED):
        await jobs.delete_job(key, api)
    info = ogc.status_info(job, api.settings.base_url) | {"status": "dismissed", "links": []}
    return StatusInfo.model_validate(info)


def patience(prefer: str | None) -> tuple[float, str | None]:
    """Return how long an execution may be waited for, and which preference was followed.

    The standard wants the results where nothing is preferred (core/process-execute-default-execution-mode); what takes
    longer than a request is held open is answered with the job.
    """
    wait_s = jobs.preferred_wait(prefer)
    words = ["respond-async"] if ogc_execution.prefers_async(prefer) else []
    if wait_s is not None:
        return wait_s, ", ".join([*words, f"wait={wait_s}"])
    return (0, "respond-async") if words else (jobs.MAX_WAIT_S, None)


async def _submission(
    api: Services, key: JobKey, process_id: str, wanted: ExecuteRequest, *, mark: str, origin: Origin
) -> Submission:
    """Return the checked request as a submission. What is wrong is told by its place in the execute request."""
    catalogue = await api.jobs.run(catalogues.catalogue())
    entry = servable(process_id, catalogue)
    job = JobRequest(model=entry.name, input=ogc_execution.job_input(entry, wanted))
    hook = ogc_execution.webhook(wanted.subscriber)
    for who, url in (wanted.subscriber.model_dump(exclude_none=True) if wanted.subscriber else {}).items():
        check_receiver(url, api.settings, f"/subscriber/{who}")
    try:
        checked = await submission(api, key, job, fingerprint=mark, origin=origin)
    except (InvalidRequest, InputError) as error:
        places = [ogc_execution.in_execute_request(issue) for issue in error.errors]
        raise type(error)(error.detail, errors=places, retry_after_s=error.retry_after_s) from error
    return replace(checked, webhook=hook, facade=ogc_execution.asked_for(entry, wanted).to_facade())


async def _results(api: Services, job: Job, request: Request) -> Response:
    """Return what came of a job that is over, and where the job is (core/job-results-success-sync)."""
    answer = await ogc_results.results(api, job, request) if job.status is Status.SUCCEEDED else failure(job)
    monitor = f'<{api.settings.base_url}/ogc/jobs/{job.key.id}>; rel="monitor"'
    answer.headers["Link"] = ", ".join(filter(None, (answer.headers.get("Link"), monitor)))
    return answer


def _page_link(base: str, rel: str, asked: Mapping[str, object]) -> Link:
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    return Link(href=f"{base}/ogc/jobs?{query}", rel=rel, type=JSON_TYPE)


def _accepted(api: Services, job: Job) -> JSONResponse:
    here = f"{api.settings.base_url}/ogc/jobs/{job.key.id}"
    info = _status_info(job, api.settings.base_url).model_dump(mode="json", exclude_none=True)
    return JSONResponse(info, 201, {"Location": here})


def _status_info(job: Job, base_url: str) -> StatusInfo:
    return StatusInfo.model_validate(ogc.status_info(job, base_url))
