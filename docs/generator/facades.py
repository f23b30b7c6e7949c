"""Table of the facade routes, which `docs/openapi.json` omits because other projects define these interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.routing import APIRoute

from docs.generator.comments import Undocumented
from penstock.api.access import scope_of
from penstock.api.facades.openai import audio, batches, files, routes
from penstock.api.facades.pooling import routes as pooling
from penstock.api.facades.runpod import routes as runpod


def table() -> str:
    """Return the table. Raises `Undocumented` for a route without a docstring."""
    head = ["| request | scope | |", "| --- | --- | --- |"]
    return "\n".join([*head, *sorted(_row(route) for route in facade_routes())]) + "\n"


def facade_routes() -> Iterator[APIRoute]:
    """Yield the facade routes that are not in `docs/openapi.json`."""
    routers = (pooling, routes, audio, files, batches, runpod)
    for router in (each.router for each in routers):
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def _row(route: APIRoute) -> str:
    if not route.description:
        raise Undocumented(f"{route.path} has no description: give its function a docstring")
    verb, path = min(route.methods or ()), route.path.replace(":path}", "}")
    return f"| {verb} `{path}` | `{scope_of(verb, path)}` | {route.description.splitlines()[0]} |"
