"""The short way of a plain submission: `POST /v1/jobs` with one small body, past FastAPI's routes and our middlewares.

They cost more than the job itself: 2 ms of processor time. The short way makes the same checks in the same order with
the same functions, and gives the same answers (`tests/integration/test_short_way.py` compares both). A submission may
wait for the end of its job (`Prefer`). Every other request goes the long way: with a query, a repeated or a special
header, a key that needs a look-up, a large body, or a trace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.admission.control import LimitedRoute, refusal_of
from penstock.api.admission.pace import FREE_BYTES
from penstock.api.auth import known_tenant
from penstock.api.body import require_type
from penstock.api.errors import bug_response, error_response, status_of, unlogged_error_response
from penstock.api.hosts import HostCheck
from penstock.api.routes.jobs import new_key, preferred_wait, submission_headers, submit, submit_and_wait, waited
from penstock.api.services import Services
from penstock.documents import is_small, read_document, validated
from penstock.errors import PayloadTooLarge, PenstockError
from penstock.intake.submissions import Origin
from penstock.requests import JobRequest

PATH = "/v1/jobs"
_ROUTE = LimitedRoute(PATH, submits=True)
#: Headers of requests that go the long way.
_SPECIAL = frozenset({b"traceparent", b"transfer-encoding", b"expect"})

_read = partial(validated, JobRequest)
log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True)
class _Visit:
    """A plain submission."""

    scope: Scope
    headers: Mapping[bytes, bytes]
    api: Services
    tenant: str

    def header(self, name: bytes) -> str | None:
        """Return the value of a header."""
        found = self.headers.get(name)
        return None if found is None else found.decode("latin-1")


class ShortWay:
    """ASGI middleware, the outermost one, that answers plain submissions itself."""

    def __init__(self, app: ASGIApp, api_app: FastAPI, hosts: HostCheck | None) -> None:
        self._app = app
        self._api_app = api_app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a plain submission; pass every other request on."""
        visit = self._visit(scope)
        if visit is None:
            await self._app(scope, receive, send)
            return
        begun_s = time.monotonic()
        message = await receive()
        body = message.get("body", b"")
        if message["type"] != "http.request" or message.get("more_body") or not _is_plain(body):
            await self._app(scope, _replayed(message, receive), send)
            return
        scope["route"] = _ROUTE
        response = await self._response(visit, Request(scope, receive), body)
        self._api_app.state.traffic.record(scope, response.status_code, time.monotonic() - begun_s)
        await response(scope, receive, send)

    def _visit(self, scope: Scope) -> _Visit | None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]) or not _SPECIAL.isdisjoint(headers) or self._api_app.state.spans.wanted:
            return None
        if headers.get(b"content-type", b"")[:10].lower() == b"multipart/":
            return None
        api: Services = self._api_app.state.services
        tenant = known_tenant(api, headers.get(b"authorization", b"").decode("latin-1"))
        return None if tenant is None else _Visit(scope, headers, api, tenant)

    async def _response(self, visit: _Visit, request: Request, body: bytes) -> Response:
        try:
            repeatable = b"idempotency-key" in visit.headers
            refusal = await refusal_of(visit.api, visit.tenant, submits=True, repeatable=repeatable)
            if refusal is not None:
                return unlogged_error_response(request, refusal, status_of(refusal))
            if self._hosts is not None and (refusal := self._hosts.refusal(visit.scope)) is not None:
                return error_response(request, refusal, status_of(refusal))
            return await _submitted(visit, request, body)
        except PenstockError as error:
            return error_response(request, error, status_of(error))
        except Exception as error:
            log.exception("Exception in ASGI application")  # as uvicorn does
            return bug_response(request, error)


async def _submitted(visit: _Visit, request: Request, body: bytes) -> Response:
    api, given = visit.api, visit.header(b"idempotency-key")
    key = new_key(visit.tenant, given)
    require_type(visit.header(b"content-type") or "", "application/json")
    limit_bytes = api.settings.body_limit_bytes(visit.tenant)
    if len(body) > limit_bytes:
        raise PayloadTooLarge(f"the body exceeds the limit of {limit_bytes} bytes")
    wanted = read_document(_read, body)
    origin = Origin(None, given)
    submitting = submit(
        request, api, key, wanted.value, wanted.fingerprint, repeatable=given is not None, origin=origin
    )
    wait_s = preferred_wait(visit.header(b"prefer"))
    submitted = await submit_and_wait(api, key, submitting, wait_s)
    content = api.view(submitted.job).model_dump_json(by_alias=True)
    status = 200 if submitted.job.status.terminal else 202
    headers = submission_headers(api, submitted) | waited(wait_s)
    return Response(content, status, headers, media_type="application/json")


def _is_plain(body: bytes) -> bool:
    return len(body) <= FREE_BYTES and is_small(body)


def _replayed(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that begins with a message that was read already."""
    read = [message]

    async def receive_again() -> Message:
        return read.pop() if read else await receive()

    return receive_again
