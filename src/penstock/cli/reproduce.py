"""`penstock reproduce`: run a job's request again and compare the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.display import err, out, print_json, show_job, table
from penstock.cli.options import (
    DEFAULT_URL,
    FOLLOWING_S,
    JOB_FAILED,
    OK,
    AsJson,
    JobId,
    Url,
    connect,
    interruptible,
)
from penstock.client.answers import ClientError, Job
from penstock.intake.request_defaults import defaults_of, filled

if TYPE_CHECKING:
    from penstock.client import Client

#: Characters of a digest in a table.
_DIGEST_CHARS = 16
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


def reproduce(
    job_id: JobId,
    any_revision: Annotated[
        bool, typer.Option("--any-revision", help="Run it also where the model has another revision now.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run a succeeded job's request again as a new job, and compare the results byte by byte.

    Exit code 0 if every file, the text and the JSON are the same, 1 if something differs; then the command names what
    differs in how the results were made. The files of the request must still be there.
    """
    with connect(url, patience_s=FOLLOWING_S) as client:
        first = client.job(job_id)
        second = _run_again(client, first, any_revision=any_revision)
    if not second.succeeded:
        show_job(second, as_json)
        raise typer.Exit(JOB_FAILED)
    found = compare(first, second)
    if as_json:
        print_json(_document(first, second, found))
    else:
        _show(first, second, found)
    raise typer.Exit(OK if found.equal else JOB_FAILED)


def _run_again(client: Client, first: Job, *, any_revision: bool) -> Job:
    """Submit a job's request again, and return the new job at its end."""
    from penstock.cli.progress import following

    if not first.succeeded:
        raise ClientError(f"the job {first.id} is {first.status} and has no result to reproduce")
    model = client.model(first.model)
    made_by = (first.provenance or {}).get("model") or {}
    then = made_by.get("revision", model.revision)
    if then != model.revision and not any_revision:
        raise ClientError(
            f"the job was made by revision {then!r} of {first.model}, and the service has {model.revision!r}: "
            "serve the earlier one, or add --any-revision"
        )
    second = client.submit(
        first.model, request_again(first, model.input_schema), metadata={"reproduces": first.id}
    )  # fmt: skip
    err.print(f"job {second.id}")
    sentence = f"The job continues. Follow: `penstock events {second.id}`."
    with interruptible(sentence), following(err) as on_job:
        return client.wait(second.id, on_job=on_job)


def _show(first: Job, second: Job, found: Reproduction) -> None:
    rows = table("result", "", first.id, second.id)
    for each in found.results:
        rows.add_row(each.name, "same" if each.same else "differs", _short(each.first), _short(each.second))
    out.print(rows)
    if found.copied_from is not None:
        out.print(f"\nNothing was computed: the result cache returned the result of job {found.copied_from}.")
    if found.equal:
        out.print("\nThe results are the same.")
        return
    if first.provenance is None or second.provenance is None:
        out.print("\nA result has no provenance: an earlier release made it.")
    elif not found.differences:
        out.print("\nNothing that is recorded differs in how the results were made.")
    else:
        made = table("made by", first.id, second.id)
        for difference in found.differences:
            made.add_row(difference.what, _said(difference.first), _said(difference.second))
        out.print()
        out.print(made)


def _document(first: Job, second: Job, found: Reproduction) -> dict[str, Any]:
    return {
        "job": first.id,
        "reproduction": second.id,
        "equal": found.equal,
        "copied_from": found.copied_from,
        "results": [{**asdict(each), "same": each.same} for each in found.results],
        "differences": [asdict(each) for each in found.differences],
    }


def _short(digest: str | None) -> str:
    return "missing" if digest is None else digest[:_DIGEST_CHARS]


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
