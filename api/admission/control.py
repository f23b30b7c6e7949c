"""Admission control: rejects over-limit submissions before reading their bodies.

A rejected request costs a small part of a submission, so a flood takes little from other tenants. Three checks need no
I/O: the tenant's submission rate, its number of waiting submissions, and a recent refusal for too many jobs. The `Door`
makes them for plain requests before the HTTP library reads the head, the middleware for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.admission.heads import Head
from penstock.api.admission.turnstile import Turnstile
from penstock.api.auth import known_tenant, submitting_tenant
from penstock.api.errors import status_of, unlogged_error_response
from penstock.api.services import Services
from penstock.errors import JobStoreError, PenstockError

#: Routes that submit one job at once, including those of the facades.
SUBMITTING: Sequence[tuple[str, str]] = (
    ("POST", "/v1/jobs"),
    ("PUT", "/v1/jobs/{job_id}"),
    ("POST", "/pooling"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/classify"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", "/openai/v1/completions"),
    ("POST", "/openai/v1/embeddings"),
    ("POST", "/openai/v1/images/generations"),
    ("POST", "/openai/v1/images/edits"),
    ("POST", "/openai/v1/audio/transcriptions"),
    ("POST", "/openai/v1/audio/translations"),
    ("POST", "/ogc/processes/{process_id}/execution"),
    ("POST", "/runpod/v2/{endpoint}/run"),
    ("POST", "/runpod/v2/{endpoint}/runsync"),
)
#: Rate-limited routes. Batches and retries are limited in rate only: a batch's jobs are created as there is room, and
#: a repeated retry finds the existing job.
LIMITED: Sequence[tuple[str, str]] = (
    *SUBMITTING,
    ("POST", "/v1/batches"),
    ("POST", "/openai/v1/batches"),
    ("POST", "/v1/jobs/{job_id}/retry"),
    ("POST", "/runpod/v2/{endpoint}/retry/{job_id}"),
)


@dataclass(frozen=True, slots=True)
class LimitedRoute:
    """A route under admission control. Metrics label rejected requests with its path template."""

    path: str
    #: True for a route that submits one job at once.
    submits: bool


#: Name of the `Door` in the state of the app's lifespan, which servers pass to their connections.
DOOR = "door"

#: Responses that are kept: a flood gets the same one again and again.
MAX_RESPONSES = 500

_ROUTES = tuple((verb, compile_path(path)[0], LimitedRoute(path, (verb, path) in SUBMITTING)) for verb, path in LIMITED)
#: Routes without parameters, by method and path.
_PLAIN = {(verb, route.path): route for verb, _, route in _ROUTES if "{" not in route.path}


class AdmissionControl:
    """ASGI middleware in front of the routes. Other requests pass on; their routes may still reject them."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it in the error format of its interface."""
        is_limited = scope["type"] == "http" and _is_active(self._services)
        route = _route(scope["method"], scope["path"]) if is_limited else None
        refusal = None if route is None else await self._refusal(scope, submits=route.submits)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            scope["route"] = route
            await unlogged_error_response(Request(scope), refusal, status_of(refusal))(scope, receive, send)

    async def _refusal(self, scope: Scope, *, submits: bool) -> PenstockError | None:
        headers = Headers(scope=scope)
        tenant = await submitting_tenant(self._services, headers)
        if tenant is None:
            return None
        repeatable = _is_repeatable(scope["method"], "idempotency-key" in headers)
        try:
            return await refusal_of(self._services, tenant, submits=submits, repeatable=repeatable)
        except JobStoreError as error:
            return error


@dataclass(frozen=True, slots=True)
class Visit:
    """A submission at the door."""

    tenant: str
    method: str
    path: str
    route: LimitedRoute
    repeatable: bool


class Door:
    """Admission control of connections: refuses plain requests before the HTTP library reads them."""

    def __init__(self, app: FastAPI, turnstile: Turnstile) -> None:
        self._app = app
        #: Bounds what submissions take of each turn of the event loop.
        self.turnstile = turnstile
        self._responses: dict[tuple[object, ...], Response] = {}

    def visit(self, head: Head) -> Visit | None:
        """Return a request under admission control; None for one whose key needs a look-up, and for all others."""
        route = _route(head.method, head.path)
        if route is None:
            return None
        tenant = known_tenant(self._services, head.fields.get(b"authorization", b"").decode("latin-1"))
        if tenant is None:
            return None
        repeatable = _is_repeatable(head.method, b"idempotency-key" in head.fields)
        return Visit(tenant, head.method, head.path, route, repeatable)

    def refusal(self, visit: Visit) -> PenstockError | None:
        """Return the error for a request, None for one that may be read, which counts for no limit here."""
        services = self._services
        if not _is_active(services):
            return None
        return _refusal(
            services, visit.tenant, submits=visit.route.submits, repeatable=visit.repeatable, counts=False
        )  # fmt: skip

    def response(self, visit: Visit, error: PenstockError, took_s: float) -> Response:
        """Return the response to a refused request, and count it in the metrics."""
        scope = {"type": "http", "method": visit.method, "path": visit.path, "app": self._app, "route": visit.route}
        status = status_of(error)
        self._app.state.traffic.record(scope, status, took_s)
        key = (visit.route.path, type(error), error.detail, error.retry_after_s)
        if (response := self._responses.get(key)) is None:
            if len(self._responses) >= MAX_RESPONSES:
                self._responses.clear()
            response = self._responses[key] = unlogged_error_response(Request(scope), error, status)
        return response

    @property
    def _services(self) -> Services:
        services: Services = self._app.state.services
        return services


async def refusal_of(services: Services, tenant: str, *, submits: bool, repeatable: bool) -> PenstockError | None:
    """Return the error for a request of a tenant, None for one that may be read; the request counts for the limits.

    Raises a `JobStoreError`.
    """
    if not _is_active(services):
        return None
    refusal = _refusal(services, tenant, submits=submits, repeatable=repeatable, counts=True)
    return refusal or await services.rate_limit.common_excess(tenant, services.jobs)


def _is_active(services: Services) -> bool:
    return services.rate_limit.limits_any or services.concurrency.any_waiting or services.refusals.any_recent


def _refusal(services: Services, tenant: str, *, submits: bool, repeatable: bool, counts: bool) -> PenstockError | None:
    """Return the error for a request of a tenant, None for one that may be read; count it where `counts`."""
    if (excess := services.rate_limit.excess(tenant, counts=counts)) is not None:
        return excess
    if not submits:
        return None
    refusal = services.refusals.recent(tenant)
    if refusal is not None and not (repeatable and services.refusals.may_look_up(tenant, counts=counts)):
        return refusal
    return services.concurrency.overload(tenant)


def _is_repeatable(method: str, has_idempotency_key: bool) -> bool:
    return method == "PUT" or has_idempotency_key


def _route(verb: str, path: str) -> LimitedRoute | None:
    """Return a request's route where it is under admission control."""
    if (plain := _PLAIN.get((verb, path))) is not None:
        return plain
    return next((route for known, pattern, route in _ROUTES if verb == known and pattern.match(path)), None)
