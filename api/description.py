"""The OpenAPI description: FastAPI's document with problem+json errors, links and API keys added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
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

_JOB = {"job_id": "$response.body#/id"}
_LISTED = {"job_id": "$response.body#/jobs/0/id"}
_JOB_LINKS = {
    "read": ("read_job", _JOB), "cancel": ("cancel_job", _JOB), "retry": ("retry_job", _JOB),
    "delete": ("delete_job", _JOB), "events": ("job_events", _JOB), "deliveries": ("list_deliveries", _JOB),
}  # fmt: skip
_BATCH = {"batch_id": "$response.body#/id"}
_LISTED_BATCH = {"batch_id": "$response.body#/batches/0/id"}
_BATCH_LINKS = {
    "read": ("read_batch", _BATCH), "cancel": ("cancel_batch", _BATCH), "delete": ("delete_batch", _BATCH),
    "jobs": ("list_jobs", _BATCH),
}  # fmt: skip
_ENDPOINT = {"endpoint_id": "$response.body#/id"}
_LISTED_ENDPOINT = {"endpoint_id": "$response.body#/endpoints/0/id"}
_SAME_ENDPOINT = {"endpoint_id": "$request.path.endpoint_id"}
_ENDPOINT_LINKS = {
    "read": ("read_endpoint", _ENDPOINT), "change": ("change_endpoint", _ENDPOINT),
    "rotate": ("rotate_secret", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT),
    "deliveries": ("list_endpoint_deliveries", _ENDPOINT), "delete": ("delete_endpoint", _ENDPOINT),
}  # fmt: skip
_DELIVERY = {"delivery_id": "$response.body#/id"}
_LISTED_DELIVERY = {"delivery_id": "$response.body#/deliveries/0/id"}
#: Operation -> link name -> target operation and the expressions of its parameters.
LINKS: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = MappingProxyType(
    {
        "submit_job": _JOB_LINKS,
        "put_job": _JOB_LINKS,
        "retry_job": {"read": ("read_job", _JOB)},
        "read_job": _JOB_LINKS | {"artifact": ("read_artifact", {**_JOB, "name": "$response.body#/artifacts/0/name"})},
        "list_jobs": {
            "read": ("read_job", _LISTED),
            "delete": ("delete_job", _LISTED),
            "next": ("list_jobs", {"cursor": "$response.body#/next_cursor"}),
        },
        "list_deliveries": {
            "redeliver": (
                "redeliver_event",
                {"job_id": "$request.path.job_id", "delivery_id": "$response.body#/deliveries/0/id"},
            ),
        },
        "list_models": {"read": ("read_model", {"name": "$response.body#/models/0/name"})},
        "list_queues": {"read": ("read_queue", {"name": "$response.body#/queues/0/name"})},
        "list_dead_letters": {"retry": ("retry_job", _LISTED)},
        "submit_batch": _BATCH_LINKS,
        "read_batch": _BATCH_LINKS
        | {"artifact": ("read_batch_artifact", {**_BATCH, "name": "$response.body#/artifacts/0/name"})},
        "cancel_batch": {"read": ("read_batch", _BATCH), "delete": ("delete_batch", _BATCH)},
        "list_batches": {
            "read": ("read_batch", _LISTED_BATCH),
            "cancel": ("cancel_batch", _LISTED_BATCH),
            "next": ("list_batches", {"cursor": "$response.body#/next_cursor"}),
        },
        "create_endpoint": _ENDPOINT_LINKS,
        "read_endpoint": _ENDPOINT_LINKS,
        "change_endpoint": {"read": ("read_endpoint", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT)},
        "rotate_secret": {"read": ("read_endpoint", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT)},
        "list_endpoints": {
            "read": ("read_endpoint", _LISTED_ENDPOINT),
            "delete": ("delete_endpoint", _LISTED_ENDPOINT),
        },
        "test_endpoint": {
            "delivery": ("read_delivery", _DELIVERY),
            "redeliver": ("redeliver_one", _DELIVERY),
            "deliveries": ("list_endpoint_deliveries", _SAME_ENDPOINT),
        },
        "list_endpoint_deliveries": {
            "delivery": ("read_delivery", _LISTED_DELIVERY),
            "next": ("list_endpoint_deliveries", {**_SAME_ENDPOINT, "cursor": "$response.body#/next_cursor"}),
        },
        "list_dead_deliveries": {
            "delivery": ("read_delivery", _LISTED_DELIVERY),
            "redeliver": ("redeliver_one", _LISTED_DELIVERY),
        },
    }
)


def operation_id(route: APIRoute) -> str:
    """Return the name of a route's function. Generated clients and links use it."""
    return route.name


_SCHEME = "apiKey"


def install(app: FastAPI, *, with_keys: bool) -> None:
    """Add problems (`penstock.api.errors.problems`), links and, with keys, security to the app's OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = _with_links(_with_problems(generate()))
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


def _with_links(document: dict[str, Any]) -> dict[str, Any]:
    for operation in _operations(document):
        links = {
            name: {"operationId": target, "parameters": dict(parameters)}
            for name, (target, parameters) in LINKS.get(operation["operationId"], {}).items()
        }
        for status, answer in operation["responses"].items():
            if links and status in ("200", "201", "202"):
                answer["links"] = links
    return document
