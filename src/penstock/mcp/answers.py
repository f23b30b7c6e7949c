"""A model as a tool, and a job as its answer and as a task of the Tasks extension. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin

from mcp_types import CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent, Tool, ToolAnnotations

from penstock.client.answers import Artifact, Job, ModelInfo
from penstock.jobs import Status

#: Milliseconds after which a client asks for a task again.
POLL_MS: Final = 2000
#: Bytes of the images of an answer together, characters of a result as text, and of one as structured content, at most.
MAX_IMAGE_BYTES, MAX_TEXT_CHARS, MAX_JSON_CHARS = 1 << 20, 20_000, 200_000
_IMAGES: Final = ("image/png", "image/jpeg", "image/webp")
_FILES: Final = "penstock://jobs/"


def model_tool(model: ModelInfo) -> Tool:
    """Return a model as a tool: its schema, with the way to give a file to an agent that knows no service."""
    about = "\n\n".join(filter(None, (model.title, model.description)))
    return Tool(
        name=model.name,
        title=model.title,
        description=(
            f"{about}\n\nRuns as a job. Fields for media take an https:// or s3:// address, or a media:// reference "
            "of penstock_upload."
        ),
        input_schema={"type": "object", **model.input_schema},
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    )


def file_uri(job_id: str, name: str) -> str:
    """Return the URI of a job's file as a resource."""
    return f"{_FILES}{quote(job_id, safe='')}/{quote(name)}"


def file_of(uri: str) -> tuple[str, str]:
    """Return the job and the file's name of a resource; raise `ValueError` for another URI."""
    job_id, slash, name = uri.removeprefix(_FILES).partition("/")
    if not uri.startswith(_FILES) or not job_id or not slash or not name:
        raise ValueError(f"{uri} is no file of a job: write {_FILES}JOB/NAME")
    return unquote(job_id), unquote(name)


def shown_images(job: Job) -> list[Artifact]:
    """Return the images of a job that are part of its answer: the first ones, as long as they are small together."""
    images = [one for one in job.artifacts if one.content_type in _IMAGES]
    sums = accumulate(one.size_bytes for one in images)
    return [one for one, size in zip(images, sums, strict=True) if size <= MAX_IMAGE_BYTES]


def answer(job: Job, service: str, images: Mapping[str, bytes]) -> CallToolResult:
    """Return a job as the answer of a tool: an error for a job without a result.

    `service` is the service's address, `images` has the bytes of images by their file's name.
    """
    content: list[ContentBlock] = [TextContent(text=sentence(job))]
    if job.text is not None:
        content.append(TextContent(text=_cut(job.text)))
    if job.data is not None:
        content.append(TextContent(text=_cut(json.dumps(job.data, ensure_ascii=False))))
    for one in job.artifacts:
        if one.name in images:
            data = base64.b64encode(images[one.name]).decode()
            content.append(ImageContent(data=data, mime_type=one.content_type))
        content.append(
            ResourceLink(
                uri=file_uri(job.id, one.name), name=one.name, mime_type=one.content_type, size=one.size_bytes,
                description=f"The same file by HTTP: {address(service, one)}",
            )
        )  # fmt: skip
    return CallToolResult(
        content=content,
        structured_content=structured(job, service),
        is_error=job.over and not job.succeeded,
    )


def structured(job: Job, service: str) -> dict[str, Any]:
    """Return the facts about a job as JSON."""
    progress = job.progress
    fits = len(json.dumps(job.data, ensure_ascii=False)) <= MAX_JSON_CHARS
    return {
        "job_id": job.id,
        "model": job.model,
        "status": job.status.value,
        **({} if job.over else {"progress": {"done": progress.done, "total": progress.total, "unit": progress.unit}}),
        **({} if job.text is None else {"text": job.text}),
        **({} if job.data is None or not fits else {"output": dict(job.data)}),
        **({} if job.error is None else {"error": {"code": job.error.code, "detail": job.error.detail}}),
        "files": [
            {
                "name": one.name, "media_type": one.content_type, "size_bytes": one.size_bytes,
                "uri": file_uri(job.id, one.name), "url": address(service, one),
            }
            for one in job.artifacts
        ],
    }  # fmt: skip


def sentence(job: Job) -> str:
    """Return the state of a job as a sentence."""
    name = f"Job {job.id} of {job.model}"
    if job.succeeded:
        return f"{name} succeeded."
    if job.over:
        why = "" if job.error is None else f": {job.error.detail}"
        return f"{name} {'was canceled' if job.status is Status.CANCELED else job.status.value}{why}"
    place = "" if job.queue_position is None else f", place {job.queue_position} in the queue"
    total = f" of {job.progress.total}" if job.progress.total else ""
    done = f", {job.progress.done}{total} {job.progress.unit} done" if job.progress.done else ""
    waits = f". {job.waits_because}" if job.waits_because else ""
    return f"{name} is {job.status.value}{place}{done}{waits}. Call penstock_wait with its id for the result."


def task(job: Job, service: str, images: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a job as a task of the extension `io.modelcontextprotocol/tasks` (2026-07-28).

    A job that failed is a completed task whose result is an error: `failed` is for errors of the protocol.
    """
    ends: datetime | None = None
    if isinstance(expires := job.raw.get("expires_at"), str):
        ends = datetime.fromisoformat(expires)
    told = job.completed_at or job.started_at or job.created_at
    found: dict[str, Any] = {
        "taskId": job.id,
        "status": "working" if not job.over else "cancelled" if job.status is Status.CANCELED else "completed",
        "statusMessage": sentence(job),
        "createdAt": job.created_at.isoformat(),
        "lastUpdatedAt": told.isoformat(),
        "ttlMs": None if ends is None else int((ends - job.created_at).total_seconds() * 1000),
        "pollIntervalMs": POLL_MS,
    }
    if found["status"] == "completed":
        result = answer(job, service, images)
        found["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


def refusal(text: str) -> CallToolResult:
    """Return the answer of a call that the service refused."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def said(facts: Mapping[str, Any], text: str) -> CallToolResult:
    """Return facts as an answer, with a sentence for agents that read text only."""
    return CallToolResult(content=[TextContent(text=text)], structured_content=dict(facts))


def _cut(text: str) -> str:
    """Return a text, or its beginning and the word that there is more."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]} ... ({len(text)} characters in all)"


def address(service: str, artifact: Artifact) -> str:
    """Return the address of a file by HTTP."""
    return urljoin(service, artifact.url)
