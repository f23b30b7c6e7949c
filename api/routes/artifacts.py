"""The result of a job: its artifacts, which are files, and its output, which is JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from penstock.api.auth import Key
from penstock.api.errors import problems
from penstock.api.schemas.jobs import OutputView, output_view
from penstock.api.services import Api, Services
from penstock.errors import ObjectNotFound, UnknownArtifact
from penstock.jobs import Artifact
from penstock.storage.journal import journal
from penstock.storage.objects.base import content_disposition


def download_headers(filename: str, *, etag: str) -> dict[str, str]:
    """Return the headers of a download that is saved as `filename`."""
    return {
        "Content-Disposition": content_disposition(filename),
        "ETag": f'"{etag}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-cache",
    }


class FileDownload(FileResponse):
    """A file response with `Range` and `If-Range` whose errors are problem+json."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; raise `HTTPException` before the first byte where the range is not satisfiable."""
        refusals: list[Message] = []

        async def unless_refused(message: Message) -> None:
            if message.get("status", 200) >= 400:
                refusals.append(message)
            if not refusals:
                await send(message)

        await super().__call__(scope, receive, unless_refused)
        if refusals:
            headers = {name.decode(): value.decode() for name, value in refusals[0]["headers"]}
            kept = {name: value for name, value in headers.items() if name == "content-range"}
            raise HTTPException(refusals[0]["status"], headers=kept)


router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))


_READ: dict[int | str, dict[str, Any]] = problems(404, 410, 416) | {
    302: {"description": "A short-lived link to the object store."}
}


@router.head("/{job_id}/artifacts/{name:path}", include_in_schema=False)
@router.get("/{job_id}/artifacts/{name:path}", response_class=Response, responses=_READ)
async def read_artifact(key: Key, name: str, request: Request, api: Api) -> Response:
    """Return an artifact's bytes (byte ranges are supported), or redirect (302) to a fresh link to the object store."""
    job = await api.journal.run(journal.read(key))
    return await send_artifact(api, find_artifact(job.artifacts, name, "job"), request)


@router.head("/{job_id}/output", include_in_schema=False)
@router.get("/{job_id}/output", response_model=OutputView, responses=_READ)
async def read_job_output(key: Key, request: Request, api: Api) -> Response:
    """Return a job's text and JSON (`output`), or redirect (302) to a fresh link to the object store."""
    job = await api.journal.run(journal.read(key))
    if job.output is not None:
        return await send_artifact(api, job.output, request)
    if (small := output_view(job)) is None:
        raise UnknownArtifact("the job has no text and no JSON")
    return JSONResponse(small.model_dump(mode="json", by_alias=True))


async def send_artifact(api: Services, artifact: Artifact, request: Request) -> Response:
    """Return a file's bytes (byte ranges are supported), or redirect to a fresh link to the object store."""
    name = artifact.name
    headers = download_headers(name.rpartition("/")[2], etag=artifact.sha256)
    if api.store_is_local:
        try:
            await asyncio.to_thread(api.objects.head, artifact.key)
        except ObjectNotFound as error:
            raise UnknownArtifact("the file no longer exists") from error
        return FileDownload(api.file(artifact.key), headers=headers, media_type=artifact.content_type)
    if request.method == "HEAD":  # the store rejects HEAD on a link signed for GET
        size = {"Content-Length": str(artifact.size_bytes)}
        return Response(headers=headers | size, media_type=artifact.content_type)
    lifetime_s = api.settings.link_expires_s
    link = await asyncio.to_thread(
        api.objects.presign_get, artifact.key, filename=name.rpartition("/")[2], expires_s=lifetime_s
    )
    return RedirectResponse(link, 302, headers={"Cache-Control": "no-store"})


def find_artifact(artifacts: Sequence[Artifact], name: str, owner: str) -> Artifact:
    """Return the artifact of this name; raise `UnknownArtifact` with the known names. `owner`: `job` or `batch`."""
    for artifact in artifacts:
        if artifact.name == name:
            return artifact
    known = ", ".join(artifact.name for artifact in artifacts) or "none"
    raise UnknownArtifact(f"the {owner} has no artifact {name!r}; its artifacts: {known}")
