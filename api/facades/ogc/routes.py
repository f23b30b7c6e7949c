"""Routes of OGC API - Processes 1.0 (OGC 18-062r2) under `/ogc`. A process is a model; its jobs are ordinary jobs.

`processes.py` describes processes, `execution.py` reads execute requests, `results.py` writes results, and
`penstock/intake/ogc.py` writes the status of jobs. Design: `docs/decisions/0018-ogc-api-processes.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import uuid_utils
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from penstock.api.auth import Key, Tenant
from penstock.api.body import json_body, read_model
from penstock.api.connection import while_connected
from penstock.api.errors import problems
from penstock.api.facades.ogc import execution, processes, results
from penstock.api.facades.ogc.errors import failure_response
from penstock.api.facades.ogc.schemas import (
    Conformance,
    ExecuteRequest,
    Landing,
    OgcLink,
    ProcessDescription,
    ProcessList,
    StatusInfo,
    StatusList,
)
from penstock.api.query import CURSOR, NAME_CHARS, JobQuery
from penstock.api.routes import jobs
from penstock.api.services import Api, Services
from penstock.api.tracing import traceparent
from penstock.errors import InputError, InvalidRequest, Issue
from penstock.intake import ogc
from penstock.intake.ogc import JSON_TYPE, RELATION
from penstock.intake.submissions import Origin, check_receiver, servable
from penstock.jobs import Job, JobKey, Status
from penstock.json_body import Document, is_small_value
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest
from penstock.storage.journal import journal
from penstock.storage.redis.records import Submitted

_SPEC = "http://www.opengis.net/spec/ogcapi-processes-1/1.0/conf/"
#: Conformance classes. Missing: `html` (no pages), `oas30` (OpenAPI is 3.1), `job-list` (some filters).
CONFORMANCE = tuple(_SPEC + name for name in ("core", "json", "ogc-process-description", "dismiss", "callback"))


async def _in_json(f: Literal["json"] = "json") -> None:
    """Accept the format parameter `f`; `json` is the only format."""


async def _only_known(request: Request) -> None:
    """Raise `InvalidRequest` for unknown filters: an unfiltered list would be misleading."""
    unknown = [name[:NAME_CHARS] for name in request.query_params if name not in _JOB_PARAMETERS]
    if unknown:
        known = ", ".join(_JOB_PARAMETERS)
        raise InvalidRequest(errors=[Issue("", f"query parameter {name} is not known: {known}") for name in unknown])


router = APIRouter(prefix="/ogc", tags=["ogc"], dependencies=[Depends(_in_json)])

#: Query parameters of the list of jobs.
_JOB_PARAMETERS = ("limit", "cursor", "status", "processID", "f")
_PREFER = Header(
    description="`respond-async`: 201 immediately. `wait=n`: wait for the end of the job, at most n seconds, then 201. "
    "Without a preference, wait for up to 55 s."
)
_ANY: dict[str, Any] = {"application/json": {}, "multipart/related": {}, "*/*": {}}
_RESULTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The results, in the requested form.", "content": _ANY},
    204: {"description": "The results are given by reference in the `Link` header."},
    303: {"description": "Redirect to a large file."},
}
_EXECUTED: dict[int | str, dict[str, Any]] = _RESULTS | {
    201: {"model": StatusInfo, "description": "The job was submitted and has not ended."}
}
_FAILED = (400, 404, 500, 503)


@router.get("/", include_in_schema=False)
@router.get("", responses=problems(400), response_model_exclude_none=True)
async def ogc_landing(api: Api) -> Landing:
    """Return the landing page of OGC API - Processes, with links to its resources."""
    base, here = api.settings.base_url, f"{api.settings.base_url}/ogc"
    described = "application/vnd.oai.openapi+json;version=3.1"
    return Landing(
        title="Penstock",
        description="Inference as a job queue: each model is a process.",
        links=[
            OgcLink(href=here, rel="self", type=JSON_TYPE, title="This document"),
            OgcLink(href=f"{base}/openapi.json", rel="service-desc", type=described, title="The API's description"),
            OgcLink(href=f"{base}/docs", rel="service-doc", type="text/html", title="The API's documentation"),
            OgcLink(href=f"{here}/conformance", rel=f"{RELATION}conformance", type=JSON_TYPE),
            OgcLink(href=f"{here}/processes", rel=f"{RELATION}processes", type=JSON_TYPE),
            OgcLink(href=f"{here}/jobs", rel=f"{RELATION}job-list", type=JSON_TYPE),
        ],
    )


@router.get("/conformance", responses=problems(400))
async def ogc_conformance() -> Conformance:
    """Return the conformance classes."""
    return Conformance(conformsTo=list(CONFORMANCE))


@router.get("/processes", responses=problems(400, 503), response_model_exclude_none=True)
async def list_processes(
    api: Api,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Processes to skip.")] = 0,
) -> ProcessList:
    """List the usable models as processes, sorted by name."""
    catalogue = await api.models.read()
    usable = [catalogue[name] for name in sorted(catalogue) if catalogue[name].problem is None]
    page, base, here = usable[offset : offset + limit], api.settings.base_url, f"{api.settings.base_url}/ogc/processes"
    links = [OgcLink(href=f"{here}?limit={limit}&offset={offset}", rel="self", type=JSON_TYPE)]
    if offset + limit < len(usable):
        links.append(OgcLink(href=f"{here}?limit={limit}&offset={offset + limit}", rel="next", type=JSON_TYPE))
    return ProcessList(processes=[processes.summary(entry, base) for entry in page], links=links)


@router.get("/processes/{process_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def read_process(process_id: str, api: Api) -> ProcessDescription:
    """Describe a process, by the model's name or an alias, with its inputs and outputs."""
    catalogue = await api.models.read(process_id)
    return processes.description(servable(process_id, catalogue), api.settings.base_url)


