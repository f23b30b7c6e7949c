"""`penstock queues` and `penstock dead-letters`: what operators see and do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.display import clock, err, out, print_json, show_job, table
from penstock.options import DEFAULT_URL, EPILOG, FOLLOWING_S, AsJson, Url, asking

if TYPE_CHECKING:
    from penstock.answers import Queue

queues_app = typer.Typer(
    help="The queues: list, show, pause, drain, resume and purge them.", epilog=EPILOG, no_args_is_help=True
)
dead_letters_app = typer.Typer(
    help="Jobs that failed because their workers died too often: list them, or run them again as new jobs.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name: see `penstock queues list`.")]
Named = Annotated[str, typer.Option("--queue", metavar="QUEUE", help="Which queue's.")]


@queues_app.command("list")
def list_queues(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the queues with their depth and speed."""
    with asking(url) as client:
        found = client.queues()
    if as_json:
        print_json([dict(queue.raw) for queue in found])
    else:
        _show(found)


@queues_app.command()
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a queue's depth and speed."""
    with asking(url) as client:
        _tell(client.queue(name), as_json)


@queues_app.command()
def pause(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Give no more jobs to workers; jobs are still accepted, and what runs, runs on."""
    with asking(url) as client:
        _tell(client.pause_queue(name), as_json)


@queues_app.command()
def drain(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Accept no more jobs; what waits is worked off."""
    with asking(url) as client:
        _tell(client.drain_queue(name), as_json)


@queues_app.command()
def resume(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End a pause or a drain."""
    with asking(url) as client:
        _tell(client.resume_queue(name), as_json)


@queues_app.command()
def purge(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Cancel all jobs that wait in a queue. What runs, runs on."""
    with asking(url, patience_s=FOLLOWING_S) as client:
        if not yes:
            _ask(f"Cancel the {client.queue(name).queued} jobs that wait in queue {name}?")
        canceled = client.purge_queue(name)
    if as_json:
        print_json({"queue": name, "canceled": canceled})
    else:
        out.print(f"{canceled} jobs were canceled")


@dead_letters_app.command("list")
def list_dead_letters(
    queue: Named = "default",
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a queue, newest first. `penstock retry JOB` runs one of them again."""
    with asking(url) as client:
        jobs = client.dead_letters(queue, limit=limit)
    if as_json:
        print_json([dict(job.raw) for job in jobs])
        return
    rows = table("job", "model", "created", "ended", "attempts")
    for job in jobs:
        rows.add_row(job.id, job.model, clock(job.created_at), clock(job.completed_at), str(job.attempt))
    out.print(rows)


@dead_letters_app.command()
def requeue(queue: Named = "default", url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Run all dead letters of a queue again, as new jobs."""
    with asking(url, patience_s=FOLLOWING_S) as client:
        jobs = client.requeue_dead_letters(queue)
    if as_json:
        print_json([dict(job.raw) for job in jobs])
        return
    for job in jobs:
        show_job(job, as_json=False)
    err.print(f"{len(jobs)} new jobs")


def _tell(queue: Queue, as_json: bool) -> None:
    if as_json:
        print_json(dict(queue.raw))
    else:
        _show([queue])


def _show(queues: Sequence[Queue]) -> None:
    rows = table("queue", "mode", "waiting", "running", "workers", "oldest", "empty in", "dead letters")
    for queue in queues:
        empty_in = "" if queue.eta_s is None or not queue.queued else f"{queue.eta_s:.0f} s"
        figures = (queue.queued, queue.running, queue.workers, f"{queue.oldest_age_s:.0f} s", empty_in)
        rows.add_row(queue.name, queue.mode, *map(str, figures), str(queue.dead_letters))
    out.print(rows)


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to confirm it: say --yes")
    typer.confirm(question, abort=True, err=True)
