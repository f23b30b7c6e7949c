"""Streamed text in OpenAI's formats: chunks as server-sent events, then `[DONE]`, or events of a response."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message

from penstock.api.errors import status_of
from penstock.api.facades.calls import Call, require_success
from penstock.api.facades.errors import facade_status, openai_error
from penstock.api.facades.openai.answers import Chunks, UnsentText
from penstock.api.facades.openai.responses import ResponseEvents
from penstock.api.routes.events import POLL_INTERVAL_S, follow
from penstock.errors import ModelServerFailed, PenstockError, Unauthorized
from penstock.jobs import Job
from penstock.storage.journal import journal

log = structlog.get_logger(__name__)


async def stream(call: Call, job: Job, chunks: Chunks | ResponseEvents) -> EventSourceResponse:
    """Return the chunks of a job as a stream. A job that fails before its first text raises its error instead.

    Closing the stream cancels the job.
    """
    deltas = _deltas(call, job)
    first = await call.while_connected(job, anext(deltas))

    async def disconnected(_: Message) -> None:
        await call.abandon(job)

    return EventSourceResponse(
        _events(deltas, first, chunks), ping=POLL_INTERVAL_S, sep="\n", headers={"x-request-id": job.key.id},
        client_close_handler_callable=disconnected,
    )  # fmt: skip


async def _deltas(call: Call, job: Job) -> AsyncGenerator[str | Job]:
    """Yield a job's text in deltas, then the finished job; raise the job's error, and the errors of `unchanged`."""
    unsent, sent = UnsentText(), ""
    async with aclosing(follow(call.api, job.key, call.caller)) as events:
        async for event in events:
            if delta := unsent.delta(event):
                sent += delta
                yield delta
    ended = await call.api.whole(await call.api.journal.run(journal.read(job.key)))
    if not ended.status.terminal:
        raise Unauthorized("the API key is no longer valid")
    if rest := unsent.rest(unchanged(require_success(ended).text or "", sent)):
        yield rest
    yield ended


def unchanged(text: str, sent: str) -> str:
    """Return a text; raise `ModelServerFailed` if it does not begin with what was sent.

    A further attempt changes texts that are chosen at random without a seed, and maybe those of servers.
    """
    if not text.startswith(sent):
        raise ModelServerFailed("the text was made anew after a failure and differs from what was sent: ask again")
    return text


async def _events(
    deltas: AsyncGenerator[str | Job], first: str | Job, chunks: Chunks | ResponseEvents
) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(deltas):
        try:
            async for chunk in _chunks(deltas, first, chunks):
                yield _event(chunk)
        except PenstockError as error:
            log.info("stream.interrupted", job=chunks.job.key.id, code=error.code)
            report = error.report()
            yield _event(chunks.failed(openai_error(report, facade_status(report, status_of(error)))))
            return
    if chunks.end is not None:
        yield ServerSentEvent(chunks.end)


async def _chunks(
    deltas: AsyncGenerator[str | Job], found: str | Job, chunks: Chunks | ResponseEvents
) -> AsyncIterator[dict[str, Any]]:
    for chunk in chunks.first():
        yield chunk
    while isinstance(found, str):
        yield chunks.text(found)
        found = await anext(deltas)
    for chunk in chunks.last(found):
        yield chunk


def _event(data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(data, ensure_ascii=False, separators=(",", ":")), event=data.get("type"))
