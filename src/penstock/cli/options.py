"""Shared parts of the commands: exit codes, options, and the client."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.display import err
from penstock.client.answers import ClientError, PenstockAPIError, Unreachable
from penstock.media_types import is_reference

if TYPE_CHECKING:
    from penstock.client import Client

OK, JOB_FAILED, USAGE, UNAVAILABLE, STILL_RUNNING, INTERRUPTED = 0, 1, 2, 3, 4, 130

#: Seconds to retry a service that does not respond: for one request, and while following a job.
REQUEST_S, FOLLOWING_S = 2.0, 120.0
#: Pauses in seconds below which nothing is printed: a single connection that breaks is no news.
SHORT_S = 0.5

EPILOG = (
    "Environment: PENSTOCK_URL is the address of the service, PENSTOCK_API_KEY the API key if it requires one. "
    "Exit codes: 0 success · 1 the job failed, was canceled or expired, or a check failed · 2 wrong usage or setting · "
    "3 the service did not respond or rejected the request, or the model cannot be used · "
    "4 the time of `--timeout` is over · 130 interrupted (a submitted job continues)."
)


class Commands(TyperGroup):
    """Commands that report invalid options in plain words instead of pydantic's."""

    def invoke(self, ctx: Any) -> Any:  # typer's own kind of Context, which it does not export
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from penstock.json_body import plainly

            error.message = plainly(error.message)
            raise


DEFAULT_URL = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Address of the service.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", file_okay=False, help="Data folder of `penstock up` [penstock-data].")
]
Owner = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name stored with the entry [the user and the machine].")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait so long at most (exit code 4).")
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="k=v",
        help="Field of the model's input: outputs=classes,stats, radiometry.scale=1e-4.",
    ),
]
Whole = Annotated[
    str | None, typer.Option("--input", metavar="JSON|FILE", help="The model's whole input; --param overrides it.")
]
Catalogues = Annotated[
    list[Path] | None,
    typer.Option(
        "--catalogue",
        metavar="FILE",
        dir_okay=False,
        help="A models.toml to read after the shipped one and those of the settings; may be repeated.",
    ),
]


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return `key=value` texts as a mapping."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise typer.BadParameter(f"{option} {wrong[0]}: write it as key=value")
    return dict(text.split("=", 1) for text in texts)


@contextmanager
def needing(extra: str, what: str, *packages: str) -> Iterator[None]:
    """End the command with the name of the extra where one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        err.print(f"penstock: {what} needs more packages: pip install 'penstock[{extra}]'")
        raise typer.Exit(UNAVAILABLE) from error


def host_and_port(text: str, example: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of `HOST:PORT`.

    Raises `typer.BadParameter` with an example for another text.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isdigit() and int(port) < 65536):
        raise typer.BadParameter(f"--http {text}: write HOST:PORT, such as {example}")
    return host.strip("[]"), int(port)


def listen(app: Any, host: str, port: int, path: str = "/", most: int | None = None) -> None:
    """Serve an app until SIGTERM or SIGINT, and say where; uvicorn answers 503 to more than `most` requests at once."""
    import uvicorn

    err.print(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}{path}")
    uvicorn.run(app, host=host, port=port, log_level="warning", limit_concurrency=most)


def begin_of(text: str) -> datetime:
    """Return a time, or the begin of a day; without a zone in UTC."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text[:100]}: write 2026-05-31 or 2026-05-31T12:00:00Z") from error


def end_of(text: str) -> datetime:
    """Return a time, or the end of a day; without a zone in UTC."""
    at = begin_of(text)
    with_time = len(text) > len("2026-05-31") or "T" in text
    return at if with_time else at.replace(hour=23, minute=59, second=59, microsecond=999_999)


class Waits:
    """Prints why a client waits for the service, each new reason once."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._said = ""

    def __call__(self, failure: Unreachable | PenstockAPIError, pause_s: float) -> None:
        """Print why a request is sent again later, and when."""
        sentence = self._sentence(failure, pause_s)
        key = sentence.partition(":")[0]
        if pause_s >= SHORT_S and key != self._said:
            self._said = key
            err.print(sentence)

    def _sentence(self, failure: Unreachable | PenstockAPIError, pause_s: float) -> str:
        if isinstance(failure, Unreachable):
            return f"the service went away: {failure}; trying again for up to {self._patience_s:.0f} s"
        if failure.status == HTTPStatus.TOO_MANY_REQUESTS:
            return f"waiting {pause_s:.0f} s at a limit of the service: {failure.detail}"
        return f"waiting {pause_s:.0f} s for the service: {failure.detail}"


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """End the command after Ctrl-C with this sentence, which tells how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"\n{sentence}")
        raise typer.Exit(INTERRUPTED) from None


def confirm(question: str) -> None:
    """Ask for a confirmation; abort without one, and fail where standard input is no terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this needs a confirmation, but standard input is no terminal: add --yes")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def connect(url: str, *, patience_s: float = REQUEST_S) -> Iterator[Client]:
    """Yield a client of the service, with the API key of the environment.

    With a longer `patience_s`, print on standard error when the client waits for the service, and why.
    """
    from penstock.client import Client
    from penstock.config import api_key, state_dir

    waits = Waits(patience_s) if patience_s > REQUEST_S else None
    with Client(url, api_key=api_key(), patience_s=patience_s, state_dir=state_dir(), on_retry=waits) as client:
        yield client


def require_files(texts: Iterable[str]) -> None:
    """Raise `ClientError` for a text that can only mean a file, and names none: it ends as names of media files do."""
    from penstock.requests import is_file

    for text in texts:
        named = len(text.split()) == 1 and text.lower().endswith(_MEDIA_SUFFIXES)
        if named and not is_reference(text) and not is_file(text):
            raise ClientError(f"cannot read {text}: No such file or directory")


_MEDIA_SUFFIXES = (
    ".tif", ".tiff", ".jp2", ".nc", ".nc4", ".h5", ".hdf5", ".jpg", ".jpeg", ".png", ".webp", ".avif", ".heic", ".heif",
    ".wav", ".mp3", ".flac", ".ogg", ".mp4", ".mov", ".mkv",
    ".csv", ".parquet", ".zip", ".safe", ".safetensors", ".npy", ".jsonl",
)  # fmt: skip


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the service's models that begin so; none where the service does not answer at once."""
    from penstock.client import Client, ClientError
    from penstock.config import api_key

    url = str(ctx.params.get("url") or os.environ.get("PENSTOCK_URL") or DEFAULT_URL)
    try:
        with Client(url, api_key=api_key(), patience_s=0) as client:
            return [model.name for model in client.models() if model.name.startswith(incomplete)]
    except ClientError:
        return []
