"""`penstock batch`: submit many requests at once from a JSONL file, and get their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.display import err, fitted, is_wide, moment, out, print_json, show_all, show_deleted
from penstock.cli.options import (
    DEFAULT_URL,
    EPILOG,
    FOLLOWING_S,
    JOB_FAILED,
    OK,
    AsJson,
    Url,
    connect,
    interruptible,
    pairs,
)
from penstock.client.answers import Batch, LineOutcome
from penstock.errors import with_places
from penstock.jobs import Priority

if TYPE_CHECKING:
    from penstock.client import Client

batch_app = typer.Typer(
    help="Many requests at once, from a JSONL file: submit them, follow them, get their results.",
    epilog=EPILOG,
    no_args_is_help=True,
)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch.")]
Folder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", file_okay=False, help="Save results.jsonl and errors.jsonl here."),
]


Files = Annotated[
    bool, typer.Option("--files", help="With --out: also save the files of each request, in a folder of its own.")
]


@batch_app.command()
def submit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A JSONL file, a media:// or s3:// reference to one, or -.")
    ],
    model: Annotated[str | None, typer.Option(help="Model of requests that name none: see `penstock models`.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority of requests that name none [low].")] = None,
    ttl_s: Annotated[
        float | None, typer.Option("--ttl", metavar="SECONDS", help="Time after which unfinished jobs end [86400].")
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option("--meta", metavar="k=v", help="Stored with the batch.")] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Address to notify when the batch ends.")] = None,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Two submissions with the same key are one batch.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the batch ends, and show its progress.")] = False,
    folder: Folder = None,
    files: Files = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit the requests of a file, one per line: penstock batch submit requests.jsonl --out result.

    A file named - is standard input. A line is {"input": {...}}, with "model", "custom_id", "metadata" and the other
    fields of a job if you like.
    """
    from penstock.cli.progress import transfer
    from penstock.client.downloads import make_folder

    _require_folder(folder, files)
    if folder is not None:
        make_folder(folder)
    with connect(url, patience_s=FOLLOWING_S) as client:
        requests = _typed() if file == "-" else file if "://" in file else Path(file)
        with transfer(err, "sending") as on_bytes:
            batch = client.submit_batch(
                requests, model=model, priority=priority, ttl_s=ttl_s,
                metadata=pairs(metadata or [], "--meta"), webhook=webhook, idempotency_key=key, on_bytes=on_bytes,
            )  # fmt: skip
        if not wait and folder is None:
            _show(batch, as_json)
            return
        err.print(f"batch {batch.id}")
        batch = _follow(client, batch)
        if folder is not None:
            _save(client, batch, folder, files)
    _show(batch, as_json)
    raise typer.Exit(_code(batch))


