"""`penstock queues` and `penstock dead-letters`: commands for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.display import clock, err, out, print_json, show_all, show_job, show_one, table
from penstock.cli.options import DEFAULT_URL, EPILOG, FOLLOWING_S, AsJson, Url, confirm, connect
from penstock.client.answers import Job, Queue

queues_app = typer.Typer(
    help="The queues: list, show, pause, drain, resume and purge them.", epilog=EPILOG, no_args_is_help=True
)
dead_letters_app = typer.Typer(
    help="Jobs that failed because their workers died too often: list them, or run them again as new jobs.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue: see `penstock queues list`.")]
Named = Annotated[str, typer.Option("--queue", metavar="QUEUE", help="Name of the queue.")]


@queues_app.command("list")
def list_queues(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the queues with their depth and throughput."""
    with connect(url) as client:
        show_all(client.queues(), as_json, _show)


@queues_app.command()
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a queue's depth and throughput."""
    with connect(url) as client:
        show_one(client.queue(name), as_json, _show)


@queues_app.command()
def pause(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a queue: no job is given to workers, jobs are still accepted, running jobs continue."""
    with connect(url) as client:
        show_one(client.pause_queue(name), as_json, _show)


@queues_app.command()
def drain(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Drain a queue: no more jobs are accepted, waiting jobs are still run."""
    with connect(url) as client:
        show_one(client.drain_queue(name), as_json, _show)


@queues_app.command()
def resume(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End a pause or a drain."""
    with connect(url) as client:
        show_one(client.resume_queue(name), as_json, _show)


@queues_app.command()
def purge(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Cancel all waiting jobs of a queue. Running jobs continue."""
    with connect(url, patience_s=FOLLOWING_S) as client:
        if not yes:
            confirm(f"Cancel the {client.queue(name).queued} waiting jobs of queue {name}?")
        canceled = client.purge_queue(name)
    if as_json:
        print_json({"queue": name, "canceled": canceled})
    else:
        out.print(f"{canceled} jobs were canceled")


@dead_letters_app.command("list")
def list_dead_letters(
    queue: Named = "default",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of jobs.")] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of a queue, newest first. `penstock retry JOB` runs one again."""
    with connect(url) as client:
        show_all(client.dead_letters(queue, limit=limit), as_json, _show_dead)


@dead_letters_app.command()
def requeue(queue: Named = "default", url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Run all dead letters of a queue again, as new jobs."""
    with connect(url, patience_s=FOLLOWING_S) as client:
        show_all(client.requeue_dead_letters(queue), as_json, _show_new)


def _show_dead(jobs: Sequence[Job]) -> None:
    rows = table("job", "model", "created", "ended", "attempts")
    for job in jobs:
        rows.add_row(job.id, job.model, clock(job.created_at), clock(job.completed_at), str(job.attempt))
    out.print(rows)


def _show_new(jobs: Sequence[Job]) -> None:
    for job in jobs:
        show_job(job, as_json=False)
    err.print(f"{len(jobs)} new jobs")


def _show(queues: Sequence[Queue]) -> None:
    rows = table("queue", "mode", "waiting", "running", "workers", "wanted", "oldest", "empty in", "dead letters")
    for queue in queues:
        empty_in = "" if queue.eta_s is None or not queue.queued else f"{queue.eta_s:.0f} s"
        figures = (
            queue.queued, queue.running, queue.workers, queue.wanted_workers, f"{queue.oldest_age_s:.0f} s", empty_in,
        )  # fmt: skip
        rows.add_row(queue.name, queue.mode, *map(str, figures), str(queue.dead_letters))
    out.print(rows)
