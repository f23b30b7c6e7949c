"""Hooks of schemathesis beside the description: jobs that a model accepts, no long waits, and a check of our own.

Loaded by schemathesis (`tests/fuzz/schemathesis.toml`), in a process of its own.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, HookContext, Response
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase

from tests.fuzz.links import with_links

#: Set while the job store is down: nothing that needs it may look as if it worked.
DOWN = bool(os.environ.get("PENSTOCK_FUZZ_DOWN"))
#: Set where nobody has a key and everything but what is open asks for one.
LOCKED = bool(os.environ.get("PENSTOCK_FUZZ_LOCKED"))
#: Parameters of a path that lead to something, by operation: nobody guesses the id of a delivery.
KNOWN = json.loads(os.environ.get("PENSTOCK_FUZZ_KNOWN", "{}"))
#: A receiver that the service may call; nothing listens there.
RECEIVER = "http://files.test:80/hook"
#: Answered without the job store.
_ALONE = {
    "GET /livez", "GET /metrics", "GET /ogc", "GET /ogc/conformance", "POST /v1/uploads", "GET /v1/webhook-endpoints",
    "GET /v1/key", "GET /v1/events", "GET /v1/subscriptions",
}  # fmt: skip
#: Held open for a minute, unless told otherwise.
_EXECUTE = "POST /ogc/processes/{process_id}/execution"


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:  # noqa: ARG001
    """Add the links that chains of requests follow."""
    with_links(raw_schema)


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:  # noqa: ARG001  (its name says what it is)
    """Let a request that fits the description name a model that there is, and have no request held open for long."""
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if positive and isinstance(case.body, dict):
        case.body = {name: value for name, value in case.body.items() if not _is_no_text(value)}
        _fit(case.body, case.operation.label)
    if case.operation.label == _EXECUTE:
        # A case that is wrong in its headers stays so: changed ones would count as right, a missing key be put back.
        if not _is_wrong_in(case, ParameterLocation.HEADER):
            case.headers["Prefer"] = "respond-async"
        if positive:
            case.path_parameters["process_id"] = "echo"
    if positive and case.operation.label in KNOWN and case.meta.phase.name is not TestPhase.STATEFUL:
        case.path_parameters.update(KNOWN[case.operation.label])
    if case.query and _is_number(case.query.get("wait")):
        case.query["wait"] = min(float(case.query["wait"]), 0.1)


@schemathesis.check
def unavailable_for_a_reason(ctx: CheckContext, response: Response, case: Case) -> None:  # noqa: ARG001
    """503 is said by a queue that was drained, asking for patience, and by everything while the job store is down.

    Then nothing that needs it may look as if it worked: what is no 503 is a refusal of the request itself.
    """
    if response.status_code == 503:
        assert response.headers.get("retry-after"), "503 without Retry-After"
        assert DOWN or response.json()["code"] == "queue_draining", response.text
    elif DOWN and case.operation.label not in _ALONE:
        assert 400 <= response.status_code < 500, response.status_code


@schemathesis.check
def locked_without_a_key(ctx: CheckContext, response: Response, case: Case) -> None:  # noqa: ARG001
    """Whoever has no key hears so, whatever is asked and however wrong it is; or that the path knows no such method."""
    if LOCKED and case.operation.definition.raw.get("security"):
        assert response.status_code in (401, 405), response.status_code


def _fit(body: dict[str, Any], operation: str) -> None:
    """Make a body name what there is: schemas do not say which models and receivers."""
    request = {"model": "echo", "input": {"text": "hello"}}
    if operation == "POST /v1/batches":
        body.pop("file", None)
        body |= {"model": "echo", "requests": [request]}
    elif "/v1/webhook-endpoints" in operation:
        named = {"url": RECEIVER, "models": ["echo"]}
        body |= {name: value for name, value in named.items() if name in body}
    elif operation == _EXECUTE:
        body |= {"inputs": request["input"]}
        body.pop("outputs", None)
        body.pop("subscriber", None)
    elif "model" in body:
        body |= request
        body.pop("webhook", None)


def _is_wrong_in(case: Case, location: ParameterLocation) -> bool:
    component = None if case.meta is None else case.meta.components.get(location)
    return component is not None and component.mode is GenerationMode.NEGATIVE


def _is_no_text(value: object) -> bool:
    """Return True for the bytes of a file that schemathesis would send as a text: a form refuses them (400)."""
    data = getattr(value, "data", value)
    return isinstance(data, bytes) and "\ufffd" in data.decode(errors="replace")


def _is_number(value: object) -> bool:
    try:
        return float(value) >= 0  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