@router.post(
    "/processes/{process_id}/execution", response_model=None, openapi_extra=json_body(ExecuteRequest),
    responses=_EXECUTED | problems(*_FAILED, 408, 413, 415, 429),
)  # fmt: skip
async def execute_process(
    process_id: str, request: Request, api: Api, tenant: Tenant, prefer: Annotated[str | None, _PREFER] = None
) -> Response:
    """Execute a process: return its results, or 201 and the job where it takes longer than the wait."""
    body = await read_model(request, api, ExecuteRequest)
    key = JobKey(tenant, str(uuid_utils.uuid7()))
    done = await _submit(request, api, key, process_id, body)
    wait_s, applied = wait_preference(prefer)
    job = await jobs.wait_for_end(api, key, wait_s) if wait_s else done.job
    answer = await _results(api, job, request) if job.status.terminal else _created(api, job)
    answer.headers.update({} if applied is None else {"Preference-Applied": applied})
    return answer


@router.get(
    "/jobs", responses=problems(400, 503), response_model_exclude_none=True, dependencies=[Depends(_only_known)]
)  # fmt: skip
async def list_ogc_jobs(
    api: Api,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="The cursor from a link `next`.", pattern=CURSOR)] = None,
    status: Annotated[ogc.StatusWord | None, Query(description="Only jobs with this status.")] = None,
    process: Annotated[str | None, Query(alias="processID", description="Only jobs of this process.")] = None,
) -> StatusList:
    """List the tenant's jobs of all interfaces, newest first."""
    statuses = None if status is None else ogc.statuses(status)
    page = await jobs.page_of(api, tenant, JobQuery(limit=limit, cursor=cursor, model=process), statuses)
    base, query = api.settings.base_url, {"limit": limit, "status": status, "processID": process}
    links = [_page_link(base, "self", {**query, "cursor": cursor})]
    if page.next_cursor is not None:
        links.append(_page_link(base, "next", {**query, "cursor": page.next_cursor}))
    return StatusList(jobs=[_status_info(job, base) for job in page.jobs], links=links)


