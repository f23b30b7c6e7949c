"""The results of a job as OGC API - Processes answers with them: as a document, or each in its own form.

What is larger than `MAX_VALUE_BYTES`, of all that one answer holds by value, is told by reference: the API holds an
answer in memory. A single file in its own form has no such limit, it comes from where files come from.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from penstock import ogc
from penstock.api.artifacts import send_artifact
from penstock.api.services import Services
from penstock.errors import ObjectNotFound, ResultNotReady, UnknownArtifact
from penstock.jobs import Artifact, Job
from penstock.ogc import Asked, Piece, Wanted
from penstock.storage import catalogues

#: Of one answer: about what ten of them may take of an API's memory at a time, in base64, is 150 MB.
MAX_VALUE_BYTES = 10_000_000


async def results(api: Services, job: Job, request: Request) -> Response:
    """Return the results of a job that succeeded, in the form that its execute request asked for."""
    asked = ogc.asked_of(job) or await _everything(api, job)
    found = _within_limit(ogc.pieces(job, asked.outputs, api.settings.base_url))
    if asked.response == "document":
        return await _document(api, found)
    if len(found) == 1 and not found[0].by_reference:
        return await raw(api, found[0], request)
    if all(piece.by_reference for piece in found):
        return Response(status_code=204, headers={"Link": ", ".join(map(_link_header, found))} if found else None)
    return await _multipart(api, found)


async def output(api: Services, job: Job, name: str, request: Request) -> Response:
    """Return one output of a job that succeeded in its own form; `UnknownArtifact` where it was not made."""
    asked = ogc.asked_of(job) or await _everything(api, job)
    found = [piece for piece in ogc.pieces(job, asked.outputs, api.settings.base_url) if piece.output == name]
    if not found:
        raise UnknownArtifact(f"the job's outputs: {', '.join(each.name for each in asked.outputs) or 'none'}")
    if len(found) == 1:
        return await raw(api, found[0], request)
    return await _multipart(api, _within_limit([replace(piece, by_reference=False) for piece in found]))


async def raw(api: Services, piece: Piece, request: Request) -> Response:
    """Return a piece in its own form. A large file of a bucket is a redirect to it (303)."""
    if piece.file is None:
        return Response(piece.data, media_type=piece.media_type)
    if not api.store_is_local and piece.size_bytes <= MAX_VALUE_BYTES:
        return Response(await _read(api, piece.file), media_type=piece.media_type)
    answer = await send_artifact(api, piece.file, request)
    if isinstance(answer, RedirectResponse):
        answer.status_code = 303  # of a POST, 302 does not say by which method to go on
    return answer


def require_end(job: Job) -> None:
    """Raise `ResultNotReady` for a job that is not over."""
    if not job.status.terminal:
        raise ResultNotReady(f"the job is {ogc.STATUSES[job.status]}")


async def _everything(api: Services, job: Job) -> Asked:
    """Return what to tell of a job that came another way: all outputs of its model, or its files by their names."""
    entry = (await api.jobs.run(catalogues.catalogue())).get(job.submission.model)
    if entry is not None:
        outputs = [Wanted(found.name, found.media_type, by_reference=True) for found in entry.outputs]
    else:
        outputs = [Wanted(file.name.partition(".")[0], file.content_type, by_reference=True) for file in job.artifacts]
    return Asked("document", tuple(outputs))


def _within_limit(found: Sequence[Piece]) -> list[Piece]:
    """Return the pieces, by reference what does not fit into one answer any more."""
    if len(found) == 1:
        return list(found)
    left, made = MAX_VALUE_BYTES, []
    for piece in found:
        fits = piece.by_reference or piece.size_bytes <= left
        left -= piece.size_bytes if fits and not piece.by_reference else 0
        made.append(piece if fits else replace(piece, by_reference=True))
    return made


async def _document(api: Services, found: Sequence[Piece]) -> Response:
    entries = []
    for piece in found:
        by_reference = piece.by_reference or piece.size_bytes > MAX_VALUE_BYTES
        entry = ogc.link(piece) if by_reference else ogc.value(piece, await _bytes(api, piece))
        entries.append((piece.output, entry))
    return JSONResponse(ogc.document(entries))


async def _multipart(api: Services, found: Sequence[Piece]) -> Response:
    """Return all pieces as parts (RFC 2387); one by reference is empty and says where it is."""
    boundary = uuid.uuid4().hex
    body = bytearray()
    for piece in found:
        data = b"" if piece.by_reference else await _bytes(api, piece)
        place = f"Content-Location: {piece.href}\r\n" if piece.by_reference else ""
        head = f"--{boundary}\r\nContent-ID: {piece.output}\r\nContent-Type: {piece.media_type}\r\n{place}\r\n"
        body += head.encode() + data + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    kind = f'multipart/related; type="{ogc.essence(found[0].media_type)}"; boundary={boundary}'
    return Response(bytes(body), media_type=kind)


def _link_header(piece: Piece) -> str:
    return f'<{piece.href}>; rel="item"; title="{piece.output}"; type="{piece.media_type}"'


async def _bytes(api: Services, piece: Piece) -> bytes:
    return piece.data if piece.file is None else await _read(api, piece.file)


async def _read(api: Services, file: Artifact) -> bytes:
    try:
        return await asyncio.to_thread(api.objects.get_bytes, file.key, limit_bytes=MAX_VALUE_BYTES)
    except ObjectNotFound as error:
        raise UnknownArtifact("the file is gone") from error
