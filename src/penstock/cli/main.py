"""The command line: submit and follow jobs, watch the service, run its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.batch import batch_app
from penstock.cli.deliveries import deliveries_app
from penstock.cli.display import (
    clock,
    count,
    err,
    fitted,
    is_wide,
    moment,
    out,
    print_json,
    show_all,
    show_deleted,
    show_estimates,
    show_event,
    show_job,
    show_one,
    show_result,
    table,
    words,
)
from penstock.cli.drops import drops_app
from penstock.cli.failures import exit_code, problem, sentence, wants_json
from penstock.cli.features import features
from penstock.cli.files import download, save, upload, wait
from penstock.cli.keys import keys_app
from penstock.cli.logs import logs
from penstock.cli.mcp import mcp
from penstock.cli.model_help import ModelCommand, plain_words, show_help, wants_help
from penstock.cli.models import models_app
from penstock.cli.options import (
    DEFAULT_URL,
    EPILOG,
    FOLLOWING_S,
    JOB_FAILED,
    OK,
    AsJson,
    Commands,
    JobId,
    Params,
    Timeout,
    Url,
    Whole,
    complete_model,
    connect,
    interruptible,
    pairs,
    require_files,
)
from penstock.cli.params import assign_texts, means_texts, parse_params, take_options
from penstock.cli.processes import api, keeper, up, worker
from penstock.cli.queues import dead_letters_app, queues_app
from penstock.cli.reproduce import reproduce
from penstock.cli.run import read_document, run
from penstock.cli.samples import sample, sample_model
from penstock.cli.search import search
from penstock.cli.serve import serve
from penstock.cli.subscriptions import subscriptions_app
from penstock.cli.systemd import install_app
from penstock.cli.tenants import tenants_app
from penstock.cli.tiles import tiles
from penstock.cli.upkeep import doctor, recover
from penstock.cli.usage import usage
from penstock.cli.watch import watch
from penstock.cli.webhooks import webhooks_app
from penstock.client.answers import Job, ModelInfo, PenstockAPIError, Unreachable
from penstock.client.local_files import assign_files, split_files
from penstock.jobs import Priority, Status

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.options import JobOptions

app = typer.Typer(
    cls=Commands,
    help="Penstock: inference as a job queue.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(batch_app, name="batch")
app.add_typer(drops_app, name="drops")
app.add_typer(keys_app, name="keys")
app.add_typer(install_app, name="install")
app.add_typer(models_app, name="models")
app.add_typer(queues_app, name="queues")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(deliveries_app, name="deliveries")
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(subscriptions_app, name="subscriptions")
app.add_typer(tenants_app, name="tenants")
#: Fields of a model may be given as options: `--size 64`.
_FIELDS_TOO = {"ignore_unknown_options": True}
app.command("run", epilog=EPILOG, context_settings=_FIELDS_TOO, cls=ModelCommand)(run)
app.command("serve", epilog=EPILOG)(serve)
for _command in (upload, wait, download, features, logs, mcp, reproduce, search, tiles, watch):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=EPILOG)(doctor)
app.command(epilog=EPILOG)(recover)
app.command(epilog=EPILOG)(usage)
app.command("sample-model")(sample_model)

TIMES = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M%z", "%Y-%m-%d"]


def _version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        out.print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Handle the options that need no command."""


def main() -> None:
    """Run the command line; every expected error is printed as one sentence, with --json also as a problem document."""
    as_json = wants_json(sys.argv[1:])
    try:
        code = app(standalone_mode=not as_json)  # which prints errors of usage by itself
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        err.print(f"penstock: {sentence(error)}")
        if as_json:
            print_json(problem(error), indent=None)
    sys.exit(code)


