"""OpenAI's files: batch input, stored as uploads, and batch results, translated while they are read."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import uuid_utils
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from starlette.datastructures import UploadFile

from penstock.api.facades.calls import Call, CurrentCall
from penstock.api.facades.openai.lines import Endpoint, endpoint_of, error_lines, result_lines
from penstock.api.forms import FRAME_BYTES, path_of, read_form
from penstock.api.routes.artifacts import find_artifact
from penstock.api.services import Services
from penstock.api.submissions import require_room
from penstock.batches import Batch, BatchEnd, BatchKey
from penstock.errors import InvalidRequest, Issue, PayloadTooLarge, StateConflict, UnknownUpload
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.storage.journal import batch_journal
from penstock.storage.objects.base import ObjectInfo

CONTENT_TYPE = "application/jsonl"
MAX_LISTED = 10_000

#: File ids: `file-` and an upload id, or `file-output-` or `file-errors-` and a batch id.
_UPLOADED = re.compile(r"file-[0-9a-f]{32}")
_RESULT = re.compile(r"file-(output|errors)-([0-9a-f]{32})")

router = APIRouter(prefix="/openai/v1/files", tags=["facades"], include_in_schema=False)


@router.post("")
async def create_openai_file(call: CurrentCall) -> dict[str, Any]:
    """Store a batch's input file as an upload of the tenant."""
    settings = call.api.settings
    limit_bytes = min(settings.max_batch_bytes, settings.upload_limit_bytes(call.tenant))
    async with read_form(call.request, limit_bytes=limit_bytes + FRAME_BYTES, settings=settings) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidRequest(errors=[Issue("/file", "is required, as a file")])
        if form.get("purpose") != "batch":
            raise InvalidRequest(errors=[Issue("/purpose", "must be 'batch'; other purposes are not supported")])
        if (file.size or 0) > limit_bytes:
            raise PayloadTooLarge(f"the file exceeds the limit of {limit_bytes} bytes")
        file_id = f"file-{uuid_utils.uuid7().hex}"
        await require_room(call.api, call.tenant, file_id, file.size or 0)
        return _file(await asyncio.to_thread(_store, call.api, call.tenant, file_id, file))


@router.get("")
async def list_openai_files(
    call: CurrentCall,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
) -> dict[str, Any]:
    """List the uploaded files, newest first."""
    found = await asyncio.to_thread(lambda: [_file(info) for info in _uploads(call.api, call.tenant, "file-")])
    older = [file for file in reversed(found) if after is None or file["id"] < after]
    return {"object": "list", "data": older[:limit], "has_more": len(older) > limit}


@router.get("/{file_id}")
async def read_openai_file(file_id: str, call: CurrentCall) -> dict[str, Any]:
    """Return a file object."""
    if result := _RESULT.fullmatch(file_id):
        file = await _result_file(call, result)
        return await asyncio.to_thread(file.card, file_id)
    return _file(await find_upload(call, file_id))


@router.get("/{file_id}/content")
async def read_openai_file_content(file_id: str, call: CurrentCall) -> Response:
    """Return a file's bytes."""
    if result := _RESULT.fullmatch(file_id):
        return StreamingResponse((await _result_file(call, result)).lines(), media_type=CONTENT_TYPE)
    info = await find_upload(call, file_id)
    return StreamingResponse(call.api.objects.read(info.key), media_type=CONTENT_TYPE)


@router.delete("/{file_id}")
async def delete_openai_file(file_id: str, call: CurrentCall) -> dict[str, Any]:
    """Delete an uploaded file. Its batches have their own copies."""
    if _RESULT.fullmatch(file_id):
        raise StateConflict("a result file is deleted with its batch; delete the batch instead")
    info = await find_upload(call, file_id)
    await asyncio.to_thread(call.api.objects.delete, info.key)
    return {"id": file_id, "object": "file", "deleted": True}


async def find_upload(call: Call, file_id: str) -> ObjectInfo:
    """Return the upload of a file id; raise `UnknownUpload`."""
    found = await asyncio.to_thread(_uploads, call.api, call.tenant, file_id) if _UPLOADED.fullmatch(file_id) else []
    if not found:
        raise UnknownUpload(f"there is no file {file_id!r}")
    return found[0]


def result_file_ids(batch: Batch) -> tuple[str | None, str | None]:
    """Return the ids of a batch's output and error files; None for a file without lines."""
    name, end = batch.key.id.replace("-", ""), batch.end
    if end is None:
        return None, None
    succeeded = end.counts.succeeded
    return (
        f"file-output-{name}" if succeeded else None,
        f"file-errors-{name}" if end.counts.total > succeeded else None,
    )


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A batch's `results.jsonl` or `errors.jsonl` in OpenAI's format."""

    api: Services
    name: str
    endpoint: Endpoint
    end: BatchEnd

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, with one line in memory."""
        chunks = self.api.objects.read(find_artifact(self.end.artifacts, self.name, "batch").key)
        if self.name == "errors.jsonl":
            return error_lines(chunks)
        return result_lines(chunks, self.endpoint, self.end.completed_s)

    def card(self, file_id: str) -> dict[str, Any]:
        """Return the file object. Computing its size reads the whole file."""
        size_bytes = sum(map(len, self.lines()))
        return _card(file_id, self.name, size_bytes, self.end.completed_s, "batch_output")


async def _result_file(call: Call, found: re.Match[str]) -> ResultFile:
    key = BatchKey(call.tenant, str(uuid.UUID(found[2])))
    batch = await call.api.journal.run(batch_journal.read(key))
    endpoint, name = endpoint_of(batch), found[1].replace("output", "results")
    if endpoint is None or batch.end is None:
        raise UnknownUpload(f"there is no file {found[0]!r}, or its batch has not ended")
    return ResultFile(call.api, f"{name}.jsonl", endpoint, batch.end)


def _store(api: Services, tenant: str, file_id: str, file: UploadFile) -> ObjectInfo:
    key = upload_key(tenant, file_id, safe_name(file.filename or "batch.jsonl"))
    return api.objects.put_file(key, path_of(file), content_type=CONTENT_TYPE)


def _uploads(api: Services, tenant: str, id_prefix: str) -> list[ObjectInfo]:
    return list(api.objects.list(upload_key(tenant, id_prefix, "").rstrip("/")))


def _file(info: ObjectInfo) -> dict[str, Any]:
    *_, file_id, name = info.key.split("/")
    return _card(file_id, name, info.size_bytes, info.modified_s, "batch")


def _card(file_id: str, name: str, size_bytes: int, created_s: float, purpose: str) -> dict[str, Any]:
    return {
        "id": file_id, "object": "file", "bytes": size_bytes, "created_at": int(created_s), "filename": name,
        "purpose": purpose, "status": "processed",
    }  # fmt: skip
