# Generated from the module in asynchronous by `make client`.
"""The connections to a service: requests with retries, and their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
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
from penstock.client.threads import Call, Pause, cut_off, in_thread, pause
from penstock.client.uploads import Upload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")
T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class SyncService:
    """A service. Every request is safe to repeat, and is repeated after failures for at most `patience_s` seconds.

    Requests raise `Unreachable` or `PenstockAPIError`.
    """

    #: The address, as it was given.
    address: str
    http: httpx2.Client
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

    def send(self, method: str, path: str, **request: Unpack[RequestOptions]) -> httpx2.Response:
        """Send a request and return its answer, which was read."""
        return self._repeated(partial(self._answer, method, path, request), request.get("stop"))

    def fetch(self, method: str, path: str, **request: Unpack[RequestOptions]) -> Any:
        """Send a request and return the JSON of its answer; None for an empty answer."""
        response = self.send(method, path, **request)
        if not response.content:
            return None
        with reading(response) as document:
            return document

    def value(self, kind: type[T], method: str, path: str, **request: Unpack[RequestOptions]) -> T:
        """Send a request and return its answer as a value."""
        with reading(self.send(method, path, **request)) as document:
            return read(kind, document)

    def values(self, kind: type[T], name: str, path: str, **request: Unpack[RequestOptions]) -> list[T]:
        """Return the values in the list `name` of an answer."""
        with reading(self.send("GET", path, **request)) as document:
            return [read(kind, each) for each in document[name]]

    def save(self, path: str, save: Save, stop: StopEvent) -> None:
        """Download an artifact; raise `Corrupt` where size or SHA-256 are not the artifact's."""
        self._repeated(partial(self._download, path, save), stop)

    def events(self, job_id: str, after: str, deadline: Deadline) -> Generator[Event, None]:
        """Yield the events of a job until it ends or the time is over, over broken connections."""
        reader = EventReader(job_id, after, Delays(self.patience_s, self.draw, self.on_retry), deadline)
        while not reader.over:
            arguments = connection.arguments("GET", reader.path, {"headers": reader.headers}, self.api_key)
            try:
                with self.http.stream(**arguments) as response, cut_off(response, deadline.left_s()):
                    if response.status_code != 200:
                        response.read()
                    for sent in connection.events(response):
                        if (event := reader.read(sent.event, sent.data)) is not None:
                            yield event
                delay_s = reader.closed()
            except httpx2.RequestError as error:
                delay_s = reader.failed(connection.no_answer(self.http.base_url, error))
            except PenstockAPIError as error:
                delay_s = reader.failed(error)
            self.pause(delay_s, None)

    def _repeated(self, attempt: Call[R], stop: StopEvent | None) -> R:
        delays = Delays(self.patience_s, self.draw, self.on_retry)
        while True:
            try:
                return self._attempted(attempt)
            except (Unreachable, PenstockAPIError) as error:
                delay_s = delays.next(error)
            self.pause(delay_s, stop)

    def _attempted(self, attempt: Call[R]) -> R:
        try:
            return attempt()
        except httpx2.RequestError as error:
            raise connection.no_answer(self.http.base_url, error) from error

    def _answer(self, method: str, path: str, request: RequestOptions) -> httpx2.Response:
        arguments = connection.arguments(method, path, request, self.api_key)
        if (upload := request.get("upload")) is not None:
            arguments["content"] = _chunks(upload)
        response = self.http.request(**arguments)
        connection.check(response)
        return response

    def _download(self, path: str, save: Save) -> None:
        with closing(in_thread(PartialDownload.open, save)) as download:
            if not download.complete:
                # An artifact on S3 is a redirect to a signed URL.
                arguments = connection.arguments("GET", path, {"headers": download.headers}, self.api_key)
                with self.http.stream(**arguments, follow_redirects=True) as response:
                    if response.status_code >= 300:
                        response.read()
                        connection.check(response)
                    download.begin(response.status_code)
                    for chunk in response.iter_bytes(CHUNK_BYTES):
                        download.write(chunk)
            download.finish()


class SyncPart:
    """A part of the client: methods that send requests to its service."""

    def __init__(self, service: SyncService) -> None:
        self._service = service


def _chunks(upload: Upload) -> Iterator[bytes]:
    source = upload.chunks()
    while (chunk := in_thread(next, source, None)) is not None:
        yield chunk
