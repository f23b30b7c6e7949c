"""The OpenAPI description: FastAPI's document with problem+json errors and API keys added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from penstock.api.access import ANY_KEY, is_declared, scope_of
from penstock.api.errors import problems
from penstock.api.schemas.jobs import Problem

_FOREIGN = ("HTTPValidationError", "ValidationError")
#: Problems of every operation: an unknown method, an unknown host name, a bug.
_ANYWHERE = problems(405, 421, 500)

#: Path parameters that are UUIDs. FastAPI sees strings, because a malformed id is an unknown job (404), not a 422.
_UUIDS = ("job_id", "batch_id", "endpoint_id")


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function. Generated clients and links use it."""
    return route.name


_SCHEME = "apiKey"


def install(app: FastAPI, *, with_keys: bool) -> None:
    """Add problems (`penstock.api.errors.problems`) and, with keys, security to the app's OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = _with_problems(generate())
            app.openapi_schema = _with_security(document) if with_keys else document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operations in document["paths"].values():
        yield from operations.values()


def _with_problems(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document["components"]["schemas"]
    for name in _FOREIGN:
        schemas.pop(name, None)
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs") | {"Problem": schema}
    for operation in _operations(document):
        # FastAPI adds its own error to each route with a parameter.
        if _FOREIGN[0] in str(operation["responses"].get("422")):
            del operation["responses"]["422"]
        operation["responses"] |= {str(status): answer for status, answer in _ANYWHERE.items()}
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in _UUIDS and parameter["in"] == "path":
                parameter["schema"] |= {"format": "uuid"}
    return document


def _with_security(document: dict[str, Any]) -> dict[str, Any]:
    what = "An API key from `penstock keys create`. The key names the tenant; its scopes limit the operations."
    scheme = {"type": "http", "scheme": "bearer", "description": what}
    document["components"]["securitySchemes"] = {_SCHEME: scheme}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            scope = scope_of(verb.upper(), path) if is_declared(verb.upper(), path) else None
            if scope is None:
                operation["security"] = []
                continue
            operation["security"] = [{_SCHEME: [] if scope == ANY_KEY else [scope]}]
            refusals = {str(status): found for status, found in problems(401, 403).items()}
            operation["responses"] = refusals | operation["responses"]
    return document
