"""The client: submit a job, follow it, fetch its result.

    with Client("http://127.0.0.1:8080") as penstock:
        job = penstock.submit("csmask", files={"scene": "scene.tif"})
        job = penstock.wait(job.id)
        penstock.download(job, Path("result"))

`Client` and `AsyncClient` have the same methods. Every request is safe to repeat and is repeated by itself when the
connection fails or the service says 429 or 503, as long as the waiting takes no longer than `patience_s`. They raise
`PenstockAPIError` (the service's problem), `Unreachable`, `Corrupt`, or their base `ClientError`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import httpx
import httpx_sse
from standardwebhooks import Webhook, WebhookVerificationError

from penstock import wire
from penstock.answers import (
    Artifact,
    ClientError,
    Corrupt,
    Event,
    Job,
    ModelInfo,
    Page,
    PenstockAPIError,
    Queue,
    Unreachable,
    WebhookRefused,
)
from penstock.operations import CHUNK_BYTES, Files, Operations, Part, chunks
from penstock.wire import Flow, JobOptions, OnBytes, Pause, Reply, Request, Upload

__all__ = [
    "Artifact", "AsyncClient", "Client", "ClientError", "Corrupt", "Event", "Job", "JobOptions", "ModelInfo", "Page",
    "PenstockAPIError", "Queue", "Unreachable", "WebhookRefused", "verify_webhook",
]  # fmt: skip

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"
PATIENCE_S = 60.0
#: The service says something at least every 15 s on a stream of events.
STREAM_IDLE_S = 45.0
_ANSWER_S, _CONNECT_S = 30.0, 5.0


def verify_webhook(body: bytes | str, headers: Mapping[str, str], secret: str) -> dict[str, Any]:
    """Return a webhook's content; raise `WebhookRefused` unless it was signed with the secret in the last 5 minutes."""
    try:
        content: dict[str, Any] = Webhook(secret).verify(body, dict(headers))
    except WebhookVerificationError as error:
        raise WebhookRefused(str(error)) from error
    return content


class Client:
    """The sync client. Close it, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**_options(base_url), transport=transport)
        self._do = Operations(patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and return it; `files` are uploaded first and named in their fields of `input`."""
        return self._run(self._do.submit(model, input or {}, files or {}, on_bytes, options))

    def upload(self, path: str | Path, *, on_bytes: OnBytes | None = None) -> str:
        """Send a local file and return its `media://` reference."""
        return self._run(self._do.upload(Path(path), on_bytes))

    def job(self, job_id: str, *, wait_s: float = 0) -> Job:
        """Return a job, at once or when it ended (after at most `wait_s`, 60)."""
        return self._run(self._do.job(job_id, wait_s))

    def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of jobs, newest first."""
        return self._run(self._do.jobs(status=status, model=model, limit=limit, cursor=cursor))

    def wait(self, job_id: str, *, on_event: Callable[[Event], None] | None = None) -> Job:
        """Return the job when it ended, however long that takes; `on_event` is told what happens meanwhile."""
        if on_event is not None:
            for event in self.events(job_id):
                on_event(event)
        return self._run(self._do.wait(job_id))

    def events(self, job_id: str, *, after: str = "") -> Iterator[Event]:
        """Yield what happens to a job until it ended, from the beginning or after an event's id.

        The first event is `snapshot`, the job itself, and again after each time the connection was lost.
        """
        reader = wire.EventReader(job_id, after, wire.Delays(self._do.patience_s, self._do.draw))
        while not reader.over:
            try:
                with self._http.stream(**_stream(reader.request)) as response:
                    if response.status_code >= 400:
                        response.read()
                    for sent in httpx_sse.EventSource(_accepted(response)).iter_sse():
                        if (event := reader.take(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx.TransportError as error:
                delay_s = reader.failed(self._unreachable(error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            time.sleep(delay_s)

    def event_list(self, job_id: str) -> list[Event]:
        """Return what happened to a job so far, oldest first."""
        return self._run(self._do.event_list(job_id))

    def deliveries(self, job_id: str) -> list[dict[str, Any]]:
        """Return the webhook deliveries of a job with each try, as the API tells them."""
        return self._run(self._do.deliveries(job_id))

    def cancel(self, job_id: str) -> Job:
        """Ask for a job's end and return it; a running one may still be `canceling`."""
        return self._run(self._do.cancel(job_id))

    def delete(self, job_id: str) -> None:
        """Delete a job and its artifacts; a running one is canceled first and waited for."""
        self._run(self._do.delete(job_id))

    def download(self, job: Job, folder: str | Path, *, on_bytes: OnBytes | None = None) -> list[Path]:
        """Save a job's artifacts, `manifest.json` and `job.json` in a folder; return the files.

        Each appears under its name only when its bytes are those that the job names; raises `Corrupt` otherwise.
        """
        return self._run(self._do.download(job, Path(folder), on_bytes))

    def models(self) -> list[ModelInfo]:
        """Return the service's models."""
        return self._run(self._do.models())

    def model(self, name: str) -> ModelInfo:
        """Return a model with its input's JSON Schema."""
        return self._run(self._do.model(name))

    def queue(self, name: str = "default") -> Queue:
        """Return a queue's depth and speed."""
        return self._run(self._do.queue(name))

    def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    reply = self._perform(step)
                except httpx.TransportError as error:
                    step = flow.throw(self._unreachable(error))
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, request: Request) -> Reply:
        content = chunks(request.upload) if request.upload else _body(request)
        with self._http.stream(**_stream(request), content=content) as response:
            if request.save is None or response.status_code >= 400:
                return Reply(response.status_code, response.headers, response.read())
            with Part(request.save) as part:
                for chunk in response.iter_bytes(CHUNK_BYTES):
                    part.write(chunk)
            return Reply(response.status_code, response.headers, b"")

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        return _no_answer(self._http.base_url, error)


