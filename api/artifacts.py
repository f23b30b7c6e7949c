"""Artifacts: finished files of a job's result."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.auth import Key
from penstock.api.errors import problems
from penstock.api.files import FileDownload, download_headers
from penstock.api.services import Api
from penstock.errors import ObjectNotFound, UnknownArtifact
from penstock.jobs import Artifact, Job
from penstock.storage import journal

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=problems(503))


@router.head("/{job_id}/artifacts/{name:path}", include_in_schema=False)
@router.get("/{job_id}/artifacts/{name:path}", response_class=Response, responses=problems(404, 410, 416))
async def read_artifact(key: Key, name: str, request: Request, api: Api) -> Response:
    """Return an artifact's bytes, ranges included, or redirect (302) to a fresh link of the object store."""
    artifact = _artifact(await api.journal.run(journal.read(key)), name)
    headers = download_headers(name.rpartition("/")[2], etag=artifact.sha256)
    if api.store_is_local:
        try:
            await asyncio.to_thread(api.objects.head, artifact.key)
        except ObjectNotFound as error:
            raise UnknownArtifact("the file is gone") from error
        return FileDownload(api.file(artifact.key), headers=headers, media_type=artifact.content_type)
    if request.method == "HEAD":  # a link that is signed for GET is refused for HEAD
        size = {"Content-Length": str(artifact.size_bytes)}
        return Response(headers=headers | size, media_type=artifact.content_type)
    lifetime_s = api.settings.link_expires_s
    link = await asyncio.to_thread(
        api.objects.presign_get, artifact.key, filename=name.rpartition("/")[2], expires_s=lifetime_s
    )
    return RedirectResponse(link, 302, headers={"Cache-Control": "no-store"})


def _artifact(job: Job, name: str) -> Artifact:
    for artifact in job.artifacts:
        if artifact.name == name:
            return artifact
    known = ", ".join(artifact.name for artifact in job.artifacts) or "none"
    raise UnknownArtifact(f"the job's artifacts: {known}")
