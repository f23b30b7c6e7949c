"""The command line: submit and follow jobs, look at the service, run its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.batch_command import batch_app
from penstock.deliveries_command import deliveries_app
from penstock.display import clock, count, err, out, print_json, show_event, show_job, table, words
from penstock.drops_command import drops
from penstock.errors import ConfigError, PenstockError
from penstock.files_command import download, save, upload, wait
from penstock.jobs import Status
from penstock.keys_command import keys_app
from penstock.models_command import models_app
from penstock.options import (
    DEFAULT_URL,
    EPILOG,
    FOLLOWING_S,
    INTERRUPTED,
    JOB_FAILED,
    OK,
    STILL_RUNNING,
    UNAVAILABLE,
    USAGE,
    AsJson,
    Commands,
    Data,
    JobId,
    Params,
    Url,
    asking,
    pairs,
)
from penstock.queues_command import dead_letters_app, queues_app
from penstock.run_command import read_document, run
from penstock.upkeep import doctor, recover
from penstock.watch_command import watch
from penstock.webhooks_command import webhooks_app

if TYPE_CHECKING:
    from penstock.answers import Job
    from penstock.client import Client
    from penstock.config import Settings

app = typer.Typer(
    cls=Commands,
    help="Penstock: inference as a job queue.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(batch_app, name="batch")
app.add_typer(keys_app, name="keys")
app.add_typer(models_app, name="models")
app.add_typer(queues_app, name="queues")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(deliveries_app, name="deliveries")
app.add_typer(webhooks_app, name="webhooks")
app.command("run", epilog=EPILOG)(run)
for _command in (upload, wait, download, watch):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=EPILOG)(doctor)
app.command(epilog=EPILOG)(recover)
app.command(epilog=EPILOG)(drops)

TIMES = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M%z", "%Y-%m-%d"]
Supervisor = Annotated[int, typer.Option("--supervisor", hidden=True, help="End when this process does.")]


def _version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        out.print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Take what is asked of no command."""


def main() -> None:
    """Run the command line; every expected error is one sentence."""
    try:
        app()
    except PenstockError as error:
        _complain(error.detail)
        sys.exit(USAGE if error.code == "config_error" else UNAVAILABLE)
    except Exception as error:
        code = _client_error_code(error)
        if code is None:
            raise
        _complain(str(error))
        sys.exit(code)


