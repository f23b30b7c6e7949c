"""The door: submissions that can only be refused are, before anything is done for them, such as reading their body.

So a flood costs a tenth of what it would inside, and takes little from others. Two things are known without looking:
how many of the tenant's submissions wait for their turn, and that it had too many jobs a moment ago.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.auth import submitter
from penstock.api.errors import answer
from penstock.api.services import Services
from penstock.errors import PenstockError

JOBS = "/v1/jobs"


@dataclass(frozen=True, slots=True)
class Template:
    """What metrics call the refused by, as a route has it."""

    path: str


_TEMPLATES = {"POST": Template(JOBS), "PUT": Template(f"{JOBS}/{{job_id}}")}


class Door:
    """ASGI middleware in front of the routes. Whom it cannot refuse it lets in, be it to be refused there."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = await self._refusal(scope) if self._is_pressed and _submits(scope) else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            scope["route"] = _TEMPLATES[scope["method"]]
            await answer(refusal)(scope, receive, send)

    @property
    def _is_pressed(self) -> bool:
        return self._services.turns.any_waits or self._services.fullness.any_is_full

    async def _refusal(self, scope: Scope) -> PenstockError | None:
        headers = Headers(scope=scope)
        tenant = await submitter(self._services, headers)
        if tenant is None:
            return None
        fullness = self._services.fullness
        full = fullness.of(tenant)
        repeatable = scope["method"] == "PUT" or "idempotency-key" in headers
        if full is not None and not (repeatable and fullness.may_look(tenant)):
            return full
        return self._services.turns.overload(tenant)


def _submits(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    path: str = scope["path"]
    return path == JOBS if scope["method"] == "POST" else scope["method"] == "PUT" and path.startswith(f"{JOBS}/")
