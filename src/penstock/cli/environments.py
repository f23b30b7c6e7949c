"""`penstock models build`: build the environments that Python files and records of models name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, show_rows
from penstock.cli.options import AsJson
from penstock.errors import ConfigError, ModelUnavailable

if TYPE_CHECKING:
    from penstock.catalogue.environments import Environments
    from penstock.config import Settings
    from penstock.models import Model
    from penstock.storage.checks import Finding


def built_records(file: Path, settings: Settings | None = None) -> list[Model]:
    """Return the records of a file's models; say so where the file's environment must be built first."""
    from penstock.catalogue.environments import Environments
    from penstock.catalogue.functions import function_records
    from penstock.catalogue.script import read_script
    from penstock.config import load_settings

    environments = Environments.of(settings or load_settings())
    script = read_script(file)
    if environments.find(script) is None:
        err.print(f"building the environment of {file.name}: {', '.join(script.dependencies)}")
    return function_records(file, environments, build=True)


def of_files(names: list[str], catalogue: list[Path]) -> tuple[list[str], list[Path]]:
    """Return names with those of the models in place of Python files, and the catalogues with these files."""
    found, catalogue = list[str](), list(catalogue)
    for name in names:
        if name.endswith(".py"):
            found += [record.name for record in built_records(Path(name))]
            catalogue.append(Path(name))
        else:
            found.append(name)
    return found, catalogue


def findings(settings: Settings) -> Iterator[Finding]:
    """Report the environment of each Python file and record of models: built, not built, broken, or used by none."""
    from penstock.catalogue.environments import Environments
    from penstock.storage.checks import Finding

    environments, used = Environments.of(settings), set[Path]()
    for path in settings.models:
        for name, find in _asked(path, environments):
            try:
                python = find()
            except (ConfigError, ModelUnavailable) as error:
                yield Finding(f"environment of {name}", ok=False, detail=error.detail, remedy="correct it or build it")
                continue
            used.add(python.parent.parent)
            yield Finding(f"environment of {name}", ok=True, detail=f"{python.parent.parent}")
    for one in environments.listed():
        if one.broken or one.folder not in used:
            detail = "its interpreter is gone" if one.broken else f"no model uses it: {one.size_bytes / 1e6:,.0f} MB"
            name = f"environment {one.folder.name}"
            yield Finding(name, not one.broken, detail, remedy=f"remove {one.folder}", doubtful=not one.broken)


def _asked(path: Path, environments: Environments) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Yield the file, or the models of a catalogue, that have an environment, with what finds its interpreter."""
    from penstock.catalogue.records import read_catalogue
    from penstock.catalogue.script import read_script
    from penstock.models import Model
    from penstock.workers.engine.function.process import interpreter_of
    from penstock.workers.engine.runners import Runners

    def of_file() -> Path:
        script = read_script(path)
        if (found := environments.find(script)) is None:
            raise ConfigError(f"is not built: {', '.join(script.dependencies)}: `penstock models build {path}`")
        return found

    def of_record(model: Model) -> Path:
        return interpreter_of(Runners.installed().with_environment(model, environments, build=False))

    if path.suffix == ".py":
        try:
            if not read_script(path).has_environment:
                return
        except ConfigError:  # `of_file` says what is wrong
            pass
        yield path.name, of_file
        return
    models = list[Model]()
    with suppress(ConfigError):  # the check of the catalogue says what is wrong
        models += read_catalogue(path).values()
    for model in models:
        if model.environment is not None or model.dependencies:
            yield model.name, partial(of_record, model)


def build(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Python files and catalogues [those of the setting `models`]."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the environments that files and records name, so that no job waits for them; list all that are built.

    For images, and for machines that reach no index when they serve.
    """
    from penstock.catalogue.environments import Environments
    from penstock.catalogue.records import read_catalogue
    from penstock.config import load_settings
    from penstock.observation.log import configure
    from penstock.workers.engine.runners import Runners

    configure("warning")
    settings = load_settings()
    environments, runners = Environments.of(settings), Runners.installed()
    for file in files or settings.models:
        if file.suffix == ".py":
            built_records(file, settings)
            continue
        for model in read_catalogue(file, environments=environments).values():
            if not model.is_unbuilt:
                continue
            try:
                runners.with_environment(model, environments, build=False)
            except ModelUnavailable:
                err.print(f"building the environment of {model.name}: {', '.join(model.dependencies)}")
                runners.with_environment(model, environments, build=True)
    found = environments.listed()
    if as_json:
        print_json([_as_json(one) for one in found])
        return
    rows = [(one.folder.name, f"{one.size_bytes / 1e6:,.0f} MB", ", ".join(one.packages)) for one in found]
    show_rows(out, ("environment", "size", "packages"), rows, omit=("size",), below="packages")


def _as_json(one: Any) -> dict[str, Any]:
    return {**asdict(one), "folder": str(one.folder)}
