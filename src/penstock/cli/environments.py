"""`penstock models build`: build the environments that Python files of models name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, show_rows
from penstock.cli.options import AsJson
from penstock.errors import ConfigError

if TYPE_CHECKING:
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
    """Report the environment of each Python file of models: built, not built, or broken."""
    from penstock.catalogue.environments import Environments
    from penstock.catalogue.script import read_script
    from penstock.storage.checks import Finding

    environments = Environments.of(settings)
    for path in settings.models:
        try:
            script = read_script(path) if path.suffix == ".py" else None
            if script is None or not script.has_environment:
                continue
            python = environments.find(script)
        except ConfigError as error:
            yield Finding(f"environment of {path.name}", ok=False, detail=error.detail, remedy="correct the file")
            continue
        detail = f"{python.parent.parent}" if python else f"is not built: {', '.join(script.dependencies)}"
        remedy = f"a worker builds it; ahead of it: `penstock models build {path}`"
        yield Finding(f"environment of {path.name}", ok=python is not None, detail=detail, remedy=remedy)
    for one in environments.listed():
        if one.broken:
            yield Finding(
                f"environment {one.folder.name}",
                ok=False,
                detail="its interpreter is gone",
                remedy=f"remove {one.folder}",
            )


def build(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Python files [those of the setting `models`].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build the environments that Python files of models name, so that no job waits for them; list all that are built.

    For images, and for machines that reach no index when they serve.
    """
    from penstock.catalogue.environments import Environments
    from penstock.config import load_settings
    from penstock.observation.log import configure

    configure("warning")
    settings = load_settings()
    for file in files or [path for path in settings.models if path.suffix == ".py"]:
        built_records(file, settings)
    found = Environments.of(settings).listed()
    if as_json:
        print_json([_as_json(one) for one in found])
        return
    rows = [(one.folder.name, f"{one.size_bytes / 1e6:,.0f} MB", ", ".join(one.packages)) for one in found]
    show_rows(out, ("environment", "size", "packages"), rows, omit=("size",), below="packages")


def _as_json(one: Any) -> dict[str, Any]:
    return {**asdict(one), "folder": str(one.folder)}
