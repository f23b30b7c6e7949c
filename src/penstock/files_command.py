"""`penstock upload`, `download` and `wait`: a job's files and its end, each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.display import err, out, print_json, show_job
from penstock.jobs import Status
from penstock.options import (
    DEFAULT_URL,
    FOLLOWING_S,
    INTERRUPTED,
    JOB_FAILED,
    OK,
    AsJson,
    JobId,
    Url,
    asking,
)

if TYPE_CHECKING:
    from penstock.answers import Job
    from penstock.client import Client

Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.", file_okay=False)]


def upload(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Local files.", dir_okay=False)],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send files and print their media:// references, which jobs take: one line each.

    Large files go in parts. What was interrupted goes on where it was when the same command is given again within a
    day.
    """
    from penstock.progress import transfer

    rows = []
    with asking(url) as client:
        client.job_store()  # if nobody answers, that is said soon
    with asking(url, patience_s=FOLLOWING_S) as client:
        for path in files:
            try:
                with transfer(err, path.name) as on_bytes:
                    media = client.upload(path, on_bytes=on_bytes)
            except KeyboardInterrupt:
                err.print("\nThe same command goes on from here.")
                raise typer.Exit(INTERRUPTED) from None
            rows.append({"file": str(path), "media": media, "size_bytes": path.stat().st_size})
            if not as_json:
                out.print(media)
    if as_json:
        print_json(rows)


def download(
    job_id: JobId,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Only these artifacts.")] = None,
    folder: Folder = Path("result"),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Save the artifacts of a job, checked against their SHA-256; what is there already is not fetched again.

    What was interrupted goes on where it was when the same command is given again.
    """
    with asking(url) as client:
        job = client.job(job_id)
    with asking(url, patience_s=FOLLOWING_S) as client:
        paths = save(client, job, folder, names or None)
    if as_json:
        print_json([{"file": str(path), "size_bytes": path.stat().st_size} for path in paths])
    else:
        for path in paths:
            out.print(f"{path}  {path.stat().st_size:,} bytes")
    if not job.succeeded:
        ended = "was canceled" if job.status is Status.CANCELED else job.status.value
        err.print(f"The job {ended}: there may be files that it did not come to.")
        raise typer.Exit(1)


def save(client: Client, job: Job, folder: Path, names: list[str] | None = None) -> list[Path]:
    """Save a job's artifacts, showing how far that is; return the files."""
    from penstock.progress import transfer

    try:
        with transfer(err, "saving") as on_bytes:
            return client.download(job, folder, names=names, on_bytes=on_bytes)
    except KeyboardInterrupt:
        err.print(f"\nGo on with `penstock download {job.id} --out {folder}`.")
        raise typer.Exit(INTERRUPTED) from None


def wait(
    job_id: JobId,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Then give up (exit code 4).")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Wait for a job's end, showing how far it is and how long it will take. Exit code 1 if it did not succeed."""
    from penstock.progress import estimating

    with asking(url) as client:
        client.job(job_id)
    with asking(url, patience_s=FOLLOWING_S) as client:
        try:
            with estimating(err) as on_job:
                job = client.wait(job_id, timeout_s=timeout_s, on_job=on_job)
        except KeyboardInterrupt:
            err.print(f"\nThe job goes on. End it with `penstock cancel {job_id}`.")
            raise typer.Exit(INTERRUPTED) from None
    show_job(job, as_json)
    raise typer.Exit(OK if job.succeeded else JOB_FAILED)