@app.command(epilog=EPILOG)
def submit(
    model: Annotated[str, typer.Argument(help="The model's name: see `penstock models`.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|TEXT...", help="Local files, or media://, s3:// and https:// references; or the model's text."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end and show its progress.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Wait, and save the result here.", file_okay=False)
    ] = None,
    param: Params = None,
    whole: Annotated[
        str | None, typer.Option("--input", metavar="JSON|FILE", help="The model's whole input; --param goes on top.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Is told of the job's end.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--meta", metavar="k=v", help="Kept with the job.")] = None,
    priority: Annotated[Literal["low", "normal", "high"] | None, typer.Option(help="Beside other jobs.")] = None,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Two submissions with the same key are one job.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit a job: penstock submit csmask scene.tif --out result."""
    from penstock.drafts import make_folder
    from penstock.params import parse_params
    from penstock.progress import transfer

    with asking(url) as client:
        client.job_store()  # if nobody answers, that is said soon
    with asking(url, patience_s=FOLLOWING_S) as client:
        schema = client.model(model).input_schema  # a service that has just begun still checks its models
        document, local = _input({**read_document(whole), **parse_params(param or [], schema)}, files or [], schema)
        if folder is not None:
            make_folder(folder)
        with transfer(err, "sending") as on_bytes:
            job = client.submit(
                model, document, files=local, metadata=pairs(metadata or [], "--meta"), webhook=webhook,
                priority=priority, idempotency_key=key, on_bytes=on_bytes,
            )  # fmt: skip
        if not wait and folder is None:
            show_job(job, as_json)
            return
        err.print(f"job {job.id}")
        job = _follow(client, job)
        if folder is not None and job.succeeded:
            for path in save(client, job, folder):
                err.print(f"{path}  {path.stat().st_size:,} bytes")
    show_job(job, as_json)
    raise typer.Exit(OK if job.succeeded else JOB_FAILED)


@app.command()
def status(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a job. Exit code 1 if it failed, was canceled or expired."""
    with asking(url) as client:
        job = client.job(job_id)
    show_job(job, as_json)
    raise typer.Exit(JOB_FAILED if job.over and not job.succeeded else OK)


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Ask for a job's end."""
    with asking(url) as client:
        show_job(client.cancel(job_id), as_json)


@app.command()
def retry(
    job_id: JobId,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Another retry than the one that there may be already.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run what a failed, expired or canceled job asked for again, as a new job. Repeated, it is the same new job."""
    with asking(url) as client:
        show_job(client.retry(job_id, idempotency_key=key), as_json)


@app.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a job and its result. A running one is canceled first."""
    with asking(url) as client:
        client.delete(job_id)
    if as_json:
        print_json({"id": job_id, "deleted": True})
    else:
        out.print(f"{job_id}  deleted")


@app.command()
def events(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a job until it ends; with --json one object per line."""
    with asking(url) as client:
        client.job(job_id)
    with asking(url, patience_s=FOLLOWING_S) as client:
        try:
            for event in client.events(job_id):
                show_event(event, as_json)
        except KeyboardInterrupt:
            _goes_on(job_id)


@app.command()
def trace(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all that happened to a job: request, waits, attempts, phases, batches, artifacts, webhooks."""
    from dataclasses import asdict

    from penstock.timeline import timeline

    with asking(url) as client:
        job, found, deliveries = client.job(job_id), client.event_list(job_id), client.deliveries(job_id)
    entries = timeline(job, found, deliveries)
    if as_json:
        told = {"events": [asdict(event) for event in found], "deliveries": [dict(d.raw) for d in deliveries]}
        print_json({"job": dict(job.raw), "timeline": [asdict(entry) for entry in entries], **told})
        return
    rows = table("time", "after", "event", "what")
    for entry in entries:
        after = "" if entry.after_s is None else f"{entry.after_s:.2f} s"
        rows.add_row(clock(entry.at) or "to come", after, entry.event, words(entry.data))
    out.print(rows)


@app.command("list")
def list_jobs(
    status_is: Annotated[Status | None, typer.Option("--status", help="Only these.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--meta", metavar="k=v", help="Only with this.")] = None,
    after: Annotated[datetime | None, typer.Option(help="Only made later than this.", formats=TIMES)] = None,
    before: Annotated[datetime | None, typer.Option(help="Only made earlier than this.", formats=TIMES)] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with asking(url) as client:
        jobs = _first_jobs(
            client, limit, status=status_is and status_is.value, model=model, created_after=after,
            created_before=before, metadata=pairs(metadata or [], "--meta"),
        )  # fmt: skip
    if as_json:
        print_json([dict(job.raw) for job in jobs])
        return
    rows = table("job", "model", "status", "created", "progress", "webhooks")
    for job in jobs:
        webhooks = "" if job.delivery == "none" else job.delivery
        rows.add_row(job.id, job.model, job.status.value, clock(job.created_at), count(job), webhooks)
    out.print(rows)


@app.command()
def sample(
    path: Annotated[Path, typer.Argument(help="The GeoTIFF to write.", dir_okay=False)],
    size_px: Annotated[int, typer.Option("--size", min=64, max=20_000, help="Pixels on a side.")] = 1024,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a six-band scene to try things on: synthetic, made by our own code, and tagged so."""
    from penstock.demo import write_scene

    if path.exists() and not force:
        raise ConfigError(f"{path} exists: take another name, or replace it with --force")
    write_scene(path, size_px=size_px)
    out.print(f"{path}: a synthetic scene of {size_px} x {size_px} px, six bands of reflectance x 10000")


@app.command()
def up(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Where the API listens [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 = a free one [8080].")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Ask for API keys (see `penstock keys`); elsewhere than on loopback always.")
    ] = False,
    dev: Annotated[
        bool, typer.Option("--dev", help="Warn of a Redis that may forget, instead of refusing it.")
    ] = False,
    supervisor: Supervisor = 0,
) -> None:
    """Run everything on this machine: Valkey, the object store, API, worker and keeper. Ctrl-C ends it."""
    from penstock.children import end_with
    from penstock.config import load_settings
    from penstock.log import configure
    from penstock.up import up as run

    if supervisor:
        end_with(supervisor)
    given = {"data": data, "host": host, "port": port, "dev": dev or None, "access": "keys" if keys else None}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    configure("warning")
    raise typer.Exit(run(settings, lambda who, what: out.print(f"{who:<8}{what}")))


@app.command()
def api(supervisor: Supervisor = 0) -> None:
    """Run the API alone (settings: PENSTOCK_*, penstock.toml)."""
    import uvicorn

    from penstock.api.app import from_settings

    settings = _process(supervisor)
    uvicorn.run(
        from_settings(), host=settings.host, port=settings.port, log_config=None, access_log=False,
        timeout_graceful_shutdown=5,
    )  # fmt: skip


@app.command()
def worker(supervisor: Supervisor = 0) -> None:
    """Run a worker alone until SIGTERM (settings: PENSTOCK_*, penstock.toml)."""
    settings = _process(supervisor)
    from penstock.storage.checks import require_durable_redis
    from penstock.workers.app import main as run

    require_durable_redis(settings)
    raise typer.Exit(run(settings))


@app.command()
def keeper(supervisor: Supervisor = 0) -> None:
    """Run a keeper alone until SIGTERM: leases, webhooks, drop-in buckets, retention."""
    settings = _process(supervisor)
    from penstock.storage.checks import require_durable_redis
    from penstock.workers.keeper import main as run

    require_durable_redis(settings)
    raise typer.Exit(run(settings))


@app.command()
def demo(
    scene: Annotated[
        Path | None, typer.Option(help="Your own scene; without one, a synthetic one is written.", dir_okay=False)
    ] = None,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="The result.")] = Path(
        "demo-output"
    ),
) -> None:
    """Start everything on free ports, run one scene through it, show the result, end everything."""
    from penstock.demo import run_demo

    raise typer.Exit(run_demo(scene, folder))


def _first_jobs(client: Client, limit: int, **filters: Any) -> list[Job]:
    """Return the newest jobs that fit, over as many pages as it takes."""
    page = client.jobs(limit=limit, **filters)
    jobs = [*page.jobs]
    while len(jobs) < limit and page.next_cursor is not None:
        page = client.jobs(limit=limit - len(jobs), cursor=page.next_cursor, **filters)
        jobs += page.jobs
    return jobs


def _process(supervisor: int) -> Settings:
    """Make this process a part of the service and return its settings."""
    from penstock.children import end_with
    from penstock.config import load_settings
    from penstock.log import configure, log_uncaught

    if supervisor:
        end_with(supervisor)
    settings = load_settings()
    configure(settings.log_level)
    log_uncaught()
    return settings


def _input(
    document: dict[str, Any], files: list[str], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str | list[str]]]:
    """Return the job's input, and which of its fields take local files."""
    from penstock.answers import media_fields
    from penstock.params import assign_files, assign_texts, is_file, is_reference, means_texts

    if files and means_texts(files, schema, is_file):
        return document | assign_texts(files, schema), {}
    given = {field: document[field] for field in media_fields(schema) if _are_texts(document.get(field))}
    named = given | assign_files(files, schema, taken=document)
    local = {field: paths for field, paths in named.items() if not _all(is_reference, paths)}
    kept = {field: value for field, value in (document | named).items() if field not in local}
    return kept, local


def _follow(client: Client, job: Job) -> Job:
    from penstock.progress import following

    try:
        with following(err) as on_event:
            return client.wait(job.id, on_event=on_event)
    except KeyboardInterrupt:
        _goes_on(job.id)
        raise typer.Exit(INTERRUPTED) from None


def _goes_on(job_id: str) -> None:
    err.print(f"\nThe job goes on. Follow it with `penstock events {job_id}`, end it with `penstock cancel {job_id}`.")


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)
    )


def _all(test: Any, paths: str | list[str]) -> bool:
    return all(test(path) for path in ([paths] if isinstance(paths, str) else paths))


def _complain(sentence: str) -> None:
    err.print(f"penstock: {sentence}")


def _client_error_code(error: Exception) -> int | None:
    from penstock.answers import ClientError, Corrupt, PenstockAPIError, StillRunning, Unreachable

    if not isinstance(error, ClientError):
        return None
    if isinstance(error, StillRunning):
        return STILL_RUNNING
    return UNAVAILABLE if isinstance(error, PenstockAPIError | Unreachable | Corrupt) else USAGE


if __name__ == "__main__":
    main()
