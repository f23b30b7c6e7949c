"""From an execute request of OGC API - Processes to a job's request. Pure; places are those of the execute request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.api.facades.ogc_processes import OUTPUTS, Schema, chooses_outputs, input_names, shape
from penstock.api.facades.ogc_schemas import ExecuteRequest, OutputRequest, Subscriber
from penstock.documents import pointer
from penstock.errors import InvalidRequest
from penstock.jobs import Webhook
from penstock.models import CatalogueEntry, Output
from penstock.ogc import EVENTS, Asked, Wanted, essence
from penstock.reports import Issue

_ASYNC = re.compile(r"(?:^|[,;])\s*respond-async\s*(?=$|[,;])", re.IGNORECASE)
_BY_VALUE_ONLY = "is no file: give it by value (only files are given by reference)"
_NOT_INLINE = "is a file: send it to /v1/uploads and name what that answers, or give its address"
#: An issue's place in the job's request: there it is `/input`.
_INPUT = re.compile(r"^/input(?=/|$)")


def job_input(entry: CatalogueEntry, wanted: ExecuteRequest) -> dict[str, Any]:
    """Return the model's input of an execute request; it is not yet checked against the model's schema.

    Raises `InvalidRequest` for a reference where no file is meant, for a file in the request, and for outputs that the
    process does not have.
    """
    root = entry.input_schema
    known = set(input_names(entry))
    made = {}
    for name, given in wanted.inputs.items():
        place = pointer(("inputs", name))
        if name not in known:
            raise _refused(place, f"is no input of this process, which has {_listed(input_names(entry))}")
        made[name] = _value(root, root["properties"][name], given, place)
    asked = asked_for(entry, wanted)
    if chooses_outputs(entry):
        made[OUTPUTS] = [output.name for output in asked.outputs]
    return made


def asked_for(entry: CatalogueEntry, wanted: ExecuteRequest) -> Asked:
    """Return what the answer is to hold: all outputs where none is named (core/process-execute-default-outputs)."""
    known = {output.name: output for output in entry.outputs}
    for name in wanted.outputs:
        if name not in known:
            raise _refused(pointer(("outputs", name)), f"is no output of this process, which has {_listed(known)}")
    chosen = wanted.outputs or {name: OutputRequest() for name in known}
    return Asked(wanted.response, tuple(_wanted(known[name], each) for name, each in chosen.items()))


def webhook(subscriber: Subscriber | None) -> Webhook | None:
    """Return whom a job tells of what; None without anybody."""
    given = {} if subscriber is None else subscriber.model_dump(exclude_none=True)
    urls = {event: given[who] for who, events in EVENTS.items() if who in given for event in events}
    return Webhook(next(iter(urls.values())), tuple(urls), urls) if urls else None


def prefers_async(prefer: str | None) -> bool:
    """Whether a `Prefer` header asks for an answer before the job ended (RFC 7240)."""
    return _ASYNC.search(prefer or "") is not None


def in_execute_request(issue: Issue) -> Issue:
    """Return an issue of the job's request as one of the execute request."""
    return Issue(_INPUT.sub("/inputs", issue.pointer), issue.detail)


def _wanted(output: Output, each: OutputRequest) -> Wanted:
    kind = each.format.mediaType if each.format else None
    if kind is not None and essence(kind) != essence(output.media_type):
        place = pointer(("outputs", output.name, "format", "mediaType"))
        raise _refused(place, f"is not made here: this output is {output.media_type}")
    return Wanted(output.name, output.media_type, each.transmissionMode == "reference")


def _value(root: Schema, schema: Schema, given: Any, place: str) -> Any:
    """Return an input as the model takes it. One of several occurrences may stand alone."""
    found = shape(root, schema)
    if found.get("type") != "array":
        many = isinstance(given, list)
        return [_one(root, found, each, place) for each in given] if many else _one(root, found, given, place)
    items = found.get("items", {})
    each = given if isinstance(given, list) else [given]
    made = [_one(root, items, one, f"{place}/{number}") for number, one in enumerate(each)]
    # A list that was given whole as a qualified value is not an item.
    return made[0] if not isinstance(given, list) and isinstance(made[0], list) else made


def _one(root: Schema, schema: Schema, given: Any, place: str) -> Any:
    """Return what an in-line value, a qualified value or a link stands for (`inlineOrRefData.yaml`)."""
    if not isinstance(given, Mapping):
        return given
    is_file = _takes_media(root, schema)
    if "href" in given and (is_file or "value" not in given):
        if not is_file:
            raise _refused(place, _BY_VALUE_ONLY)
        if not isinstance(given["href"], str):
            raise _refused(f"{place}/href", "must be a string")
        return given["href"]
    if "value" in given:
        if is_file and given.get("encoding") == "base64":
            raise _refused(place, _NOT_INLINE)
        return given["value"]
    return given  # an object as it is: the standard wants it qualified, but nothing else can be meant


def _takes_media(root: Schema, schema: Schema) -> bool:
    found = shape(root, schema)
    unions = [part for word in ("anyOf", "oneOf") for part in found.get(word, ())]
    return found.get("format") == "media" or any(_takes_media(root, part) for part in unions)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _refused(place: str, why: str) -> InvalidRequest:
    return InvalidRequest("the execute request does not fit the process", errors=[Issue(place, why)])
