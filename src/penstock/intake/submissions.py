"""Checks of a request before its submission: the model is known, the input valid, the webhook allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from penstock.config import Settings
from penstock.errors import (
    InvalidRequest,
    Issue,
    MediaRefused,
    ModelNotServed,
    ModelUnavailable,
    NotReady,
    TensorsRefused,
)
from penstock.formats import CHAINED
from penstock.intake.addresses import check_url, is_web_url
from penstock.intake.media import artifact_in
from penstock.intake.references import references
from penstock.jobs import JobKey, Submission
from penstock.json_body import first_issues, pointer
from penstock.models import CatalogueEntry, find, media_references, no_model, tensor_places
from penstock.requests import MAX_UPSTREAMS, PRIORITIES, JobRequest
from penstock.storage.journal.promotions import model_for
from penstock.storage.redis.catalogues import CHECKING, FETCHING
from penstock.times import wrong_with

#: Issues reported for one input, at most.
MAX_ISSUES = 20
_SENTENCE_CHARS = 300
_BOUNDS = {
    "exclusiveMinimum": "greater than", "minimum": "at least", "exclusiveMaximum": "less than", "maximum": "at most",
}  # fmt: skip
#: Units of the sizes in messages: `has 3 items; at most 2 are allowed`.
_SIZES = {"maxLength": "characters", "maxItems": "items", "maxProperties": "fields"}
#: Characters of a value's text above which a message does not repeat the value.
_VALUE_CHARS = 80
_KINDS: Mapping[type, str] = {str: "text", list: "array", dict: "object"}
_NOT_ALLOWED = "the service may not call this address; the operator can allow it as host:port (allowed_hosts)"


@dataclass(frozen=True, slots=True)
class Origin:
    """The trace and the idempotency key of a request, from its headers."""

    traceparent: str | None = None
    idempotency_key: str | None = None


def submission_to(
    entry: CatalogueEntry, key: JobKey, wanted: JobRequest, *, fingerprint: str, origin: Origin,
    media_bytes: int | None = None,
) -> Submission:  # fmt: skip
    """Return a validated request as a submission to its model; `InvalidRequest` where it names too many upstreams."""
    after = upstreams_of(wanted.after, (text for _, text in media_references(entry.input_schema, wanted.input)))
    return Submission(
        key=key,
        model=entry.name,
        queue=entry.queue,
        input=wanted.input,
        fingerprint=fingerprint,
        metadata=wanted.metadata,
        webhook=wanted.webhook_value(),
        priority=PRIORITIES[wanted.priority],
        queue_ttl_s=wanted.queue_ttl or entry.queue_ttl_s,
        execution_timeout_s=wanted.execution_timeout or entry.execution_timeout_s,
        max_attempts=entry.max_attempts,
        traceparent=origin.traceparent,
        idempotency_key=origin.idempotency_key,
        media_bytes=media_bytes,
        after=after,
        version=CHAINED if after else 1,
    )


def upstreams_of(after: Iterable[str], references: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the jobs that a job waits for: those it names, and those whose artifacts are its media.

    `InvalidRequest` for more than `MAX_UPSTREAMS`.
    """
    makers = (found.job for text in references if (found := artifact_in(text)) is not None)
    ids = tuple(dict.fromkeys((*(each.lower() for each in after), *makers)))
    if len(ids) > MAX_UPSTREAMS:
        detail = f"a job may wait for {MAX_UPSTREAMS} jobs; this one names {len(ids)}"
        raise InvalidRequest(detail, errors=[Issue("/after", detail)])
    return ids


def servable(name: str, catalogue: Mapping[str, CatalogueEntry], job: str | None = None) -> CatalogueEntry:
    """Return the entry of a model or alias. Where models share an alias, the id of a `job` selects one of them.

    Raises `ModelNotServed` with the known models, `ModelUnavailable` with the model's problem, or `NotReady` while a
    worker checks or fetches it.
    """
    if not catalogue:
        raise NotReady("no model is published: start a worker, or run `penstock models publish`", retry_after_s=5)
    entry = find(catalogue, name if job is None else model_for(catalogue, name, job))
    if entry is None:
        raise ModelNotServed(no_model([name], catalogue), errors=[Issue("/model", "there is no such model")])
    if entry.problem in (CHECKING, FETCHING):
        raise NotReady(f"{entry.name} is not ready yet: {entry.problem}", retry_after_s=2)
    if entry.problem is not None:
        raise ModelUnavailable(
            f"{entry.name} cannot be used at the moment: {entry.problem}", errors=[Issue("/model", entry.problem)]
        )
    return entry


