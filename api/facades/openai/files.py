"""OpenAI's files: JSONL for batches, kept as uploads; and what batches made, translated as it is read."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import uuid_utils
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from starlette.datastructures import UploadFile

from penstock.api.artifacts import find_artifact
from penstock.api.body import read_form
from penstock.api.facades.calls import Call, TheCall
from penstock.api.facades.openai.lines import Endpoint, endpoint_of, error_lines, result_lines
from penstock.api.services import Services
from penstock.batches import Batch, BatchEnd, BatchKey
from penstock.errors import InvalidRequest, PayloadTooLarge, StateConflict, UnknownUpload
from penstock.reports import Issue
from penstock.storage import batch_journal
from penstock.storage.base import ObjectInfo
from penstock.storage.media import safe_name, upload_key

CONTENT_TYPE = "application/jsonl"
#: Of a form around its file.
FORM_BYTES = 100_000
MAX_LISTED = 10_000

#: `file-` and an upload's id; `file-output-` or `file-errors-` and that of a batch.
_SENT = re.compile(r"file-[0-9a-f]{32}")
_MADE = re.compile(r"file-(output|errors)-([0-9a-f]{32})")

router = APIRouter(prefix="/openai/v1/files", tags=["facades"], include_in_schema=False)


@router.post("")
async def create_openai_file(call: TheCall) -> dict[str, Any]:
    """Keep a file for a batch, as an upload of the tenant."""
    settings = call.api.settings
    limit_bytes = min(settings.max_batch_bytes, settings.upload_limit_bytes(call.tenant))
    async with read_form(call.request, limit_bytes=limit_bytes + FORM_BYTES, settings=settings) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidRequest(errors=[Issue("/file", "is required, as a file")])
        if form.get("purpose") != "batch":
            raise InvalidRequest(errors=[Issue("/purpose", "must be 'batch': files are taken for batches alone")])
        if (file.size or 0) > limit_bytes:
            raise PayloadTooLarge(f"a file may have {limit_bytes} bytes")
        return _file(await asyncio.to_thread(_keep, call.api, call.tenant, file))


@router.get("")
async def list_openai_files(
    call: TheCall,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
) -> dict[str, Any]:
    """List the files that were sent, newest first."""
    found = await asyncio.to_thread(lambda: [_file(info) for info in _sent(call.api, call.tenant, "file-")])
    older = [file for file in reversed(found) if after is None or file["id"] < after]
    return {"object": "list", "data": older[:limit], "has_more": len(older) > limit}


@router.get("/{file_id}")
async def read_openai_file(file_id: str, call: TheCall) -> dict[str, Any]:
    """Return what is known of a file."""
    if made := _MADE.fullmatch(file_id):
        file = await _made(call, made)
        return await asyncio.to_thread(file.card, file_id)
    return _file(await find_sent(call, file_id))


@router.get("/{file_id}/content")
async def read_openai_file_content(file_id: str, call: TheCall) -> Response:
    """Return a file's bytes."""
    if made := _MADE.fullmatch(file_id):
        return StreamingResponse((await _made(call, made)).lines(), media_type=CONTENT_TYPE)
    info = await find_sent(call, file_id)
    return StreamingResponse(call.api.objects.read(info.key), media_type=CONTENT_TYPE)


@router.delete("/{file_id}")
async def delete_openai_file(file_id: str, call: TheCall) -> dict[str, Any]:
    """Delete a file that was sent. Batches that were made from it have a copy."""
    if _MADE.fullmatch(file_id):
        raise StateConflict("what a batch made is deleted with the batch")
    info = await find_sent(call, file_id)
    await asyncio.to_thread(call.api.objects.delete, info.key)
    return {"id": file_id, "object": "file", "deleted": True}


async def find_sent(call: Call, file_id: str) -> ObjectInfo:
    """Return the upload that a file's id names; raise `UnknownUpload`."""
    found = await asyncio.to_thread(_sent, call.api, call.tenant, file_id) if _SENT.fullmatch(file_id) else []
    if not found:
        raise UnknownUpload(f"there is no file {file_id!r}")
    return found[0]


def made_ids(batch: Batch) -> tuple[str | None, str | None]:
    """Return the ids of a batch's two files, None for one without lines."""
    name, end = batch.key.id.replace("-", ""), batch.end
    if end is None:
        return None, None
    succeeded = end.counts.succeeded
    return (
        f"file-output-{name}" if succeeded else None,
        f"file-errors-{name}" if end.counts.total > succeeded else None,
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A file that a batch made: `results.jsonl` or `errors.jsonl` in OpenAI's words."""

    api: Services
    name: str
    endpoint: Endpoint
    end: BatchEnd

    def lines(self) -> Iterator[bytes]:
        """Yield its lines; nothing longer than a line is in memory."""
        chunks = self.api.objects.read(find_artifact(self.end.artifacts, self.name, "batch").key)
        if self.name == "errors.jsonl":
            return error_lines(chunks)
        return result_lines(chunks, self.endpoint, self.end.completed_s)

    def card(self, file_id: str) -> dict[str, Any]:
        """Return what is known of it; to know its size, it is read."""
        size_bytes = sum(map(len, self.lines()))
        return _card(file_id, self.name, size_bytes, self.end.completed_s, "batch_output")


async def _made(call: Call, found: re.Match[str]) -> Made:
    key = BatchKey(call.tenant, str(uuid.UUID(found[2])))
    batch = await call.api.journal.run(batch_journal.read(key))
    endpoint, name = endpoint_of(batch), found[1].replace("output", "results")
    if endpoint is None or batch.end is None:
        raise UnknownUpload(f"there is no file {found[0]!r}, or not yet")
    return Made(call.api, f"{name}.jsonl", endpoint, batch.end)


def _keep(api: Services, tenant: str, file: UploadFile) -> ObjectInfo:
    api.settings.spool_dir.mkdir(parents=True, exist_ok=True)
    key = upload_key(tenant, f"file-{uuid_utils.uuid7().hex}", safe_name(file.filename or "batch.jsonl"))
    with tempfile.TemporaryDirectory(dir=api.settings.spool_dir) as folder:
        path = Path(folder) / "file"
        with path.open("xb") as out:
            shutil.copyfileobj(file.file, out)
        return api.objects.put_file(key, path, content_type=CONTENT_TYPE)


def _sent(api: Services, tenant: str, beginning: str) -> list[ObjectInfo]:
    return list(api.objects.list(upload_key(tenant, beginning, "").rstrip("/")))


def _file(info: ObjectInfo) -> dict[str, Any]:
    *_, file_id, name = info.key.split("/")
    return _card(file_id, name, info.size_bytes, info.modified_s, "batch")


def _card(file_id: str, name: str, size_bytes: int, created_s: float, purpose: str) -> dict[str, Any]:
    return {
        "id": file_id, "object": "file", "bytes": size_bytes, "created_at": int(created_s), "filename": name,
        "purpose": purpose, "status": "processed",
    }  # fmt: skip
