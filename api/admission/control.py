"""Admission control: rejects over-limit submissions before reading their bodies.

A rejected request costs a small part of a submission, so a flood takes little from other tenants. The tenant's rate of
submissions, its number of waiting submissions, and a recent refusal for too many jobs are checked without I/O; the rate
over all API processes is then counted in Redis.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.access import SCOPES
from penstock.api.auth import submitting_tenant
from penstock.api.errors import status_of, unlogged_error_response
from penstock.api.services import Services
from penstock.api_keys import Scope as KeyScope
from penstock.errors import JobStoreError, PenstockError

#: Parts of the paths of the scope `submit` that create no job.
_NO_JOB = ("/v1/uploads", "/openai/v1/files", "/cancel", "/purge-queue")
#: Parts of the paths that are limited in rate only: jobs of batches and subscriptions are created as there is room, and
#: a repeated retry finds the existing job.
_RATE_ONLY = ("/batches", "/retry", "/subscriptions")


@dataclass(frozen=True, slots=True)
class LimitedRoute:
    """A route under admission control. Metrics label rejected requests with its path template."""

    path: str
    #: True for a route that submits one job at once.
    submits: bool


_ROUTES = tuple(
    (verb, compile_path(path)[0], LimitedRoute(path, submits=not any(part in path for part in _RATE_ONLY)))
    for (verb, path), scope in SCOPES.items()
    if scope is KeyScope.SUBMIT and verb in ("POST", "PUT") and not any(part in path for part in _NO_JOB)
)


class AdmissionControl:
    """ASGI middleware in front of the routes. Other requests pass on; their routes may still reject them."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it in the error format of its interface."""
        is_limited = scope["type"] == "http" and _is_active(self._services)
        route = limited_route(scope["method"], scope["path"]) if is_limited else None
        refusal = None if route is None else await self._refusal(scope, submits=route.submits)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            scope["route"] = route
            await unlogged_error_response(Request(scope), refusal, status_of(refusal))(scope, receive, send)

    async def _refusal(self, scope: Scope, *, submits: bool) -> PenstockError | None:
        """Return the error for a request, None for one that may be read; the request counts for the limits."""
        services, headers = self._services, Headers(scope=scope)
        tenant = await submitting_tenant(services, headers)
        if tenant is None:
            return None
        if (excess := services.rate_limit.excess(tenant)) is not None:
            return excess
        if submits:
            refusal = services.refusals.recent(tenant)
            is_repeatable = scope["method"] == "PUT" or "idempotency-key" in headers
            if refusal is not None and not (is_repeatable and services.refusals.may_look_up(tenant)):
                return refusal
            if (overload := services.concurrency.overload(tenant)) is not None:
                return overload
        try:
            return await services.rate_limit.common_excess(tenant, services.jobs)
        except JobStoreError as error:
            return error


def _is_active(services: Services) -> bool:
    return services.rate_limit.limits_any or services.concurrency.any_waiting or services.refusals.any_recent


def limited_route(verb: str, path: str) -> LimitedRoute | None:
    """Return a request's route where it is under admission control."""
    return next((route for known, pattern, route in _ROUTES if verb == known and pattern.match(path)), None)
