"""Results of OGC API - Processes: as one document, or as raw outputs.

The API holds a response in memory, so values beyond `MAX_VALUE_BYTES` per response are given by reference. A single raw
file has no such limit, because it is sent like an artifact.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from penstock.api.facades.ogc.processes import outputs_of
from penstock.api.routes.artifacts import send_artifact
from penstock.api.services import Services
from penstock.errors import ObjectNotFound, ResultNotReady, UnknownArtifact
from penstock.intake import ogc
from penstock.intake.ogc import OutputPart, RequestedAnswer, RequestedOutput
from penstock.jobs import Artifact, Job
from penstock.media_types import essence

#: Bytes of values per response: ten concurrent responses take about 150 MB as base64.
MAX_VALUE_BYTES = 10_000_000


async def results(api: Services, job: Job, request: Request) -> Response:
    """Return the results of a succeeded job in the form that its execute request asked for."""
    job = await api.whole(job)
    requested = ogc.requested_answer(job) or await _all_outputs(api, job)
    found = _within_limit(ogc.output_parts(job, requested.outputs, api.settings.base_url))
    if requested.response == "document":
        return await _document(api, found)
    if len(found) == 1 and not found[0].by_reference:
        return await raw(api, found[0], request)
    if all(piece.by_reference for piece in found):
        return Response(status_code=204, headers={"Link": ", ".join(map(_link_header, found))} if found else None)
    return await _multipart(api, found)


async def output(api: Services, job: Job, name: str, request: Request) -> Response:
    """Return one raw output of a succeeded job; raise `UnknownArtifact` where there is none."""
    job = await api.whole(job)
    requested = ogc.requested_answer(job) or await _all_outputs(api, job)
    found = [piece for piece in ogc.output_parts(job, requested.outputs, api.settings.base_url) if piece.output == name]
    if not found:
        known = ", ".join(each.name for each in requested.outputs) or "none"
        raise UnknownArtifact(f"the job has no output {name!r}; its outputs: {known}")
    if len(found) == 1:
        return await raw(api, found[0], request)
    return await _multipart(api, _within_limit([replace(piece, by_reference=False) for piece in found]))


async def raw(api: Services, piece: OutputPart, request: Request) -> Response:
    """Return a raw output. A large file in a bucket is a redirect (303)."""
    if piece.file is None:
        return Response(piece.data, media_type=piece.media_type)
    if not api.store_is_local and piece.size_bytes <= MAX_VALUE_BYTES:
        return Response(await _read(api, piece.file), media_type=piece.media_type)
    answer = await send_artifact(api, piece.file, request)
    if isinstance(answer, RedirectResponse):
        answer.status_code = 303  # after a POST, 302 leaves the next method undefined
    return answer


def require_end(job: Job) -> None:
    """Raise `ResultNotReady` for a job that has not ended."""
    if not job.status.terminal:
        raise ResultNotReady(f"the job is {ogc.STATUSES[job.status]}")


async def _all_outputs(api: Services, job: Job) -> RequestedAnswer:
    """Return the outputs of a job from another interface: those of its model, or its files by name."""
    entry = (await api.models.read(job.submission.model)).get(job.submission.model)
    if entry is not None:
        outputs = [RequestedOutput(found.name, found.media_type, by_reference=True) for found in outputs_of(entry)]
    else:
        outputs = [
            RequestedOutput(file.name.partition(".")[0], file.content_type, by_reference=True) for file in job.artifacts
        ]
    return RequestedAnswer("document", tuple(outputs))


def _within_limit(found: Sequence[OutputPart]) -> list[OutputPart]:
    """Return the outputs, by reference once the values exceed `MAX_VALUE_BYTES`."""
    if len(found) == 1:
        return list(found)
    left, made = MAX_VALUE_BYTES, []
    for piece in found:
        fits = piece.by_reference or piece.size_bytes <= left
        left -= piece.size_bytes if fits and not piece.by_reference else 0
        made.append(piece if fits else replace(piece, by_reference=True))
    return made


async def _document(api: Services, found: Sequence[OutputPart]) -> Response:
    entries = []
    for piece in found:
        by_reference = piece.by_reference or piece.size_bytes > MAX_VALUE_BYTES
        entry = ogc.link(piece) if by_reference else ogc.value(piece, await _bytes(api, piece))
        entries.append((piece.output, entry))
    return JSONResponse(ogc.document(entries))


async def _multipart(api: Services, found: Sequence[OutputPart]) -> Response:
    """Return the outputs as multipart/related (RFC 2387). An output by reference is an empty part with its location."""
    boundary = uuid.uuid4().hex
    body = bytearray()
    for piece in found:
        data = b"" if piece.by_reference else await _bytes(api, piece)
        place = f"Content-Location: {piece.href}\r\n" if piece.by_reference else ""
        head = f"--{boundary}\r\nContent-ID: {piece.output}\r\nContent-Type: {piece.media_type}\r\n{place}\r\n"
        body += head.encode() + data + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    kind = f'multipart/related; type="{essence(found[0].media_type)}"; boundary={boundary}'
    return Response(bytes(body), media_type=kind)


def _link_header(piece: OutputPart) -> str:
    return f'<{piece.href}>; rel="item"; title="{piece.output}"; type="{piece.media_type}"'


async def _bytes(api: Services, piece: OutputPart) -> bytes:
    return piece.data if piece.file is None else await _read(api, piece.file)


async def _read(api: Services, file: Artifact) -> bytes:
    try:
        return await asyncio.to_thread(api.objects.get_bytes, file.key, limit_bytes=MAX_VALUE_BYTES)
    except ObjectNotFound as error:
        raise UnknownArtifact("the file no longer exists") from error
