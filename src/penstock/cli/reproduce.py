"""`penstock reproduce`: run a job's request again and compare the results."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from penstock.cli.reproduction import Reproduction
    from penstock.client import Client

#: Characters of a digest in a table.
_DIGEST_CHARS = 16


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
    from penstock.cli.reproduction import compare

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
    from penstock.cli.reproduction import request_again

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
