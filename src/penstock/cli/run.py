"""`penstock run`: a model on this machine, without queue or server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from traceback import format_exception
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, show_notes
from penstock.cli.environments import built_records
from penstock.cli.failures import problem
from penstock.cli.model_help import plain_words, show_help, wants_help
from penstock.cli.options import INTERRUPTED, JOB_FAILED, USAGE, AsJson, Catalogues, Params, Whole
from penstock.cli.params import assign_texts, means_texts, parse_params, take_options
from penstock.client.answer_text import answer_lines
from penstock.client.local_files import UsageProblem, assign_files
from penstock.cores import cores, physical_cores
from penstock.errors import InputError, ModelUnavailable, ProcessorFailed, RequestError, ServiceError, with_places
from penstock.jobs import Phase, Progress
from penstock.workers.engine.cpu_passes import keep_to_cores, use_huge_pages

if TYPE_CHECKING:
    from penstock.local.library import Result
    from penstock.models import CatalogueEntry

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|TEXT...",
        help="The model's files, or its text if it needs no files or these are none. - reads standard input.",
    ),
]


def run(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of the model: see `penstock models list --local`.")],
    arguments: Arguments = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", file_okay=False, help="Folder for the result's files [MODEL-result]."),
    ] = None,
    param: Params = None,
    whole: Whole = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Run the processor in a separate process, as a worker does.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log events, and show the cause of a rejected input.")
    ] = False,
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Run a model here, without queue or server: penstock run csmask scene.tif --out result.

    A function of a Python file: penstock run thumbs.py:thumbnail photo.jpg --size 64. With --help after a model, its
    arguments and options are shown.
    """
    use_huge_pages(os.environ)
    keep_to_cores(os.environ, cores(), physical_cores())
    from penstock.local.library import Engine
    from penstock.observation.log import configure

    level = "info" if verbose else "error"
    configure(level, as_text=True)
    named, (model, catalogue) = model, of_file(model, catalogue or [])
    sys.excepthook = partial(_complain_of_processor, as_json)
    try:
        with Engine(catalogue=catalogue, isolated=isolated, log_level=level) as engine:
            _, entry = engine.installation.servable(model)
            if wants_help(context):
                show_help(f"run {named}", entry)
                return
            words, options = take_options(arguments or [], entry.input_schema, plain=plain_words(context))
            document = _input(entry.input_schema, words, [*options, *(param or [])], whole)
            where = folder or Path(f"{entry.name}-result")
            with _View(streams=not as_json) as view:
                result = engine.run(model, input=document, out=where, say=view.say, on_progress=view.progress)
            _show(entry, result, view, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except RequestError as error:
        _complain(f"penstock: {error.detail}", error, as_json)
        raise typer.Exit(USAGE) from None
    except (InputError, ServiceError) as error:
        if isinstance(error, ModelUnavailable):
            raise
        if verbose and error.__cause__ is not None:
            sys.stderr.write("".join(format_exception(error.__cause__)))
        _complain(f"{error.code}: {with_places(error.detail, error.errors)}", error, as_json)
        raise typer.Exit(JOB_FAILED) from None


def of_file(model: str, catalogue: list[Path]) -> tuple[str, list[Path]]:
    """Return the name and the catalogues of a model that may be given as `FILE.py:NAME`, or as a file of one model."""
    file, colon, name = model.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = model, ""
    if not file.endswith(".py"):
        if Path(model).is_file():
            raise UsageProblem(
                f"{model} is a file, and no model: write a function that loads it (docs/howto/own-networks.md), "
                "or a record (docs/howto/serve-a-model.md)"
            )
        return model, catalogue
    names = [record.name for record in built_records(Path(file))]
    if not name and len(names) > 1:
        raise UsageProblem(f"{file} has several models: name one, e.g. {file}:{names[0]} ({', '.join(names)})")
    return name.lower() or names[0], [*catalogue, Path(file)]


def _complain(text: str, error: RequestError | InputError | ServiceError, as_json: bool) -> None:
    err.print(text)
    if as_json:
        print_json(problem(error), indent=None)


def _complain_of_processor(
    as_json: bool, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback that begins at the processor, if it contains one, and with `as_json` a problem document."""
    begun = trace
    while begun is not None and _is_ours(begun.tb_frame.f_globals.get("__name__", "")):
        begun = begun.tb_next
    sys.stderr.write("".join(format_exception(kind, error, begun or trace)))
    if as_json:
        print_json(problem(ProcessorFailed(f"{kind.__name__}: {error}")), indent=None)


def _is_ours(module: str) -> bool:
    """Return True for modules between the command line and a processor."""
    package = module.partition(".")[0]
    between = ("__main__", "typer", "click", "contextlib", "threading", "runpy")
    return package in between or (package == "penstock" and not module.startswith("penstock.processors."))


def _input(schema: Mapping[str, Any], arguments: list[str], params: list[str], whole: str | None) -> dict[str, Any]:
    """Return the model's input from the arguments and from standard input."""
    from penstock.requests import is_file

    document = {**read_document(whole), **parse_params(params, schema)}
    if not means_texts(arguments, schema, is_file):
        return document | assign_files(arguments, schema, taken=document)
    if arguments == ["-"] or (not arguments and _lacks(schema, document)):
        return document | assign_texts([sys.stdin.read().removeprefix("\ufeff").removesuffix("\n")], schema)
    return document | assign_texts(arguments, schema)


def _lacks(schema: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Return True if the input is incomplete and standard input is not a terminal."""
    from jsonschema import Draft202012Validator

    return not Draft202012Validator(schema).is_valid(document) and not sys.stdin.isatty()


def read_document(whole: str | None, option: str = "--input") -> dict[str, Any]:
    """Return the object in an option, given as JSON or as a file; raise `UsageProblem` for anything else."""
    if whole is None:
        return {}
    try:
        given = whole.removeprefix("\ufeff").lstrip()
        text = given if given.startswith("{") else Path(whole).read_text(encoding="utf-8-sig")
        document = json.loads(text)
    except OSError as error:
        raise UsageProblem(f"{option} {whole}: neither a JSON object nor a file: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{option}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageProblem(f"{option}: must be a JSON object")
    return document


@dataclass
class _View:
    """The display of a running model: progress bars, until the first text arrives."""

    streams: bool
    said: list[str] = field(default_factory=list)
    _bars: ExitStack = field(default_factory=ExitStack)
    _tell: Callable[..., None] | None = None

    def __enter__(self) -> _View:
        from penstock.cli.progress import phases

        self._tell = self._bars.enter_context(phases(err))
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.close()
        if self.said:
            sys.stdout.write("\n")

    def progress(self, phase: Phase, progress: Progress) -> None:
        """Show the progress of the run."""
        if self._tell is not None and not self.said:
            self._tell(phase, progress)

    def say(self, text: str) -> None:
        """Print a further part of the result's text."""
        if self.streams:
            self._bars.close()
            self.said.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()


def _show(entry: CatalogueEntry, result: Result, view: _View, as_json: bool) -> None:
    files = [
        {"name": name, "content_type": file.media_type, "size_bytes": file.size_bytes, "path": str(file.path)}
        for name, file in result.artifacts.items()
    ]
    if as_json:
        output = {"text": result.text, "json": result.data}
        print_json({"model": entry.name, "output": output, "artifacts": files})
        show_notes(result.data)
        return
    text = None if result.text == "".join(view.said) else result.text
    if text is not None or result.text is None:
        for line in answer_lines(text, result.data, entry.views):
            out.print(line)
    for file in files:
        err.print(f"{file['path']}  {file['size_bytes']:,} bytes  {file['content_type']}")
    show_notes(result.data)
