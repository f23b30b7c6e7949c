"""`penstock upload`, `download` and `wait`: send files, save results, and wait for a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.display import err, out, print_json, show_result
from penstock.cli.options import (
    DEFAULT_URL,
    FOLLOWING_S,
    JOB_FAILED,
    OK,
    AsJson,
    JobId,
    Timeout,
    Url,
    connect,
    interruptible,
)
from penstock.client.answers import Job
from penstock.jobs import Status

if TYPE_CHECKING:
    from penstock.client import Client

Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.", file_okay=False)]


def upload(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Local files.", dir_okay=False)],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Upload files and print their media:// references for jobs, one per line.

    Large files are sent in parts. To continue an interrupted upload, run the same command again within a day.
    """
    from penstock.cli.progress import transfer
    from penstock.client.uploads import file_size

    rows = []
    for path in files:
        file_size(path)  # a file that cannot be sent is reported before a service that does not respond
    with connect(url) as client:
        client.job_store()  # a service that does not respond is reported soon
    with connect(url, patience_s=FOLLOWING_S) as client:
        for path in files:
            sentence = "Interrupted. Run the same command again to continue."
            with interruptible(sentence), transfer(err, path.name) as on_bytes:
                media = client.upload(path, on_bytes=on_bytes)
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
    """Save the artifacts of a job, verified by their SHA-256; existing files are not downloaded again.

    To continue an interrupted download, run the same command again.
    """
    with connect(url) as client:
        job = client.job(job_id)
    with connect(url, patience_s=FOLLOWING_S) as client:
        paths = save(client, job, folder, names or None)
    if as_json:
        print_json([{"file": str(path), "size_bytes": path.stat().st_size} for path in paths])
    else:
        for path in paths:
            out.print(f"{path}  {path.stat().st_size:,} bytes")
    if not job.succeeded:
        ended = "was canceled" if job.status is Status.CANCELED else job.status.value
        err.print(f"The job {ended}: some files may be missing.")
        raise typer.Exit(1)


def save(client: Client, job: Job, folder: Path, names: list[str] | None = None) -> list[Path]:
    """Save a job's artifacts and show the progress; return the files."""
    from penstock.cli.progress import transfer

    sentence = f"Interrupted. Continue with `penstock download {job.id} --out {folder}`."
    with interruptible(sentence), transfer(err, "saving") as on_bytes:
        return client.download(job, folder, names=names, on_bytes=on_bytes)


def wait(
    job_id: JobId,
    timeout_s: Timeout = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Wait until a job ends; show its progress and estimated time. Exit code 1 if it did not succeed."""
    from penstock.cli.progress import following

    with connect(url) as client:
        client.job(job_id)
    with connect(url, patience_s=FOLLOWING_S) as client:
        sentence = f"The job continues. End it with `penstock cancel {job_id}`."
        with interruptible(sentence), following(err) as on_job:
            job = client.wait(job_id, timeout_s=timeout_s, on_job=on_job)
        show_result(client, job, as_json)
    raise typer.Exit(OK if job.succeeded else JOB_FAILED)
