"""`penstock serve`: the functions of Python files as a service on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.display import err, out
from penstock.cli.options import INTERRUPTED, Data

#: Seconds between two looks at the files.
_LOOK_S = 0.5


def serve(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Python files with `@penstock.model`.")],
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a file changes.")] = False,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address on which the API listens [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 = a free one [8080].")] = None,
) -> None:
    """Serve the functions of thumbs.py, for instance: API, page and workers on this machine. Ctrl-C ends it."""
    if reload:
        raise typer.Exit(_reloading(files))
    from penstock.config import load_settings
    from penstock.observation.log import configure
    from penstock.up.supervisor import up

    given = {"data": data, "host": host, "port": port}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    settings = settings.model_copy(update={"models": (*settings.models, *(file.absolute() for file in files))})
    configure("warning")

    def say(who: str, what: str) -> None:
        out.print(f"{who:<7} {what}")
        if who == "ready":
            _show_lines(what.split()[0], files)

    raise typer.Exit(up(settings, say))


def _show_lines(address: str, files: Iterable[Path]) -> None:
    """Print for each model how it is called."""
    from penstock.catalogue.functions import function_records

    at = "" if address == "http://127.0.0.1:8080" else f" --url {address}"
    for file in files:
        for model in function_records(file):
            schema = model.options["signature"]["schema"]
            document = {name: _example(schema["properties"][name]) for name in schema["required"]}
            words = " ".join(str(value) if isinstance(value, str) else f"--param {name}={value}"
                             for name, value in document.items())  # fmt: skip
            out.print(f"\n{model.name}: {model.title}")
            out.print(f"  penstock submit {model.name} {words} --wait{at}", soft_wrap=True)
            out.print(f"  {_in_python(address, model.name, document, schema)}", soft_wrap=True)
            out.print(f"  {_by_curl(address, model.name, document, schema)}", soft_wrap=True)


def _in_python(address: str, name: str, document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    files = {field: value for field, value in document.items() if _is_file(schema["properties"][field])}
    rest = {field: value for field, value in document.items() if field not in files}
    given = f", files={files!r}" if files else ""
    return f"penstock.client.Client({address!r}).run({name!r}, {rest!r}{given})"


def _by_curl(address: str, name: str, document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:

    shown = {
        field: "https://..." if _is_file(schema["properties"][field]) else value for field, value in document.items()
    }
    body = json.dumps({"model": name, "input": shown})
    return f"curl {address}/v1/jobs -H 'content-type: application/json' -H 'prefer: wait=30' -d '{body}'"


def _is_file(part: Mapping[str, Any]) -> bool:
    return "format" in part or "format" in part.get("items", {})


def _example(part: Mapping[str, Any]) -> Any:
    """Return a value of a field's schema, to be replaced by people."""
    if _is_file(part):
        return "FILE" if "format" in part else ["FILE"]
    if "enum" in part:
        return part["enum"][0]
    number = part.get("minimum", part.get("maximum", 1))
    known: Mapping[Any, Any] = {
        "string": "TEXT",
        "integer": number,
        "number": number,
        "boolean": True,
        "array": [],
        "object": {},
    }
    return known.get(part.get("type"), "TEXT")


def _reloading(files: Sequence[Path]) -> int:
    """Serve in a process of its own, which is started anew when a file changes."""
    command = [sys.executable, "-m", "penstock.cli", *(word for word in sys.argv[1:] if word != "--reload")]
    while True:
        seen = _times(files)
        served = subprocess.Popen(command, start_new_session=True)
        try:
            while served.poll() is None and _times(files) == seen:
                time.sleep(_LOOK_S)
            while served.poll() is not None and _times(files) == seen:
                time.sleep(_LOOK_S)  # it could not start: it waits for a better file
            err.print("a file has changed: starting anew")
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            if served.poll() is None:
                os.kill(served.pid, signal.SIGINT)
                served.wait()


def _times(files: Sequence[Path]) -> list[float]:
    return [file.stat().st_mtime if file.exists() else 0.0 for file in files]