@app.command(epilog=EPILOG, context_settings=_FIELDS_TOO, cls=ModelCommand)
def submit(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Name of the model: see `penstock models`.", autocompletion=complete_model)
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|TEXT...",
            help="Local files, or references (media://, s3://, job://, https://); or the model's text.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job ends, and show its progress.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print what it is expected to take; submit nothing.")
    ] = False,
    timeout_s: Timeout = None,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Wait, and save the result here.", file_okay=False)
    ] = None,
    param: Params = None,
    whole: Whole = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Address to notify when the job ends.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--meta", metavar="k=v", help="Stored with the job.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority over other jobs.")] = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="JOB", help="A job that must succeed first; may be repeated.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Two submissions with the same key are one job.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit a job: penstock submit csmask scene.tif --out result."""
    from penstock.cli.progress import transfer
    from penstock.client.downloads import make_folder

    if wants_help(context):
        _show_help(context, model, url)
        return
    if dry_run and (wait or folder is not None or timeout_s is not None):
        raise typer.BadParameter("--dry-run submits nothing: leave --wait, --timeout and --out out")
    require_files(list(takewhile(lambda word: not word.startswith("--"), files or [])))
    with connect(url) as client:
        client.job_store()  # a service that does not respond is reported soon
    with connect(url, patience_s=FOLLOWING_S) as client:
        schema = _schema_of(client.model(model))  # a service that has just started still checks its models
        document, local = _request(context, schema, files or [], param or [], whole)
        wanted: JobOptions = {
            "metadata": pairs(metadata or [], "--meta"), "webhook": webhook, "priority": priority, "after": after,
            "idempotency_key": key,
        }  # fmt: skip
        if dry_run:
            with transfer(err, "sending") as on_bytes:
                found = client.estimate(model, document, files=local, on_bytes=on_bytes, **wanted)
            show_one(found, as_json, show_estimates)
            return
        if folder is not None:
            make_folder(folder)
        with transfer(err, "sending") as on_bytes:
            job = client.submit(model, document, files=local, on_bytes=on_bytes, **wanted)
        if not wait and folder is None and timeout_s is None:
            show_job(job, as_json)
            return
        job = _finish(client, job, folder, timeout_s, as_json)
    raise typer.Exit(OK if job.succeeded else JOB_FAILED)


def _request(
    context: typer.Context, schema: Mapping[str, Any], files: Sequence[str], param: Sequence[str], whole: str | None
) -> tuple[dict[str, Any], dict[str, str | Path]]:
    """Return the input of a job from its words and options, and its local files."""
    rest, options = take_options(files, schema, plain=plain_words(context))
    require_files(rest)
    return _input({**read_document(whole), **parse_params([*options, *param], schema)}, rest, schema)


def _finish(client: Client, job: Job, folder: Path | None, timeout_s: float | None, as_json: bool) -> Job:
    """Follow a job to its end, save its files, show its result, and return it."""
    err.print(f"job {job.id}")
    job = _follow(client, job, timeout_s)
    if folder is not None and job.succeeded:
        for path in save(client, job, folder):
            err.print(f"{path}  {path.stat().st_size:,} bytes")
    show_result(client, job, as_json)
    return job


def _show_help(context: typer.Context, model: str, url: str) -> None:
    """Print the help of a model, or that of `submit` where the service does not respond."""
    try:
        with connect(url) as client:
            info = client.model(model)
    except Unreachable as error:
        out.print(context.get_help(), markup=False, highlight=False, soft_wrap=True)
        err.print(f"penstock: the options of {model} are not known: {error}", markup=False)
    else:
        show_help(f"submit {model}", info)


def _schema_of(model: ModelInfo) -> Mapping[str, Any]:
    """Return the schema of a model's input; a model that cannot be used may have none, and is refused."""
    if model.problem is not None and not model.input_schema.get("properties"):
        detail = f"{model.name} cannot be used at the moment: {model.problem}"
        raise PenstockAPIError({"code": "model_unavailable", "detail": detail}, status=503)
    return model.input_schema


