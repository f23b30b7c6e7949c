"""`penstock serve`: the functions of Python files as a service on this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.display import err, out
from penstock.cli.environments import built_records
from penstock.cli.options import DEFAULT_URL, INTERRUPTED, Data
from penstock.cli.params import text_field
from penstock.cli.processes import Supervisor
from penstock.client.local_files import UsageProblem
from penstock.errors import ConfigError, ModelUnavailable

#: Seconds between two looks at the files.
_LOOK_S = 0.5
#: Jobs at a time, at most.
_MOST_SLOTS = 32


def serve(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Python files with `@penstock.model`.")],
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a file changes.")] = False,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address on which the API listens [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 = a free one [8080].")] = None,
    supervisor: Supervisor = 0,
) -> None:
    """Serve the functions of thumbs.py, for instance: API, page and workers on this machine. Ctrl-C ends it."""
    if reload:
        raise typer.Exit(_reloading(files))
    from penstock.config import load_settings
    from penstock.observation.log import configure
    from penstock.up.children import end_with
    from penstock.up.supervisor import up

    configure("warning")
    check_names(files)
    if supervisor:
        end_with(supervisor)
    given = {"data": data, "host": host, "port": port}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    slots = settings.slots if "slots" in settings.model_fields_set else _slots(files)
    models = (*settings.models, *(file.absolute() for file in files))
    settings = settings.model_copy(update={"models": models, "slots": slots})

    def say(who: str, what: str) -> None:
        out.print(f"{who:<7} {what}")
        if who == "ready":
            _show_lines(what.split()[0], files)

    raise typer.Exit(up(settings, say))


def _slots(files: Iterable[Path]) -> int:
    """Return the jobs at a time that fill the largest call of the files' models; one scene fills a call alone."""
    models = [model for file in files for model in built_records(file)]
    return min(_MOST_SLOTS, max(1 if model.options["signature"]["raster"] else model.max_batch for model in models) + 1)


def _show_lines(address: str, files: Iterable[Path]) -> None:
    """Print for each model how it is called."""
    from penstock.workers.engine.device_class import has_gpu

    for file in files:
        for model in built_records(file):
            out.print(f"\n{model.name}: {model.title}")
            if model.device == "cuda" and not has_gpu():
                out.print("  cannot run here: it needs a GPU (`gpu=True`), and this machine has none")
                continue
            for line in lines_to_paste(address, model.name, model.options["signature"]["schema"]):
                out.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def lines_to_paste(address: str, name: str, schema: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the calls of a model by the command line, the Python client and curl, with values to be replaced."""
    document, parts = _example(schema, schema), schema["properties"]
    files = [field for field in document if _is_file(parts[field])]
    alone = None if files else text_field(schema)
    words = [_word(field, value, alone=field in (alone, *files)) for field, value in document.items()]
    at = [] if address == DEFAULT_URL else ["--url", address]
    given = "".join(f", {field}={value!r}" for field, value in document.items())
    return (
        " ".join(("penstock submit", name, *words, "--wait", *at)),
        f'from penstock.client import Client; print(Client("{address}").run("{name}"{given}))',
        _by_curl(address, name, document, files),
    )


def _word(field: str, value: Any, *, alone: bool) -> str:
    """Return a field as words of the command line."""
    if alone:
        return str(value[0] if isinstance(value, list) else value)
    return f"--{field.replace('_', '-')} {shlex.quote(_text(value))}"


def _by_curl(address: str, name: str, document: Mapping[str, Any], files: Collection[str]) -> str:
    """Return a call by curl: a form where there are files, else JSON."""
    to = f"curl {address}/v1/jobs -H 'prefer: wait=30'"
    if not files:
        body = shlex.quote(json.dumps({"model": name, "input": document}))
        return f"{to} -H 'content-type: application/json' -d {body}"
    fields = [f"{field}=@FILE" if field in files else f"{field}={_text(value)}" for field, value in document.items()]
    return " ".join((to, f"-F model={name}", *(f"-F {shlex.quote(field)}" for field in fields)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_file(part: Mapping[str, Any]) -> bool:
    return "format" in part or "format" in part.get("items", {})


def _example(part: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return a value that fits a schema, to be replaced by people."""
    if "$ref" in part:
        return _example(root["$defs"][part["$ref"].rpartition("/")[2]], root)
    if _is_file(part):
        return "FILE" if "format" in part else ["FILE"]
    if "enum" in part or "anyOf" in part:
        return part["enum"][0] if "enum" in part else _example(part["anyOf"][0], root)
    if part.get("type") == "object":
        return {name: _example(part["properties"][name], root) for name in part.get("required", ())}
    if part.get("type") == "array":
        return [_example(part.get("items", {}), root)] * part.get("minItems", 1)
    if part.get("type") in ("integer", "number"):
        return _number(part)
    return True if part.get("type") == "boolean" else "TEXT"


def _number(part: Mapping[str, Any]) -> float:
    """Return a number within the bounds of a schema."""
    from jsonschema import Draft202012Validator

    bounds = [part[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in part]
    near = [bound + step for step in (0, 1, -1) for bound in bounds]
    return next(filter(Draft202012Validator(part).is_valid, [*near, sum(bounds) / 2]), 1) if bounds else 1


def _reloading(files: Sequence[Path]) -> int:
    """Serve in a process of its own, which is started anew when a file changes."""
    words = [word for word in sys.argv[1:] if word != "--reload"]
    command = [sys.executable, "-m", "penstock.cli", *words, "--supervisor", str(os.getpid())]
    seen = _times(files)
    while True:
        served = subprocess.Popen(command, start_new_session=True)
        try:
            seen = _after_change(files, seen)
            err.print("a file has changed: starting anew")
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            if served.poll() is None:
                os.kill(served.pid, signal.SIGINT)
                served.wait()


def _after_change(files: Sequence[Path], seen: list[float]) -> list[float]:
    """Wait until the files have changed and can be served, and return their times; say what keeps them from it."""
    while True:
        while (now := _times(files)) == seen:
            time.sleep(_LOOK_S)
        seen = now
        try:
            check_names(files)
        except (ConfigError, ModelUnavailable, UsageProblem) as error:
            err.print(f"penstock: {error}\nwaiting for a better file", markup=False, highlight=False)
        else:
            return seen


def check_names(files: Iterable[Path]) -> None:
    """Raise `UsageProblem` if two files have a model of one name; raise the error of a file that cannot be read."""
    places = dict[str, Path]()
    for file in files:
        for model in built_records(file):
            if places.setdefault(model.name, file) != file:
                raise UsageProblem(
                    f"{places[model.name]} and {file} both have a model {model.name!r}: give one of them a `name`"
                )


def _times(files: Sequence[Path]) -> list[float]:
    return [file.stat().st_mtime if file.exists() else 0.0 for file in files]
