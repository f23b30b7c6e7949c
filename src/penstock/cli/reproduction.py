"""The comparison of a job's result with that of the same request, run again. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from penstock.client.answers import Job
from penstock.intake.request_defaults import defaults_of, filled

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Compared:
    """A part of both results: an artifact, the `text` or the `json`. A digest is None where the part is missing."""

    name: str
    kind: Literal["artifact", "output"]
    first: str | None
    second: str | None

    @property
    def same(self) -> bool:
        """True where both results have the same bytes."""
        return self.first == self.second


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the provenances of two results. A value is None where a result lacks it."""

    what: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Two results of one request, compared."""

    results: tuple[Compared, ...]
    differences: tuple[Difference, ...]
    #: Id of the job whose result the cache returned for the second one; None where the second one was computed.
    copied_from: str | None

    @property
    def equal(self) -> bool:
        """True where the second job was computed and every byte is the same."""
        return self.copied_from is None and all(each.same for each in self.results)


def request_again(job: Job, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's input, with the defaults that have changed in the model's schema since filled in."""
    now = defaults_of(schema, dict(job.input))
    then = (job.provenance or {}).get("defaults", {})
    return filled(job.input, {place: value for place, value in then.items() if now.get(place, _MISSING) != value})


def compare(first: Job, second: Job) -> Reproduction:
    """Compare the results of two jobs byte by byte, by their digests, and the ways in which they were made."""
    before, after = first.provenance or {}, second.provenance or {}
    found = [*_compared("artifact", _artifacts(first), _artifacts(second))]
    found += _compared("output", _outputs(first), _outputs(second))
    differences = tuple(_differing(_made(first, before), _made(second, after))) if before and after else ()
    return Reproduction(tuple(found), differences, after.get("copied_from"))


def _compared(
    kind: Literal["artifact", "output"], first: Mapping[str, str], second: Mapping[str, str]
) -> Iterator[Compared]:
    for name in {**first, **second}:
        yield Compared(name, kind, first.get(name), second.get(name))


def _artifacts(job: Job) -> dict[str, str]:
    return {artifact.name: artifact.sha256 for artifact in job.artifacts}


def _outputs(job: Job) -> dict[str, str]:
    """Return the digests of the text, and of the JSON with its names in order."""
    said: dict[str, str] = {} if job.text is None else {"text": job.text}
    if job.data is not None:
        said["json"] = json.dumps(job.data, sort_keys=True)
    return {name: sha256(text.encode()).hexdigest() for name, text in said.items()}


def _made(job: Job, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a result as a flat mapping: `software.torch`, `inputs./scene`, `input./threshold`."""
    named = {"model": provenance.get("model") or {}, "software": provenance.get("software") or {}}
    named["inputs"] = {each.get("place") or each["reference"]: _bytes_of(each) for each in provenance.get("inputs", ())}
    named["input"] = dict(_leaves(filled(job.input, provenance.get("defaults", {})), ""))
    found = {f"{group}.{name}": value for group, values in named.items() for name, value in values.items()}
    single = {name: provenance.get(name) for name in ("machine", "other_inputs", "parts", "resumed", "copied_from")}
    return {name: value for name, value in {**found, **single}.items() if value is not None}


def _bytes_of(medium: Mapping[str, Any]) -> str:
    """Return the digest of an input, or its etag without a digest, and its size."""
    known = medium.get("sha256") or f"etag {medium.get('etag')}"
    return f"{known}, {medium.get('size_bytes'):,} bytes"


def _leaves(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{pointer}/{name}")
    else:
        yield pointer, value


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for what in {**first, **second}:
        if first.get(what) != second.get(what):
            yield Difference(what, first.get(what), second.get(what))