@app.command()
def status(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a job. Exit code 1 if it failed, was canceled or expired."""
    with connect(url) as client:
        job = client.job(job_id)
        show_result(client, job, as_json)
    raise typer.Exit(JOB_FAILED if job.over and not job.succeeded else OK)


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Cancel a job."""
    with connect(url) as client:
        show_job(client.cancel(job_id), as_json)


@app.command()
def retry(
    job_id: JobId,
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="A key of your own starts a further retry.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Run the request of a failed, expired or canceled job again, as a new job. Repeated, it returns the same job."""
    with connect(url) as client:
        show_job(client.retry(job_id, idempotency_key=key), as_json)


@app.command()
def delete(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a job and its result. A running job is canceled first."""
    with connect(url) as client:
        client.delete(job_id)
    show_deleted(job_id, as_json)


@app.command()
def events(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a job until it ends; with --json one object per line."""
    with connect(url) as client:
        client.job(job_id)
    with connect(url, patience_s=FOLLOWING_S) as client:
        try:
            for event in client.events(job_id):
                show_event(event, as_json)
        except KeyboardInterrupt:
            err.print(f"\n{_goes_on(job_id)}")


@app.command()
def trace(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the history of a job: request, waits, attempts, phases, batches, artifacts, webhooks."""
    from penstock.cli.timeline import timeline

    with connect(url) as client:
        job, found, deliveries = client.job(job_id), client.event_list(job_id), client.deliveries(job_id)
    entries = timeline(job, found, deliveries)
    if as_json:
        lists = {"events": [asdict(event) for event in found], "deliveries": [dict(d.raw) for d in deliveries]}
        print_json({"job": dict(job.raw), "timeline": [asdict(entry) for entry in entries], **lists})
        return
    rows = table("time", "after", "event", "what")
    for entry in entries:
        after = "" if entry.after_s is None else f"{entry.after_s:.2f} s"
        rows.add_row(clock(entry.at) or "to come", after, entry.event, words(entry.data))
    out.print(rows)


@app.command("list")
def list_jobs(
    status_is: Annotated[Status | None, typer.Option("--status", help="Only jobs with this status.")] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--meta", metavar="k=v", help="Only jobs with this.")] = None,
    after: Annotated[datetime | None, typer.Option(help="Only jobs created after this time.", formats=TIMES)] = None,
    before: Annotated[datetime | None, typer.Option(help="Only jobs created before this time.", formats=TIMES)] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of jobs.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connect(url) as client:
        jobs = _first_jobs(
            client, limit, status=status_is and status_is.value, model=model, created_after=after,
            created_before=before, metadata=pairs(metadata or [], "--meta"),
        )  # fmt: skip
    show_all(jobs, as_json, _show_list)


def _show_list(jobs: Sequence[Job]) -> None:
    wide = is_wide(out)
    rows = [
        (job.id, job.model, job.status.value, moment(job.created_at, wide=wide), count(job),
         "" if job.delivery == "none" else job.delivery)
        for job in jobs
    ]  # fmt: skip
    columns = ("job", "model", "status", "created", "progress", "webhooks")
    out.print(fitted(out, columns, rows, omit=("webhooks", "progress")), soft_wrap=False)


app.command()(sample)
app.command()(up)
app.command()(api)
app.command()(worker)
app.command()(keeper)


@app.command()
def demo(
    scene: Annotated[
        Path | None, typer.Option(help="Your own scene; without it, a synthetic one is written.", dir_okay=False)
    ] = None,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Folder of the result.")] = Path(
        "demo-output"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the service, and print the address of the result's map, until Ctrl-C.")
    ] = False,
) -> None:
    """Start everything on free ports, run one scene, show the result, and stop everything."""
    from penstock.cli.demo import run_demo

    raise typer.Exit(run_demo(scene, folder, keep=keep))


def _first_jobs(client: Client, limit: int, **filters: Any) -> list[Job]:
    """Return the newest matching jobs, from as many pages as needed."""
    page = client.jobs(limit=limit, **filters)
    jobs = [*page.jobs]
    while len(jobs) < limit and page.next_cursor is not None:
        page = client.jobs(limit=limit - len(jobs), cursor=page.next_cursor, **filters)
        jobs += page.jobs
    return jobs


def _input(
    document: dict[str, Any], files: list[str], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str | Path]]:
    """Return the job's input, and the local files in it by their place."""
    from penstock.requests import is_file

    if files and means_texts(files, schema, is_file):
        return split_files(document | assign_texts(files, schema), schema)
    return split_files(document | assign_files(files, schema, taken=document), schema)


def _follow(client: Client, job: Job, timeout_s: float | None) -> Job:
    from penstock.cli.progress import following

    try:
        with interruptible(_goes_on(job.id)), following(err) as on_job:
            return client.wait(job.id, timeout_s=timeout_s, on_job=on_job)
    except (PenstockAPIError, Unreachable) as error:  # a restart that requires keys, for example
        if not (isinstance(error, PenstockAPIError) and error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)):
            err.print(f"\n{_goes_on(job.id)}")
        raise


def _goes_on(job_id: str) -> str:
    return f"The job continues. Follow: `penstock events {job_id}`. Cancel: `penstock cancel {job_id}`."
