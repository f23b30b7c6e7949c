"""A service that answers requests from a list, behind the client's HTTP library."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import httpx2

from penstock.client.asynchronous.service import AsyncService

ADDRESS = "http://service.test"


class Answering:
    """Answers each request with the next answer, or raises it. Notes the requests, and the pauses between the tries."""

    def __init__(self, *answers: httpx2.Response | httpx2.RequestError) -> None:
        self._answers = list(answers)
        self.asked: list[httpx2.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, httpx2.RequestError):
            raise answer
        return answer

    @property
    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self)

    def service(self, patience_s: float = 60) -> AsyncService:
        """Return the client's side of the service, whose delays have no jitter and pass at once."""

        async def pause(seconds: float, _stop: Event | None) -> None:
            self.pauses.append(seconds)

        http = httpx2.AsyncClient(base_url=ADDRESS, transport=self.transport)
        return AsyncService(address=ADDRESS, http=http, patience_s=patience_s, draw=lambda: 1.0, pause=pause)

    def body(self, number: int) -> Any:
        """Return the JSON of a request."""
        return json.loads(self.asked[number].content)


def problem(status: int, code: str, *, retryable: bool, **headers: str) -> httpx2.Response:
    """Return an error of the service."""
    return httpx2.Response(status, headers=headers, json={"code": code, "detail": code, "retryable": retryable})