@router.get("/jobs/{job_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def read_ogc_job(key: Key, api: Api) -> StatusInfo:
    """Return the status of a job."""
    return _status_info(await api.journal.run(journal.read(key)), api.settings.base_url)


@router.get("/jobs/{job_id}/results", response_model=None, responses=_RESULTS | problems(*_FAILED))
async def read_results(key: Key, request: Request, api: Api) -> Response:
    """Return a job's results in the form that its execute request asked for; for other jobs a document of links.

    404 `result-not-ready` before the job ends; the job's error where it failed.
    """
    job = await api.journal.run(journal.read(key))
    results.require_end(job)
    return await _results(api, job, request)


@router.get("/jobs/{job_id}/results/{output}", response_model=None, responses=_RESULTS | problems(*_FAILED))
async def read_output(key: Key, output: str, request: Request, api: Api) -> Response:
    """Return one raw output. An addition to the standard: the target of links to outputs that are no files."""
    job = await api.journal.run(journal.read(key))
    results.require_end(job)
    if job.status is not Status.SUCCEEDED:
        return failure_response(job)
    return await results.output(api, job, output, request)


@router.delete("/jobs/{job_id}", responses=problems(400, 404, 503), response_model_exclude_none=True)
async def dismiss_job(key: Key, api: Api) -> StatusInfo:
    """Dismiss a job. An unfinished job is canceled and remains visible; a finished job is deleted with its files."""
    before = await api.journal.run(journal.read(key))
    job = before if before.status.terminal else await api.journal.run(journal.cancel(key))
    # The job may also have ended just before the cancellation.
    if before.status.terminal or (job.status.terminal and job.status is not Status.CANCELED):
        await jobs.delete_job(key, api)
    info = ogc.status_info(job, api.settings.base_url) | {"status": "dismissed", "links": []}
    return StatusInfo.model_validate(info)


def wait_preference(prefer: str | None) -> tuple[float, str | None]:
    """Return the seconds to wait for an execution, and the applied preference.

    Without a preference the standard requires the results (core/process-execute-default-execution-mode). An execution
    that takes longer than `MAX_WAIT_S` is answered with the job.
    """
    wait_s = jobs.preferred_wait(prefer)
    words = ["respond-async"] if execution.prefers_async(prefer) else []
    if wait_s is not None:
        return wait_s, ", ".join([*words, f"wait={wait_s}"])
    return (0, "respond-async") if words else (jobs.MAX_WAIT_S, None)


async def _submit(
    request: Request, api: Services, key: JobKey, process_id: str, body: Document[ExecuteRequest]
) -> Submitted:
    """Submit the job of an execute request. Error pointers refer to the execute request."""
    wanted, entry = body.value, servable(process_id, await api.models.read(process_id), key.id)
    job = await _job_request(request, api, key, entry, wanted)
    for field, url in (wanted.subscriber.model_dump(exclude_none=True) if wanted.subscriber else {}).items():
        check_receiver(url, api.settings, f"/subscriber/{field}")
    hook, answer = execution.webhook(wanted.subscriber), execution.requested_outputs(entry, wanted)
    try:
        return await jobs.submit(
            request, api, key, job, body.fingerprint, repeatable=False, origin=Origin(traceparent(request.headers)),
            completed=lambda checked: replace(checked, webhook=hook, facade=answer.to_facade()),
        )  # fmt: skip
    except (InvalidRequest, InputError) as error:
        places = [execution.in_execute_request(issue) for issue in error.errors]
        raise type(error)(error.detail, errors=places, retry_after_s=error.retry_after_s) from error


async def _job_request(
    request: Request, api: Services, key: JobKey, entry: CatalogueEntry, wanted: ExecuteRequest
) -> JobRequest:
    """Translate an execute request; a large one outside of this process."""
    if is_small_value(wanted.inputs):
        return execution.job_request(entry, wanted)
    size_bytes = api.settings.body_limit_bytes(key.tenant)
    work = api.isolation.run(key.tenant, size_bytes, execution.job_request, entry, wanted)
    return await while_connected(request, work)


async def _results(api: Services, job: Job, request: Request) -> Response:
    """Return the results or the error of an ended job, with a link to the job (core/job-results-success-sync)."""
    answer = await results.results(api, job, request) if job.status is Status.SUCCEEDED else failure_response(job)
    monitor = f'<{api.settings.base_url}/ogc/jobs/{job.key.id}>; rel="monitor"'
    answer.headers["Link"] = ", ".join(filter(None, (answer.headers.get("Link"), monitor)))
    return answer


def _page_link(base: str, rel: str, parameters: Mapping[str, object]) -> OgcLink:
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return OgcLink(href=f"{base}/ogc/jobs?{query}", rel=rel, type=JSON_TYPE)


def _created(api: Services, job: Job) -> JSONResponse:
    here = f"{api.settings.base_url}/ogc/jobs/{job.key.id}"
    info = _status_info(job, api.settings.base_url).model_dump(mode="json", exclude_none=True)
    return JSONResponse(info, 201, {"Location": here})


def _status_info(job: Job, base_url: str) -> StatusInfo:
    return StatusInfo.model_validate(ogc.status_info(job, base_url))
