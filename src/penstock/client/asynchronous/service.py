"""The connections to a service: requests with retries, and their answers."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event as StopEvent
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import httpx2

from penstock.client import connection
from penstock.client.answers import Event, PenstockAPIError, Unreachable
from penstock.client.connection import RequestOptions, reading
from penstock.client.decoding import read
from penstock.client.downloads import CHUNK_BYTES, PartialDownload, Save
from penstock.client.event_stream import EventReader
from penstock.client.options import OnRetry
from penstock.client.retries import Deadline, Delays
from penstock.client.tasks import Call, Pause, cut_off, in_thread, pause
from penstock.client.uploads import Upload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")
T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class AsyncService:
    """A service. Every request is safe to repeat, and is repeated after failures for at most `patience_s` seconds.

    Requests raise `Unreachable` or `PenstockAPIError`.
    """

    #: The address, as it was given.
    address: str
    http: httpx2.AsyncClient
    patience_s: float
    api_key: str | None = None
    #: The folder for notes of unfinished uploads; None = no notes.
    state_dir: Path | None = None
    #: Called before each retry.
    on_retry: OnRetry | None = None
    #: Returns the jitter of delays, 0 to 1.
    draw: Callable[[], float] = random.random
    #: Waits between the tries.
    pause: Pause = pause

    async def send(self, method: str, path: str, **request: Unpack[RequestOptions]) -> httpx2.Response:
        """Send a request and return its answer, which was read."""
        return await self._repeated(partial(self._answer, method, path, request), request.get("stop"))

    async def fetch(self, method: str, path: str, **request: Unpack[RequestOptions]) -> Any:
        """Send a request and return the JSON of its answer; None for an empty answer."""
        response = await self.send(method, path, **request)
        if not response.content:
            return None
        with reading(response) as document:
            return document

    async def value(self, kind: type[T], method: str, path: str, **request: Unpack[RequestOptions]) -> T:
        """Send a request and return its answer as a value."""
        with reading(await self.send(method, path, **request)) as document:
            return read(kind, document)

    async def values(self, kind: type[T], name: str, path: str, **request: Unpack[RequestOptions]) -> list[T]:
        """Return the values in the list `name` of an answer."""
        with reading(await self.send("GET", path, **request)) as document:
            return [read(kind, each) for each in document[name]]

    async def save(self, path: str, save: Save, stop: StopEvent) -> None:
        """Download an artifact; raise `Corrupt` where size or SHA-256 are not the artifact's."""
        await self._repeated(partial(self._download, path, save), stop)

    async def events(self, job_id: str, after: str, deadline: Deadline) -> AsyncGenerator[Event, None]:
        """Yield the events of a job until it ends or the time is over, over broken connections."""
        reader = EventReader(job_id, after, Delays(self.patience_s, self.draw, self.on_retry), deadline)
        while not reader.over:
            arguments = connection.arguments("GET", reader.path, {"headers": reader.headers}, self.api_key)
            try:
                async with self.http.stream(**arguments) as response, cut_off(response, deadline.left_s()):
                    if response.status_code != 200:
                        await response.aread()
                    async for sent in connection.events(response):
                        if (event := reader.read(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx2.RequestError as error:
                delay_s = reader.failed(connection.no_answer(self.http.base_url, error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            await self.pause(delay_s, None)

    async def _repeated(self, attempt: Call[R], stop: StopEvent | None) -> R:
        delays = Delays(self.patience_s, self.draw, self.on_retry)
        while True:
            try:
                return await self._attempted(attempt)
            except (Unreachable, PenstockAPIError) as error:
                delay_s = delays.next(error)
            await self.pause(delay_s, stop)

    async def _attempted(self, attempt: Call[R]) -> R:
        try:
            return await attempt()
        except httpx2.RequestError as error:
            raise connection.no_answer(self.http.base_url, error) from error

    async def _answer(self, method: str, path: str, request: RequestOptions) -> httpx2.Response:
        arguments = connection.arguments(method, path, request, self.api_key)
        if (upload := request.get("upload")) is not None:
            arguments["content"] = _chunks(upload)
        response = await self.http.request(**arguments)
        connection.check(response)
        return response

    async def _download(self, path: str, save: Save) -> None:
        with closing(await in_thread(PartialDownload.open, save)) as download:
            if not download.complete:
                # An artifact on S3 is a redirect to a signed URL.
                arguments = connection.arguments("GET", path, {"headers": download.headers}, self.api_key)
                async with self.http.stream(**arguments, follow_redirects=True) as response:
                    if response.status_code >= 300:
                        await response.aread()
                        connection.check(response)
                    download.begin(response.status_code)
                    async for chunk in response.aiter_bytes(CHUNK_BYTES):
                        download.write(chunk)
            download.finish()


class AsyncPart:
    """A part of the client: methods that send requests to its service."""

    def __init__(self, service: AsyncService) -> None:
        self._service = service


async def _chunks(upload: Upload) -> AsyncIterator[bytes]:
    source = upload.chunks()
    while (chunk := await in_thread(next, source, None)) is not None:
        yield chunk
