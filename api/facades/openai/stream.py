"""A job's text as OpenAI's clients read it while it is made: chunks as server-sent events, `[DONE]` at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message

from penstock.api.errors import status_of
from penstock.api.events import LOOK_EVERY_S, follow
from penstock.api.facades.calls import Call, require_success
from penstock.api.facades.errors import facade_status, openai_error
from penstock.api.facades.openai.answers import Chunks, Telling
from penstock.errors import PenstockError, Unauthorized
from penstock.jobs import Job
from penstock.storage import journal

log = structlog.get_logger(__name__)


async def stream(call: Call, job: Job, chunks: Chunks) -> EventSourceResponse:
    """Answer with the chunks of a job. Until there is text the status is open: a job that fails before is an error.

    Closing the stream cancels the job.
    """
    pieces = _pieces(call, job)
    begun = await call.unless_left(job, anext(pieces))

    async def left(_: Message) -> None:
        await call.give_up(job)

    return EventSourceResponse(
        _events(pieces, begun, chunks), ping=LOOK_EVERY_S, sep="\n", headers={"x-request-id": job.key.id},
        client_close_handler_callable=left,
    )  # fmt: skip


async def _pieces(call: Call, job: Job) -> AsyncGenerator[str | Job]:
    """Yield the pieces of a job's text, and last the job itself; raise why it has no result."""
    telling = Telling()
    async with aclosing(follow(call.api, job.key, call.caller)) as events:
        async for event in events:
            if piece := telling.piece(event):
                yield piece
    ended = await call.api.journal.run(journal.read(job.key))
    if not ended.status.terminal:
        raise Unauthorized("the API key is not valid any more")
    if rest := telling.rest(require_success(ended).text or ""):
        yield rest
    yield ended


async def _events(
    pieces: AsyncGenerator[str | Job], begun: str | Job, chunks: Chunks
) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(pieces):
        try:
            async for chunk in _chunks(pieces, begun, chunks):
                yield _event(chunk)
        except PenstockError as error:
            log.info("stream.broke_off", job=chunks.job.key.id, code=error.code)
            report = error.report()
            yield _event({"error": openai_error(report, facade_status(report, status_of(error)))})
            return
    yield ServerSentEvent("[DONE]")


async def _chunks(pieces: AsyncGenerator[str | Job], found: str | Job, chunks: Chunks) -> AsyncIterator[dict[str, Any]]:
    for chunk in chunks.first():
        yield chunk
    while isinstance(found, str):
        yield chunks.text(found)
        found = await anext(pieces)
    for chunk in chunks.last(found):
        yield chunk


def _event(data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
