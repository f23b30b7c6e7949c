"""What the commands share: exit codes, options, and the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from penstock.client import Client

OK, JOB_FAILED, USAGE, UNAVAILABLE, STILL_RUNNING, INTERRUPTED = 0, 1, 2, 3, 4, 130

#: How long a service that does not answer is tried: for a question, and while a job is followed.
ASKING_S, FOLLOWING_S = 2.0, 120.0

EPILOG = (
    "Environment: PENSTOCK_URL says where the service is, PENSTOCK_API_KEY holds the key that it may ask for. "
    "Exit codes: 0 done · 1 the job failed, was canceled or expired, or a check failed · 2 wrong usage or settings · "
    "3 the service does not answer or refused, or the model cannot be used · "
    "4 `wait --timeout` gave up · 130 interrupted (a submitted job goes on)."
)


class Commands(TyperGroup):
    """Commands that say what is wrong with an option without the words of the library that checks it."""

    def invoke(self, ctx: Any) -> Any:  # typer's own kind of Context, which it does not export
        """Run what was asked for."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from penstock.documents import plainly

            error.message = plainly(error.message)
            raise


DEFAULT_URL = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Where the service is.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", file_okay=False, help="The data folder of `penstock up` [penstock-data].")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="k=v",
        help="A field of the model's input: outputs=classes,stats, radiometry.scale=1e-4.",
    ),
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
        raise typer.BadParameter(f"{option} {wrong[0]}: key=value is meant")
    return dict(text.split("=", 1) for text in texts)


@contextmanager
def asking(url: str, *, patience_s: float = ASKING_S) -> Iterator[Client]:
    """Give a client of the service, with the API key of the environment."""
    from penstock.client import Client
    from penstock.config import api_key, state_dir

    with Client(url, api_key=api_key(), patience_s=patience_s, state_dir=state_dir()) as client:
        yield client
