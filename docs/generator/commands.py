"""The command-line reference, from typer's description of every command."""

from __future__ import annotations

import html
import re

import typer
import typer.main
from typer.cli import get_docs_for_click

from penstock.cli.main import app


def commands() -> str:
    """Return every command with its arguments and options, and an anchor for each."""
    command = typer.main.get_command(app)
    text = html.unescape(get_docs_for_click(obj=command, ctx=typer.Context(command), name="penstock"))
    _, _, rest = text.partition("\n")
    sections = re.split(r"^(#+) `(.+)`$", rest, flags=re.M)
    parts = [_linked("penstock", sections[0])]
    for level, name, body in zip(sections[1::3], sections[2::3], sections[3::3], strict=True):
        parts.append(f"{level} `{name}` {{ #{_anchor(name)} }}{_linked(name, body)}")
    return "".join(parts)


def _linked(name: str, body: str) -> str:
    """Return a command's section. Typer truncates the help of subcommands, so the section links to them instead."""
    head, commands, below = body.partition("**Commands**:")
    links = re.sub(
        r"^\* `(.+?)`.*$", lambda found: f"* [`{found[1]}`](#{_anchor(f'{name} {found[1]}')})", below, flags=re.M
    )
    return head + commands + links


def _anchor(command: str) -> str:
    return command.replace(" ", "-")
