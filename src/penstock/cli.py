"""The command line: submit and follow jobs, look at the service, run its processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.display import clock, count, err, out, print_json, show_event, show_job, table, words
from penstock.errors import ConfigError, PenstockError
from penstock.jobs import Status

if TYPE_CHECKING:
    from penstock.answers import Job
    from penstock.client import Client
    from penstock.config import Settings

OK, JOB_FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130

#: How long a service that does not answer is tried: for a question, and while a job is followed.
ASKING_S, FOLLOWING_S = 2.0, 120.0

EPILOG = (
    "Exit codes: 0 done · 1 the job failed, was canceled or expired, or a check failed · 2 wrong usage or settings · "
    "3 the service does not answer or refused · 130 interrupted (the job goes on)."
)

app = typer.Typer(
    help="Penstock: inference as a job queue.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
keys_app = typer.Typer(help="Secrets.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Where the service is.")]
DEFAULT_URL = "http://127.0.0.1:8080"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", file_okay=False, help="The data folder of `penstock up` [penstock-data].")
]
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
        typer.Argument(metavar="FILE...", help="Local files, or media://, s3:// and https:// references."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end and show its progress.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Wait, and save the result here.", file_okay=False)
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="k=v", help="A field of the model's input: outputs=classes,stats, radiometry.scale=1e-4."),
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
    from penstock.progress import transfer

    with _client(url) as client:  # if nobody answers, that is said soon
        schema = client.model(model).input_schema
    document, local = _input(param or [], files or [], schema)
    with _client(url, patience_s=FOLLOWING_S) as client:
        with transfer(err, "sending") as on_bytes:
            job = client.submit(
                model, document, files=local, metadata=_pairs(metadata or [], "--meta"), webhook=webhook,
                priority=priority, idempotency_key=key, on_bytes=on_bytes,
            )  # fmt: skip
        if not wait and folder is None:
            show_job(job, as_json)
            return
        err.print(f"job {job.id}")
        job = _follow(client, job)
        if folder is not None and job.succeeded:
            _save(client, job, folder)
    show_job(job, as_json)
    raise typer.Exit(OK if job.succeeded else JOB_FAILED)


@app.command()
def status(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a job. Exit code 1 if it failed, was canceled or expired."""
    with _client(url) as client:
        job = client.job(job_id)
    show_job(job, as_json)
    raise typer.Exit(JOB_FAILED if job.over and not job.succeeded else OK)


