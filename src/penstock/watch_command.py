"""`penstock watch`: queues, workers and running jobs, live."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.display import out, print_json
from penstock.options import DEFAULT_URL, AsJson, Url, asking

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.watching import Look

#: How often the screen is drawn: ages go on between two looks, and a screen of another size is filled soon.
DRAWN_PER_S = 4


def watch(
    every_s: Annotated[float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look; so does --json, and no terminal.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Watch the queues, the workers and your running jobs live. Ctrl-C ends it.

    With API keys, queues and workers need the scope `monitor`, jobs the scope `read`.
    """
    from penstock.watching import Screen, look

    with asking(url) as client:
        first = look(client)
        if as_json:
            print_json(first.document())
        elif once or not out.is_terminal:
            screen = Screen(url)
            screen.take(first)
            out.print(screen, soft_wrap=False)
        else:
            _live(client, url, every_s, first)


def _live(client: Client, url: str, every_s: float, first: Look) -> None:
    from rich.console import Console
    from rich.live import Live

    from penstock.answers import ClientError
    from penstock.watching import Screen, look

    screen, pause = Screen(url), threading.Event()
    screen.take(first)
    console = Console(highlight=False, markup=False)
    try:
        with Live(screen, console=console, screen=True, refresh_per_second=DRAWN_PER_S):
            while not pause.wait(every_s):
                try:
                    screen.take(look(client))
                except ClientError as error:
                    screen.take(error)
    except KeyboardInterrupt:
        return
