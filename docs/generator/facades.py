"""The routes that `docs/openapi.json` leaves to the makers of their interfaces: a table, from the routes themselves."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.routing import APIRoute

from docs.generator.comments import Undocumented
from penstock.api.access import scope_of
from penstock.api.facades import pooling
from penstock.api.facades.openai import audio, batches, files, routes


def table() -> str:
    """Return the table; raise `Undocumented` for a route that does not say what it does."""
    head = ["| request | scope | |", "| --- | --- | --- |"]
    return "\n".join([*head, *sorted(_row(route) for route in facade_routes())]) + "\n"


def facade_routes() -> Iterator[APIRoute]:
    """Yield the routes of the facades that are not in the document."""
    for router in (pooling.router, routes.router, audio.router, files.router, batches.router):
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def _row(route: APIRoute) -> str:
    if not route.description:
        raise Undocumented(f"{route.path} has no description: give its function a docstring")
    verb, path = min(route.methods or ()), route.path.replace(":path}", "}")
    return f"| {verb} `{path}` | `{scope_of(verb, path)}` | {route.description.splitlines()[0]} |"
