"""`penstock watch`: a live display of queues, workers and running jobs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.cli.display import out, print_json
from penstock.cli.options import DEFAULT_URL, AsJson, Url, connect
from penstock.client.answers import ClientError

if TYPE_CHECKING:
    from penstock.cli.watching import ServiceState
    from penstock.client import Client

#: Redraws per second: ages advance between two requests, and a resized screen is redrawn soon.
DRAWN_PER_S = 4


def watch(
    every_s: Annotated[float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Time between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state once; so do --json and pipes.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Watch the queues, the workers and your running jobs live. Ctrl-C ends it.

    With API keys, queues and workers need the scope `monitor`, jobs the scope `read`.
    """
    from penstock.cli.watching import Screen, read_state

    with connect(url) as client:
        first = read_state(client)
        if as_json:
            print_json(first.document())
        elif once or not out.is_terminal:
            screen = Screen(url)
            screen.update(first)
            out.print(screen, soft_wrap=False)
        else:
            _live(client, url, every_s, first)


def _live(client: Client, url: str, every_s: float, first: ServiceState) -> None:
    from rich.live import Live

    from penstock.cli.watching import Screen, read_state

    screen, pause = Screen(url), threading.Event()
    screen.update(first)
    console = Console(highlight=False, markup=False)
    try:
        with Live(screen, console=console, screen=True, refresh_per_second=DRAWN_PER_S):
            while not pause.wait(every_s):
                try:
                    screen.update(read_state(client))
                except ClientError as error:
                    screen.update(error)
    except KeyboardInterrupt:
        return