class AsyncClient:
    """The same for asyncio. Close it, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**_options(base_url), transport=transport)
        self._do = Operations(patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        model: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  (the API's own word)
        *,
        files: Files | None = None,
        on_bytes: OnBytes | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and return it; `files` are uploaded first and named in their fields of `input`."""
        return await self._run(self._do.submit(model, input or {}, files or {}, on_bytes, options))

    async def upload(self, path: str | Path, *, on_bytes: OnBytes | None = None) -> str:
        """Send a local file and return its `media://` reference."""
        return await self._run(self._do.upload(Path(path), on_bytes))

    async def job(self, job_id: str, *, wait_s: float = 0) -> Job:
        """Return a job, at once or when it ended (after at most `wait_s`, 60)."""
        return await self._run(self._do.job(job_id, wait_s))

    async def jobs(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of jobs, newest first."""
        return await self._run(self._do.jobs(status=status, model=model, limit=limit, cursor=cursor))

    async def wait(self, job_id: str, *, on_event: Callable[[Event], None] | None = None) -> Job:
        """Return the job when it ended, however long that takes; `on_event` is told what happens meanwhile."""
        if on_event is not None:
            async for event in self.events(job_id):
                on_event(event)
        return await self._run(self._do.wait(job_id))

    async def events(self, job_id: str, *, after: str = "") -> AsyncIterator[Event]:
        """Yield what happens to a job until it ended; see `Client.events`."""
        reader = wire.EventReader(job_id, after, wire.Delays(self._do.patience_s, self._do.draw))
        while not reader.over:
            try:
                async with self._http.stream(**_stream(reader.request)) as response:
                    if response.status_code >= 400:
                        await response.aread()
                    async for sent in httpx_sse.EventSource(_accepted(response)).aiter_sse():
                        if (event := reader.take(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx.TransportError as error:
                delay_s = reader.failed(_no_answer(self._http.base_url, error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            await asyncio.sleep(delay_s)

    async def event_list(self, job_id: str) -> list[Event]:
        """Return what happened to a job so far, oldest first."""
        return await self._run(self._do.event_list(job_id))

    async def deliveries(self, job_id: str) -> list[dict[str, Any]]:
        """Return the webhook deliveries of a job with each try, as the API tells them."""
        return await self._run(self._do.deliveries(job_id))

    async def cancel(self, job_id: str) -> Job:
        """Ask for a job's end and return it; a running one may still be `canceling`."""
        return await self._run(self._do.cancel(job_id))

    async def delete(self, job_id: str) -> None:
        """Delete a job and its artifacts; a running one is canceled first and waited for."""
        await self._run(self._do.delete(job_id))

    async def download(self, job: Job, folder: str | Path, *, on_bytes: OnBytes | None = None) -> list[Path]:
        """Save a job's artifacts, `manifest.json` and `job.json` in a folder; see `Client.download`."""
        return await self._run(self._do.download(job, Path(folder), on_bytes))

    async def models(self) -> list[ModelInfo]:
        """Return the service's models."""
        return await self._run(self._do.models())

    async def model(self, name: str) -> ModelInfo:
        """Return a model with its input's JSON Schema."""
        return await self._run(self._do.model(name))

    async def queue(self, name: str = "default") -> Queue:
        """Return a queue's depth and speed."""
        return await self._run(self._do.queue(name))

    async def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    reply = await self._perform(step)
                except httpx.TransportError as error:
                    step = flow.throw(_no_answer(self._http.base_url, error))
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, request: Request) -> Reply:
        content = _async_chunks(request.upload) if request.upload else _body(request)
        async with self._http.stream(**_stream(request), content=content) as response:
            if request.save is None or response.status_code >= 400:
                return Reply(response.status_code, response.headers, await response.aread())
            with Part(request.save) as part:
                async for chunk in response.aiter_bytes(CHUNK_BYTES):
                    part.write(chunk)
            return Reply(response.status_code, response.headers, b"")


def _options(base_url: str) -> dict[str, Any]:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{base_url!r} is not the address of a service: http://host:port is meant")
    # A proxy of the environment is never meant for a service on this machine.
    return {"base_url": base_url, "trust_env": not _is_loopback(parts.hostname)}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _stream(request: Request) -> dict[str, Any]:
    events = request.headers.get("Accept") == "text/event-stream"
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query) or None,
        "headers": _headers(request),
        "timeout": httpx.Timeout(STREAM_IDLE_S if events else _ANSWER_S + request.wait_s, connect=_CONNECT_S),
        # An artifact on S3 is a redirect to a signed link.
        "follow_redirects": request.save is not None,
    }


def _headers(request: Request) -> dict[str, str]:
    own = {}
    if request.upload is not None:
        own["Content-Length"] = str(request.upload.size_bytes)
    elif request.body is not None:
        own["Content-Type"] = "application/json"
    return {**own, **request.headers}


def _body(request: Request) -> bytes | None:
    return None if request.body is None else json.dumps(request.body).encode()


def _accepted(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 400 and (
        error := wire.refusal(Reply(response.status_code, response.headers, response.content))
    ):
        raise error
    return response


def _no_answer(base_url: httpx.URL, error: httpx.TransportError) -> Unreachable:
    reason = str(error) or type(error).__name__
    return Unreachable(f"no answer from {str(base_url).rstrip('/')}: {reason}")


async def _async_chunks(upload: Upload) -> AsyncIterator[bytes]:
    pieces = chunks(upload)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
