"""The door: submissions that can only be refused are, before anything is done for them, such as reading their body.

So a flood costs a tenth of what it would inside, and takes little from others. Known without looking are how fast the
tenant submits, how many of its submissions wait for their turn, and that it had too many jobs a moment ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.auth import submitter
from penstock.api.errors import status_of, unlogged_refusal
from penstock.api.services import Services
from penstock.errors import PenstockError

#: The routes behind the door, facades' too: each request to one of them is to become a job.
SUBMITTING: Sequence[tuple[str, str]] = (
    ("POST", "/v1/jobs"),
    ("PUT", "/v1/jobs/{job_id}"),
    ("POST", "/pooling"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", "/openai/v1/completions"),
    ("POST", "/openai/v1/embeddings"),
    ("POST", "/openai/v1/images/generations"),
    ("POST", "/openai/v1/audio/transcriptions"),
    ("POST", "/openai/v1/audio/translations"),
    ("POST", "/ogc/processes/{process_id}/execution"),
)
#: Makes jobs too, and is limited in its rate alone: batches become jobs as there is room, a retry finds the one before.
LIMITED: Sequence[tuple[str, str]] = (
    *SUBMITTING,
    ("POST", "/v1/batches"),
    ("POST", "/openai/v1/batches"),
    ("POST", "/v1/jobs/{job_id}/retry"),
)


@dataclass(frozen=True, slots=True)
class Template:
    """What metrics call the refused by, as a route has it."""

    path: str
    #: Whether it makes a job at once.
    submits: bool


_ROUTES = tuple((verb, compile_path(path)[0], Template(path, (verb, path) in SUBMITTING)) for verb, path in LIMITED)


class Door:
    """ASGI middleware in front of the routes. Whom it cannot refuse it lets in, be it to be refused there."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it in the words of its interface."""
        route = _route(scope) if self._is_pressed and scope["type"] == "http" else None
        refusal = None if route is None else await self._refusal(scope, submits=route.submits)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            scope["route"] = route
            await unlogged_refusal(Request(scope), refusal, status_of(refusal))(scope, receive, send)

    @property
    def _is_pressed(self) -> bool:
        services = self._services
        return services.rate_limit.limits_any or services.turns.any_waits or services.fullness.any_is_full

    async def _refusal(self, scope: Scope, *, submits: bool) -> PenstockError | None:
        headers = Headers(scope=scope)
        tenant = await submitter(self._services, headers)
        if tenant is None:
            return None
        if (excess := self._services.rate_limit.excess(tenant)) is not None:
            return excess
        if not submits:
            return None
        fullness = self._services.fullness
        full = fullness.of(tenant)
        repeatable = scope["method"] == "PUT" or "idempotency-key" in headers
        if full is not None and not (repeatable and fullness.may_look(tenant)):
            return full
        return self._services.turns.overload(tenant)


def _route(scope: Scope) -> Template | None:
    """Return the route behind the door that this asks for."""
    verb, asked = scope["method"], scope["path"]
    return next((route for known, pattern, route in _ROUTES if verb == known and pattern.match(asked)), None)
