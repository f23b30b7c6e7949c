"""The API's description of itself (OpenAPI): FastAPI's, with the problems that we answer in place of its own errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from penstock.api.schemas import Problem

_FOREIGN = ("HTTPValidationError", "ValidationError")


def install(app: FastAPI) -> None:
    """Make the app describe failures as its routes name them with `penstock.api.errors.problems`."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_problems(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _with_problems(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document["components"]["schemas"]
    for name in _FOREIGN:
        schemas.pop(name, None)
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs") | {"Problem": schema}
    for operations in document["paths"].values():
        for operation in operations.values():
            # FastAPI adds this to each route with a parameter, whatever it may be.
            if _FOREIGN[0] in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    return document