def names_of(
    wanted: Sequence[str], catalogue: Mapping[str, CatalogueEntry], kept: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the names of models, without duplicates. Names in `kept` may be unknown; models may be unusable.

    Raises `ModelNotServed` with a pointer to each unknown one, or `NotReady` while no worker has published any.
    """
    if not catalogue and not set(wanted) <= set(kept):
        raise NotReady("no model is published: start a worker, or run `penstock models publish`", retry_after_s=5)
    found = {name: entry.name if (entry := find(catalogue, name)) else None for name in wanted}
    found |= {name: name for name in wanted if found[name] is None and name in kept}
    issues = [Issue(f"/models/{n}", "there is no such model") for n, name in enumerate(wanted) if found[name] is None]
    if issues:
        unknown = [name for name in wanted if found[name] is None]
        raise ModelNotServed(no_model(unknown[:MAX_ISSUES], catalogue), errors=issues[:MAX_ISSUES])
    return tuple(dict.fromkeys(name for name in found.values() if name is not None))


def check_input(entry: CatalogueEntry, value: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` with a pointer for each place where the input violates the model's schema."""
    found = Draft202012Validator(entry.input_schema).iter_errors(value)
    issues = first_issues((issue for error in found for issue in _issues(error)), MAX_ISSUES)
    if issues:
        raise InvalidRequest(f"the input does not fit {entry.name}", errors=issues)


@dataclass(frozen=True, slots=True)
class Findings:
    """The parts of a valid input that need further checks."""

    #: JSON pointers of raw tensors.
    tensors: Sequence[str]
    #: Each medium's JSON pointer and reference.
    media: Sequence[tuple[str, str]]


def examine(entry: CatalogueEntry, value: Mapping[str, Any]) -> Findings:
    """Return the findings in an input; raise `InvalidRequest` for one that violates the schema or names many media."""
    check_input(entry, value)
    return Findings(_tensors(entry.input_schema, value), references(entry, value))


def check_tensors(schema: Mapping[str, Any], value: Mapping[str, Any], *, tenant: str, settings: Settings) -> None:
    """Raise `TensorsRefused` if an input has raw tensors and its tenant may not send any."""
    if not settings.takes_tensors(tenant):
        refuse_tensors(_tensors(schema, value), tenant=tenant, settings=settings)


def refuse_tensors(places: Sequence[str], *, tenant: str, settings: Settings) -> None:
    """Raise `TensorsRefused` if there are places of raw tensors and the tenant may not send any."""
    if places and not settings.takes_tensors(tenant):
        raise TensorsRefused(
            f"tenant {tenant!r} may not send raw tensors; the operator can allow it (raw_tensors)",
            errors=[Issue(f"/input{place}", "is a raw tensor") for place in places[:MAX_ISSUES]],
        )


def _tensors(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Sequence[str]:
    return tuple(dict.fromkeys(tensor_places(schema, value)))


def _issues(error: ValidationError) -> Iterator[Issue]:
    place = pointer(["input", *error.absolute_path])
    value: Any = error.instance
    schema: Any = error.schema
    match error.validator:
        case "required":
            missing = [name for name in schema["required"] if name not in value]
            yield from (Issue(place + pointer([name]), "is required") for name in missing)
        case "additionalProperties" if schema["additionalProperties"] is False:
            unknown = [name for name in value if name not in schema.get("properties", {})]
            yield from (Issue(place + pointer([name]), "is not known to this model") for name in unknown)
        case "dependentRequired":
            pairs = [(name, needed) for name, all_of in schema["dependentRequired"].items() for needed in all_of]
            missing = [(name, needed) for name, needed in pairs if name in value and needed not in value]
            yield from (Issue(place + pointer([needed]), f"is required with {name}") for name, needed in missing)
        case str(word) if word in _BOUNDS:
            yield Issue(place, f"must be {_BOUNDS[word]} {schema[word]}")
        case "not":
            yield Issue(place, _ruled_out(error))
        case str(word) if word in _SIZES:
            yield Issue(place, f"has {len(value)} {_SIZES[word]}; at most {schema[word]} are allowed")
        case "pattern":
            yield Issue(place, _other_form(schema, value))
        case "anyOf" | "oneOf":
            yield from _issues_of_alternatives(error, place)
        case _:
            yield Issue(place, _shortened(error))


def _issues_of_alternatives(error: ValidationError, place: str) -> Iterator[Issue]:
    schema: Any = error.schema
    value: Any = error.instance
    if tag := _tag(schema, value):
        yield from _issues_of_kind(error, place, tag)
    elif error.context:
        yield from _issues_of_branch(error, place)
    else:
        yield Issue(place, _several(schema["oneOf"], value))


def _ruled_out(error: ValidationError) -> str:
    """Return the message for a value that the schema excludes: the schema's own, if it describes one."""
    schema: Any = error.schema
    value: Any = error.instance
    excluded = schema["not"]
    if excluded == {}:
        return "cannot be combined with the other fields"
    if list(excluded) == ["required"]:
        return _several([{"required": [name]} for name in excluded["required"]], value)
    if list(excluded) == ["contains"] and "description" in schema:
        return str(schema["description"])
    return _shortened(error)


def _shortened(error: ValidationError) -> str:
    """Return the library's message with a long value replaced by its type: input is not sent back."""
    value: Any = error.instance
    message = error.message
    if len(repr(value)) > _VALUE_CHARS:
        message = message.replace(repr(value), f"this {_KINDS.get(type(value), 'value')}")
    return message[:_SENTENCE_CHARS]


def _other_form(schema: Mapping[str, Any], value: str) -> str:
    """Return the message for a text with the wrong format: with an example, or with the field's description."""
    if schema.get("format") == "date-time":
        return wrong_with(value) or "is not a time"
    if examples := schema.get("examples"):
        return f"has the wrong format; an example is {examples[0]}"
    if description := schema.get("description"):
        return f"has the wrong format: {description}"
    return f"does not match the pattern {schema['pattern']}"


def _tag(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return the field that selects the alternative, if there is one."""
    discriminator = schema.get("discriminator", {})
    return discriminator.get("propertyName") if discriminator.get("mapping") and isinstance(value, dict) else None


def _issues_of_kind(error: ValidationError, place: str, tag: str) -> Iterator[Issue]:
    """Yield the issues of a value for the alternative that its tag selects, or an issue with the known tags."""
    schema: Any = error.schema
    value: Any = error.instance
    known, name = schema["discriminator"]["mapping"], value.get(tag)
    if not isinstance(name, str) or name not in known:
        nested = (field for field, inner in value.items() if isinstance(inner, Mapping) and inner.get(tag) in known)
        hint = next((f"; give its field `{field}` instead" for field in nested), "")
        message = "is required" if name is None else f"must be one of: {', '.join(known)}{hint}"
        yield Issue(place + pointer([tag]), message)
        return
    number = schema[error.validator].index({"$ref": known[name]})
    for inner in error.context or ():
        if inner.relative_schema_path[0] == number:
            yield from _issues(inner)


def _several(branches: Sequence[Mapping[str, Any]], value: Mapping[str, Any]) -> str:
    """Return the message for a value that matches several alternatives, where one is required."""
    wanted = [branch["required"] for branch in branches if list(branch) == ["required"]]
    given = [" and ".join(names) for names in wanted if all(name in value for name in names)]
    if not given:
        return "matches several alternatives; exactly one is allowed"
    return f"has {', '.join(given[:-1])} and {given[-1]}; exactly one of them is allowed"


def _issues_of_branch(error: ValidationError, place: str) -> Iterator[Issue]:
    """Yield the issues of a value for its closest alternative: of those that accept its type, the one with fewest."""
    branches = [list(found) for _, found in groupby(error.context or (), key=lambda e: e.relative_schema_path[0])]
    fitting = [found for found in branches if not any(_is_of_another_type(e, error) for e in found)]
    if fitting:
        for inner in min(fitting, key=len):
            yield from _issues(inner)
    else:
        takes = dict.fromkeys(str(e.validator_value) for e in error.context or () if _is_of_another_type(e, error))
        yield Issue(place, f"must be one of: {', '.join(takes)}")


def _is_of_another_type(inner: ValidationError, outer: ValidationError) -> bool:
    return inner.validator == "type" and inner.absolute_path == outer.absolute_path


def check_webhook(wanted: JobRequest, settings: Settings) -> None:
    """Raise `InvalidRequest` for a receiver that the service may not call."""
    if wanted.webhook is not None:
        check_receiver(wanted.webhook.url, settings, "/webhook/url")


def check_receiver(url: str, settings: Settings, place: str) -> None:
    """Raise `InvalidRequest`, pointing to `place`, for an address that webhooks may not call."""
    if "#" in url:
        raise InvalidRequest(errors=[Issue(place, "has a fragment (`#...`), which is never sent: remove it")])
    try:
        check_url(url, settings.allowed_hosts, settings.webhook_any_public_host)
    except MediaRefused as error:
        why = _NOT_ALLOWED if is_web_url(url) else "is not an http(s) URL"
        raise InvalidRequest(errors=[Issue(place, why)]) from error
