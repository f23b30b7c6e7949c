"""From a request to a submission: the model is known, its input fits, its media are there and allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from penstock.api.errors import ModelNotServed, pointer
from penstock.api.schemas import PRIORITIES, JobRequest
from penstock.api.services import Services
from penstock.errors import (
    InvalidRequest,
    Issue,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    ModelUnavailable,
    NotReady,
    ObjectNotFound,
    PenstockError,
)
from penstock.jobs import JobKey, Submission
from penstock.models import CatalogueEntry, media_references
from penstock.storage import records
from penstock.storage.addresses import is_web_url
from penstock.storage.media import Upload, check_url, parse_reference

#: Of one input; more are not looked at.
MAX_ISSUES = 20
MAX_REFERENCES = 1000
_SENTENCE_CHARS = 300
_NOT_ALLOWED = "the service may not call this address; the operator can allow it as host:port (allowed_hosts)"


async def submission(
    api: Services, key: JobKey, wanted: JobRequest, *, fingerprint: str, traceparent: str | None
) -> Submission:
    """Return the checked request as a submission.

    Raises `ModelNotServed`, `ModelUnavailable`, `InvalidRequest` or an `InputError`; their issues point into the body.
    """
    catalogue = await api.jobs.run(records.catalogue())
    entry = servable(wanted.model, catalogue)
    check_input(entry, wanted.input)
    _check_webhook(api, wanted)
    await _check_media(api, key.tenant, entry, wanted.input)
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
        traceparent=traceparent,
    )


def servable(name: str, catalogue: Mapping[str, CatalogueEntry]) -> CatalogueEntry:
    """Return the model's entry; raise `ModelNotServed` naming the known ones, `ModelUnavailable`, or `NotReady`."""
    if not catalogue:
        raise NotReady("no worker has told of its models yet", retry_after_s=5)
    entry = catalogue.get(name)
    if entry is None:
        raise ModelNotServed(
            f"known models: {', '.join(sorted(catalogue))}", errors=[Issue("/model", "there is no such model")]
        )
    if entry.problem is not None:
        raise ModelUnavailable(f"{name} is not usable on this service at the moment")
    return entry


def check_input(entry: CatalogueEntry, value: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` with a pointer for each place where the input does not fit the model's schema."""
    found = Draft202012Validator(entry.input_schema).iter_errors(value)
    issues = list(dict.fromkeys(issue for error in found for issue in _issues(error)))
    if issues:
        raise InvalidRequest(f"the input does not fit {entry.name}", errors=issues[:MAX_ISSUES])


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
        case "exclusiveMinimum":
            yield Issue(place, f"must be greater than {schema['exclusiveMinimum']}")
        case "minimum":
            yield Issue(place, f"must be at least {schema['minimum']}")
        case "exclusiveMaximum":
            yield Issue(place, f"must be less than {schema['exclusiveMaximum']}")
        case "maximum":
            yield Issue(place, f"must be at most {schema['maximum']}")
        case "anyOf" | "oneOf" if error.context:
            yield from _issues_of_branch(error, place)
        case _:
            yield Issue(place, error.message[:_SENTENCE_CHARS])


def _issues_of_branch(error: ValidationError, place: str) -> Iterator[Issue]:
    """Yield what is wrong with a value by the alternative that it was meant for: one that takes its type."""
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


def _check_webhook(api: Services, wanted: JobRequest) -> None:
    if wanted.webhook is None:
        return
    url = wanted.webhook.url
    try:
        check_url(url, api.settings.allowed_hosts, api.settings.webhook_any_public_host)
    except MediaRefused as error:
        why = _NOT_ALLOWED if is_web_url(url) else "is not an http(s) URL"
        raise InvalidRequest(errors=[Issue("/webhook/url", why)]) from error


async def _check_media(api: Services, tenant: str, entry: CatalogueEntry, value: Mapping[str, Any]) -> None:
    found = dict.fromkeys(media_references(entry.input_schema, value))
    if len(found) > MAX_REFERENCES:
        raise InvalidRequest(f"an input may name {MAX_REFERENCES} media", errors=[Issue("/input", "too many media")])
    for place, reference in found:
        try:
            await _check_reference(api, tenant, entry, reference)
        except (MediaNotFound, MediaRefused, MediaTooLarge) as error:
            raise _pointed(error, f"/input{place}") from error


async def _check_reference(api: Services, tenant: str, entry: CatalogueEntry, reference: str) -> None:
    parsed = parse_reference(reference, tenant=tenant, settings=api.settings)
    if not isinstance(parsed, Upload):
        return  # fetched, and checked again, by the worker
    try:
        info = await asyncio.to_thread(api.objects.head, parsed.key)
    except ObjectNotFound as error:
        raise MediaNotFound("there is no such upload, or its file was not sent yet") from error
    limit = entry.limits.max_bytes
    if limit is not None and info.size_bytes > limit:
        raise MediaTooLarge(f"{entry.name} takes {limit} bytes, the file has {info.size_bytes}")


def _pointed(error: PenstockError, place: str) -> PenstockError:
    return type(error)(error.detail, errors=[Issue(place, error.detail)])