@batch_app.command()
def status(batch_id: BatchId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a batch's status. Exit code 1 if it has ended and some requests did not succeed."""
    with connect(url) as client:
        batch = client.batch(batch_id)
    _show(batch, as_json)
    raise typer.Exit(_code(batch))


@batch_app.command()
def wait(batch_id: BatchId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Wait until a batch ends, and show its progress."""
    with connect(url) as client:
        batch = client.batch(batch_id)
    with connect(url, patience_s=FOLLOWING_S) as client:
        batch = _follow(client, batch)
    _show(batch, as_json)
    raise typer.Exit(_code(batch))


@batch_app.command()
def results(
    batch_id: BatchId,
    folder: Folder = None,
    files: Files = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show or save the outcome of each request of an ended batch; with --json one object per line.

    With --out and --files, the files of each request are saved, too, in a folder named after its custom_id, or line-7.
    """
    _require_folder(folder, files)
    with connect(url, patience_s=FOLLOWING_S) as client:
        if folder is not None:
            _save(client, client.batch(batch_id), folder, files)
            return
        for outcome in client.batch_results(batch_id):
            _show_outcome(outcome, as_json)


@batch_app.command()
def cancel(batch_id: BatchId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a batch; earlier successes are in its results."""
    with connect(url) as client:
        _show(client.cancel_batch(batch_id), as_json)


@batch_app.command()
def delete(batch_id: BatchId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a batch with its jobs and all results. A running batch is canceled first."""
    with connect(url, patience_s=FOLLOWING_S) as client:
        client.delete_batch(batch_id)
    show_deleted(batch_id, as_json)


@batch_app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of batches.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first."""
    with connect(url) as client:
        page = client.batches(limit=limit)
    show_all(page.batches, as_json, lambda found: out.print(batch_table(out, found), soft_wrap=False))


def batch_table(console: Console, batches: Sequence[Batch]) -> Table:
    """Return a table of one line per batch."""
    wide = is_wide(console)
    rows = [
        (batch.id, batch.status.value, moment(batch.created_at, wide=wide), str(batch.counts.total),
         str(batch.counts.over), str(batch.counts.succeeded))
        for batch in batches
    ]  # fmt: skip
    columns = ("batch", "status", "created", "lines", "ended", "succeeded")
    return fitted(console, columns, rows, omit=("ended",))


def _typed() -> list[dict[str, Any]]:
    """Return the requests on standard input."""
    try:
        lines = [json.loads(line) for line in sys.stdin if line.strip()]
    except ValueError as error:
        raise typer.BadParameter(f"standard input: not a JSON object per line: {error}") from error
    if not all(isinstance(line, dict) for line in lines):
        raise typer.BadParameter("standard input: not a JSON object per line")
    return lines


def _follow(client: Client, batch: Batch) -> Batch:
    from penstock.cli.progress import counting

    sentence = (
        f"The batch continues. Wait for it with `penstock batch wait {batch.id}`, "
        f"end it with `penstock batch cancel {batch.id}`."
    )
    with interruptible(sentence), counting(err, batch.counts.total) as on_batch:
        return client.wait_batch(batch.id, on_batch=lambda found: on_batch(found.counts.over, _words(found)))


def _require_folder(folder: Path | None, files: bool) -> None:
    if files and folder is None:
        raise typer.BadParameter("--files saves files: give their folder with --out DIR")


def _save(client: Client, batch: Batch, folder: Path, files: bool) -> None:
    from penstock.cli.progress import counting, transfer

    if not files:
        with transfer(err, "saving") as on_bytes:
            paths = client.download_batch(batch, folder, on_bytes=on_bytes)
    else:
        with counting(err, batch.counts.succeeded) as on_line:
            paths = client.download_batch(
                batch, folder, artifacts=True, on_line=lambda done, total: on_line(done, f"files of {total} requests")
            )
    for path in paths:
        err.print(f"{path}  {path.stat().st_size:,} bytes")


def _show(batch: Batch, as_json: bool) -> None:
    if as_json:
        print_json(dict(batch.raw))
        return
    out.print(f"{batch.id}  {batch.status.value}  {_words(batch)}")
    for artifact in batch.artifacts:
        out.print(f"  {artifact.name}  {artifact.size_bytes:,} bytes  {artifact.url}")


def _words(batch: Batch) -> str:
    found = batch.counts
    parts = {
        "queued": found.queued, "running": found.running, "succeeded": found.succeeded, "failed": found.failed,
        "canceled": found.canceled, "expired": found.expired, "invalid": found.invalid,
    }  # fmt: skip
    summary = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    return f"{summary} of {found.total}"


def _show_outcome(outcome: LineOutcome, as_json: bool) -> None:
    if as_json:
        print_json(dict(outcome.raw), indent=None)
        return
    name = f"{outcome.line}" if outcome.custom_id is None else f"{outcome.line}  {outcome.custom_id}"
    if outcome.error is not None:
        out.print(f"{name}  {outcome.status}  {with_places(outcome.error.detail, outcome.error.errors)}")
    else:
        out.print(f"{name}  {outcome.status}  {outcome.text or ''}".rstrip())
    for artifact in outcome.artifacts:
        out.print(f"  {artifact.name}  {artifact.size_bytes:,} bytes  {artifact.url}")


def _code(batch: Batch) -> int:
    return JOB_FAILED if batch.over and batch.counts.succeeded < batch.counts.total else OK
