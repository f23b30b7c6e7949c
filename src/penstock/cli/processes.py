"""The commands that run the service: `up`, and each of its processes alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import out
from penstock.cli.options import Data
from penstock.cores import cores, physical_cores
from penstock.workers.engine.cpu_passes import keep_to_cores, let_threads_sleep, use_huge_pages

if TYPE_CHECKING:
    from penstock.config import Settings

Supervisor = Annotated[int, typer.Option("--supervisor", hidden=True, help="Id of a process; end when it ends.")]


def up(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address on which the API listens [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 = a free one [8080].")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Require API keys (see `penstock keys`); always on outside loopback.")
    ] = False,
    dev: Annotated[bool, typer.Option("--dev", help="Accept a Redis without durable storage, with a warning.")] = False,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN..MAX",
            help="Workers: MIN always, up to MAX while jobs wait; these leave when idle [one for each GPU, or 1].",
        ),
    ] = None,
    apis: Annotated[int, typer.Option("--api", min=1, max=64, help="API processes, which share one address.")] = 1,
    standby: Annotated[
        int, typer.Option(min=0, max=1, help="Processes that have imported everything and wait to become a worker.")
    ] = 0,
    supervisor: Supervisor = 0,
) -> None:
    """Run everything on this machine: Valkey, the object store, API, workers and keeper. Ctrl-C ends it."""
    from penstock.config import load_settings
    from penstock.observation.log import configure
    from penstock.up.children import end_with
    from penstock.up.scaling import Range
    from penstock.up.supervisor import up as run

    if supervisor:
        end_with(supervisor)
    given = {"data": data, "host": host, "port": port, "dev": dev or None, "access": "keys" if keys else None}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    configure("warning")
    number = None if workers is None else Range.parse(workers)

    def say(who: str, what: str) -> None:
        out.print(f"{who:<7} {what}")

    for warning in unread_variables(os.environ):
        say("warning", warning)
    raise typer.Exit(run(settings, say, workers=number, apis=apis, standby=standby > 0))


def api(
    descriptor: Annotated[
        int | None, typer.Option("--fd", hidden=True, help="Descriptor of the bound socket to listen on.")
    ] = None,
    supervisor: Supervisor = 0,
) -> None:
    """Run the API alone (settings: PENSTOCK_*, penstock.toml)."""
    from penstock.api.app import from_settings, serve

    settings = _process(supervisor)
    serve(from_settings(), settings, descriptor)


def worker(
    idle_exit_s: Annotated[
        float | None,
        typer.Option("--idle-exit", metavar="SECONDS", min=0, help="Exit after so long without a job; 0 = stay [0]."),
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=0, help="Exit after so many jobs; 0 = no limit [0].")
    ] = None,
    drain_s: Annotated[
        float | None,
        typer.Option("--drain", metavar="SECONDS", min=0, help="Time for running jobs at SIGTERM [5]."),
    ] = None,
    worker_id: Annotated[str | None, typer.Option("--id", hidden=True, help="Id of this worker.")] = None,
    standby: Annotated[
        bool, typer.Option("--standby", hidden=True, help="Import everything, and wait for orders on standard input.")
    ] = False,
    supervisor: Supervisor = 0,
) -> None:
    """Run a worker alone (settings: PENSTOCK_*, penstock.toml) until SIGTERM, or until it leaves by itself.

    A worker that leaves by itself exits with code 0 and has no job. At SIGTERM it returns the jobs that do not end
    in time to their queue; they continue from their last checkpoint and lose no attempt.
    """
    given = {"idle_exit_s": idle_exit_s, "max_worker_jobs": max_jobs, "drain_s": drain_s}
    settings = _process(supervisor, **given)
    let_threads_sleep(os.environ)
    use_huge_pages(os.environ)
    keep_to_cores(os.environ, cores(), physical_cores())
    if standby:
        from penstock.workers.standby import main as stand_by

        raise typer.Exit(stand_by(settings))
    from penstock.storage.checks import await_durable_redis
    from penstock.workers.app import main as run

    await_durable_redis(settings)
    raise typer.Exit(run(settings, worker_id))


def keeper(supervisor: Supervisor = 0) -> None:
    """Run a keeper alone until SIGTERM: leases, webhooks, drop-in buckets, retention."""
    settings = _process(supervisor)
    from penstock.storage.checks import await_durable_redis
    from penstock.workers.keeper.keeper import main as run

    await_durable_redis(settings)
    raise typer.Exit(run(settings))


def _process(supervisor: int, **given: Any) -> Settings:
    """Set this process up as a part of the service, and return its settings; those given and not None count."""
    import structlog

    from penstock.config import load_settings
    from penstock.observation.log import configure, log_uncaught
    from penstock.up.children import end_with

    if supervisor:
        end_with(supervisor)
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    configure(settings.log_level)
    log_uncaught()
    for warning in unread_variables(os.environ):
        structlog.get_logger(__name__).warning("settings.unread_variable", detail=warning)
    return settings


_PREFIX = "PENSTOCK_"
#: Read beside the settings: by the command line, by the examples of the docs, and for the file of the settings.
_OTHERS = frozenset({"API_KEY", "CONFIG", "URL"})


def unread_variables(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each `PENSTOCK_*` name that nothing reads, with the nearest one that something does.

    Of `PENSTOCK_S3__REGION` only `S3` is checked here: the settings refuse an unknown part of a table by themselves.
    """
    from penstock.config import Settings

    known = {name.upper() for name in Settings.model_fields} | _OTHERS
    for name in sorted(names):
        stem = name.upper().partition("__")[0].removeprefix(_PREFIX)
        if name.upper().startswith(_PREFIX) and stem not in known:
            near = get_close_matches(stem, sorted(known), n=1)
            yield f"nothing reads {name}" + (f" (did you mean {_PREFIX}{near[0]}?)" if near else "")
