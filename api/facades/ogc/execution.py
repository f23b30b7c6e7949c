"""Translates an OGC execute request into a job request. Pure; error pointers refer to the execute request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.api.facades.ogc.processes import OUTPUTS, Schema, chooses_outputs, input_names, outputs_of, resolved
from penstock.api.facades.ogc.schemas import ExecuteRequest, OutputRequest, Subscriber
from penstock.errors import InvalidRequest, Issue
from penstock.intake.ogc import EVENTS, RequestedAnswer, RequestedOutput
from penstock.jobs import Webhook
from penstock.json_body import pointer
from penstock.media_types import essence
from penstock.models import CatalogueEntry, Output
from penstock.requests import JobRequest

_ASYNC = re.compile(r"(?:^|[,;])\s*respond-async\s*(?=$|[,;])", re.IGNORECASE)
_BY_VALUE_ONLY = "is not a file; give it by value, because only files are given by reference"
_NOT_INLINE = "is a file and cannot be inline; upload it with /v1/uploads and give its reference, or give its URL"
#: The input's pointer in the job request.
_INPUT = re.compile(r"^/input(?=/|$)")


def job_request(entry: CatalogueEntry, wanted: ExecuteRequest) -> JobRequest:
    """Return the job request of an execute request; raise the errors of `job_input`."""
    return JobRequest(model=entry.name, input=job_input(entry, wanted))


def job_input(entry: CatalogueEntry, wanted: ExecuteRequest) -> dict[str, Any]:
    """Return the model's input from an execute request, not yet checked against the model's schema.

    Raises `InvalidRequest` for an unknown input or output, a reference to an input that is no file, and an inline file.
    """
    root = entry.input_schema
    known = set(input_names(entry))
    made = {}
    for name, given in wanted.inputs.items():
        place = pointer(("inputs", name))
        if name not in known:
            raise _invalid(place, f"is not an input; known inputs: {_listed(input_names(entry))}")
        made[name] = _value(root, root["properties"][name], given, place)
    requested = requested_outputs(entry, wanted)
    if chooses_outputs(entry):
        made[OUTPUTS] = [output.name for output in requested.outputs]
    return made


def requested_outputs(entry: CatalogueEntry, wanted: ExecuteRequest) -> RequestedAnswer:
    """Return the requested outputs: all where none is named (core/process-execute-default-outputs)."""
    known = {output.name: output for output in outputs_of(entry)}
    for name in wanted.outputs:
        if name not in known:
            raise _invalid(pointer(("outputs", name)), f"is not an output; known outputs: {_listed(known)}")
    chosen = wanted.outputs or {name: OutputRequest() for name in known}
    return RequestedAnswer(wanted.response, tuple(_wanted(known[name], each) for name, each in chosen.items()))


def webhook(subscriber: Subscriber | None) -> Webhook | None:
    """Return the webhook of an execute request's subscriber, or None."""
    given = {} if subscriber is None else subscriber.model_dump(exclude_none=True)
    urls = {event: given[field] for field, events in EVENTS.items() if field in given for event in events}
    return Webhook(next(iter(urls.values())), tuple(urls), urls) if urls else None


def prefers_async(prefer: str | None) -> bool:
    """Return True where a `Prefer` header requests an immediate response (RFC 7240)."""
    return _ASYNC.search(prefer or "") is not None


def in_execute_request(issue: Issue) -> Issue:
    """Return an issue of the job request with its pointer into the execute request."""
    return Issue(_INPUT.sub("/inputs", issue.pointer), issue.detail)


def _wanted(output: Output, each: OutputRequest) -> RequestedOutput:
    kind = each.format.mediaType if each.format else None
    if kind is not None and essence(kind) != essence(output.media_type):
        place = pointer(("outputs", output.name, "format", "mediaType"))
        raise _invalid(place, f"is not supported; this output is {output.media_type}")
    return RequestedOutput(output.name, output.media_type, each.transmissionMode == "reference")


def _value(root: Schema, schema: Schema, given: Any, place: str) -> Any:
    """Return an input in the model's form. A single occurrence of a list may be given without the list."""
    found = resolved(root, schema)
    if found.get("type") != "array":
        many = isinstance(given, list)
        return [_one(root, found, each, place) for each in given] if many else _one(root, found, given, place)
    items = found.get("items", {})
    each = given if isinstance(given, list) else [given]
    made = [_one(root, items, one, f"{place}/{number}") for number, one in enumerate(each)]
    # A qualified value that is a whole list is not an item of a list.
    return made[0] if not isinstance(given, list) and isinstance(made[0], list) else made


def _one(root: Schema, schema: Schema, given: Any, place: str) -> Any:
    """Return the value of an inline value, a qualified value or a link (`inlineOrRefData.yaml`)."""
    if not isinstance(given, Mapping):
        return given
    is_file = _takes_media(root, schema)
    if "href" in given and (is_file or "value" not in given):
        if not is_file:
            raise _invalid(place, _BY_VALUE_ONLY)
        if not isinstance(given["href"], str):
            raise _invalid(f"{place}/href", "must be a string")
        return given["href"]
    if "value" in given:
        if is_file and given.get("encoding") == "base64":
            raise _invalid(place, _NOT_INLINE)
        return given["value"]
    return given  # a plain object: the standard requires `{value: ...}`, but the meaning is unambiguous


def _takes_media(root: Schema, schema: Schema) -> bool:
    found = resolved(root, schema)
    unions = [part for word in ("anyOf", "oneOf") for part in found.get(word, ())]
    return found.get("format") == "media" or any(_takes_media(root, part) for part in unions)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _invalid(place: str, why: str) -> InvalidRequest:
    return InvalidRequest("the execute request does not fit the process", errors=[Issue(place, why)])