@app.command()
def cancel(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Ask for a job's end."""
    with _client(url) as client:
        show_job(client.cancel(job_id), as_json)


@app.command()
def events(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Follow a job until it ends; with --json one object per line."""
    with _client(url) as client:
        client.job(job_id)
    with _client(url, patience_s=FOLLOWING_S) as client:
        try:
            for event in client.events(job_id):
                show_event(event, as_json)
        except KeyboardInterrupt:
            _goes_on(job_id)


@app.command()
def trace(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what happened to a job, when, and how its webhooks fared."""
    from dataclasses import asdict

    with _client(url) as client:
        found, deliveries = client.event_list(job_id), client.deliveries(job_id)
    if as_json:
        print_json({"events": [asdict(event) for event in found], "deliveries": deliveries})
        return
    rows = table("time", "after", "event", "what")
    for event, before in zip(found, [None, *found], strict=False):
        first = found[0].at
        after = f"{(event.at - first).total_seconds():.2f} s" if event.at and first and before else ""
        rows.add_row(clock(event.at), after, event.type, words(event.data))
    for delivery in deliveries:
        for number in delivery["log"]:
            rows.add_row(
                clock(number["at"]), "", f"webhook {delivery['event']}", f"{delivery['url']}: {number['note']}"
            )
    out.print(rows)


@app.command("list")
def list_jobs(
    status_is: Annotated[Status | None, typer.Option("--status", help="Only these.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with _client(url) as client:
        page = client.jobs(status=status_is and status_is.value, model=model, limit=limit)
    if as_json:
        print_json([dict(job.raw) for job in page.jobs])
        return
    rows = table("job", "model", "status", "created", "progress")
    for job in page.jobs:
        rows.add_row(job.id, job.model, job.status.value, clock(job.created_at), count(job))
    out.print(rows)


@app.command()
def models(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the service's models and what they take."""
    from penstock.answers import media_fields

    with _client(url) as client:
        found = client.models()
    if as_json:
        print_json([dict(model.raw) for model in found])
        return
    rows = table("model", "what it does", "files", "parameters", "problem")
    for model in found:
        media = media_fields(model.input_schema)
        others = [name for name in model.input_schema.get("properties", {}) if name not in media]
        rows.add_row(model.name, model.title, ", ".join(media), ", ".join(others), model.problem or "")
    out.print(rows)


@app.command()
def doctor(url: Url = DEFAULT_URL, data: Data = None, as_json: AsJson = False) -> None:
    """Check the settings' Redis and object store, the API, the workers and the models. Exit code 1 on a failure."""
    from dataclasses import asdict

    from penstock.doctor import examine

    findings = list(examine(_settings(data), url))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = table("", "check", "found", "what to do")
        for finding in findings:
            rows.add_row(
                "ok" if finding.ok else "FAIL", finding.name, finding.detail, "" if finding.ok else finding.remedy
            )
        out.print(rows)
    raise typer.Exit(OK if all(finding.ok for finding in findings) else JOB_FAILED)


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
    given = {"data": data, "host": host, "port": port, "dev": dev or None}
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
def recover(data: Data = None) -> None:
    """Make every job anew that lies in the object store and not in Redis. The keeper does it when Redis was emptied."""
    from penstock.storage.objects import open_store
    from penstock.storage.records import JobStore
    from penstock.workers.recover import recover as run

    settings = _settings(data)
    store = JobStore.open(settings.redis_address)
    found = run(store, open_store(settings.store_url, settings))
    store.close()
    out.print(f"{found} jobs have a manifest; all of them are in Redis")


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


@keys_app.command("webhook-secret")
def webhook_secret(
    tenant: Annotated[str, typer.Option(help="Whose.")] = "default",
    data: Data = None,
) -> None:
    """Print the secret that signs a tenant's webhooks (made at the first call)."""
    from penstock.storage.objects import open_store, tenant_webhook_secret

    settings = _settings(data)
    out.print(tenant_webhook_secret(open_store(settings.store_url, settings), tenant))


def _settings(data: Path | None) -> Settings:
    """Return the settings of a service that was set up before; `ConfigError` where its data folder is not."""
    from penstock.config import load_settings

    settings = load_settings(**({} if data is None else {"data": data}))
    if settings.object_store is None and not settings.data.is_dir():
        raise ConfigError(
            f"there is no data folder {settings.data}: say where `penstock up` keeps it with --data or PENSTOCK_DATA"
        )
    return settings


def _process(supervisor: int) -> Settings:
    """Make this process a part of the service and return its settings."""
    from penstock.children import end_with
    from penstock.config import load_settings
    from penstock.log import configure

    if supervisor:
        end_with(supervisor)
    settings = load_settings()
    configure(settings.log_level)
    return settings


@contextmanager
def _client(url: str, *, patience_s: float = ASKING_S) -> Iterator[Client]:
    from penstock.client import Client

    with Client(url, patience_s=patience_s) as client:
        yield client


def _input(
    params: list[str], files: list[str], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str | list[str]]]:
    """Return the job's input, and which of its fields take local files."""
    from penstock.params import assign_files, is_reference, parse_params

    document = parse_params(params, schema)
    named = assign_files(files, schema, taken=document)
    local = {field: paths for field, paths in named.items() if not _all(is_reference, paths)}
    return document | {field: paths for field, paths in named.items() if field not in local}, local


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


def _save(client: Client, job: Job, folder: Path) -> None:
    from penstock.progress import transfer

    with transfer(err, "saving") as on_bytes:
        for path in client.download(job, folder, on_bytes=on_bytes):
            err.print(f"{path}  {path.stat().st_size:,} bytes")


def _pairs(pairs: list[str], option: str) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise typer.BadParameter(f"{option} {wrong[0]}: key=value is meant")
    return dict(pair.split("=", 1) for pair in pairs)


def _all(test: Any, paths: str | list[str]) -> bool:
    return all(test(path) for path in ([paths] if isinstance(paths, str) else paths))


def _complain(sentence: str) -> None:
    err.print(f"penstock: {sentence}")


def _client_error_code(error: Exception) -> int | None:
    from penstock.answers import ClientError, Corrupt, PenstockAPIError, Unreachable

    if not isinstance(error, ClientError):
        return None
    return UNAVAILABLE if isinstance(error, PenstockAPIError | Unreachable | Corrupt) else USAGE


if __name__ == "__main__":
    main()
