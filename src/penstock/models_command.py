"""`penstock models`: list the service's models or this installation's, check them, fetch them, describe them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.answers import Unreachable, media_fields
from penstock.display import err, out, print_json, table
from penstock.errors import ConfigError
from penstock.options import DEFAULT_URL, EPILOG, JOB_FAILED, OK, AsJson, Catalogues, Url, asking

if TYPE_CHECKING:
    from penstock.models import Model
    from penstock.offline import Engine


class _ListByDefault(TyperGroup):
    """`penstock models --json` is `penstock models list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # (typer's own click context has no public name)
        """Put `list` where no command stands."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


models_app = typer.Typer(cls=_ListByDefault, help="The models: list, check, fetch and export them.", epilog=EPILOG)

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Names or aliases [all].")]


@models_app.command("list", epilog=EPILOG)
def list_models(
    local: Annotated[
        bool, typer.Option("--local", help="Of this installation (`penstock run`), without asking the service.")
    ] = False,
    catalogue: Catalogues = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the service's models, or with --local this installation's, and what they take."""
    found = _local(catalogue) if local or catalogue else _served(url)
    if as_json:
        print_json(found)
        return
    rows = table("model", "what it does", "files", "parameters", "problem")
    for model in found:
        media = media_fields(model["input_schema"])
        others = [name for name in model["input_schema"].get("properties", {}) if name not in media]
        called = ", ".join([model["name"], *model.get("aliases", ())])
        rows.add_row(called, model["title"], ", ".join(media), ", ".join(others), _trouble(model))
    out.print(rows)


@models_app.command(epilog=EPILOG)
def check(
    names: Names = None,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="Load each model too and run its largest usual request through it.")
    ] = False,
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Check this installation's models: processor, schema, hashes, and that what the runner needs is there and fits.

    Weights are read with --warm-up only. Exit code 1 if one is broken.
    """
    from penstock.inspection import inspect

    with _engine(catalogue) as engine:
        findings = list(inspect(engine, names or (), warm_up=warm_up))
    if as_json:
        print_json([{**asdict(finding), "ok": finding.ok} for finding in findings])
    else:
        rows = table("model", "", "revision", "source", "found")
        for found in findings:
            what = "; ".join(found.problems) or "; ".join(found.notes)
            rows.add_row(found.model, "ok" if found.ok else "FAIL", found.revision, found.source, what)
        out.print(rows)
    raise typer.Exit(OK if all(finding.ok for finding in findings) else JOB_FAILED)


@models_app.command(epilog=EPILOG)
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names or aliases.")],
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Fetch models from the hub or S3 into the cache of models, and check their hashes."""
    from penstock.inspection import size_bytes
    from penstock.progress import growing

    fetched = []
    with _engine(catalogue) as engine:
        for name in names:
            engine.installation.record(name)  # a wrong one is said before others are fetched
        for name in names:
            with growing(err, f"fetching {name}", engine.installation.cache, size_bytes):
                path = engine.installation.fetch(name)
            fetched.append({"model": name, "path": str(path), "size_bytes": size_bytes(path)})
            if not as_json:
                out.print(f"{name}  {path}  {fetched[-1]['size_bytes']:,} bytes")
    if as_json:
        print_json(fetched)


@models_app.command(epilog=EPILOG)
def pin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias.")],
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Print the hashes of a model's files as they stand in a record: append them to your models.toml.

    A model that has hashes in the catalogue is refused: a second table of them would break the file. --json prints.
    """
    with _engine(catalogue) as engine:
        record = engine.installation.record(name)
        if not as_json:
            _refuse_pinned(record)
        pins = engine.installation.pins(name)
    if as_json:
        print_json(pins)
    elif list(pins) == [""]:
        out.print(f'sha256 = "{pins[""]}"    # a line of [models.{record.name}]')
    else:
        out.print(f"[models.{record.name}.files]")
        for path, digest in pins.items():
            out.print(f'"{path}" = "{digest}"')


@models_app.command(epilog=EPILOG)
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias of a model of scenes.")],
    catalogue: Catalogues = None,
) -> None:
    """Print a model of scenes as a STAC item (MLM 1.4): its bands, scaling, tiles, classes, weights and licence."""
    with _engine(catalogue) as engine:
        record = engine.installation.record(name)
    if not record.processor.startswith("raster-"):
        raise ConfigError(f"{record.name} is no model of scenes: its processor is {record.processor}")
    try:
        from penstock.processors.geo.mlm import stac_mlm
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs {error.name}: pip install 'penstock[geo]'") from error
    print_json(stac_mlm(record))


def _refuse_pinned(record: Model) -> None:
    """Raise `ConfigError` for a model that the catalogue has hashes of."""
    if record.files or record.sha256:
        where = f"the table [models.{record.name}.files]" if record.files else f"sha256 of [models.{record.name}]"
        raise ConfigError(
            f"{record.name} is pinned already: to pin other files, take {where} out of the catalogue and run this again"
        )


def _engine(catalogue: list[Path] | None) -> Engine:
    """Return an engine whose processors cannot take this process with them when they are imported."""
    from penstock.log import configure
    from penstock.offline import Engine

    configure("error")
    return Engine(catalogue=catalogue or (), isolated=True)


def _served(url: str) -> list[dict[str, Any]]:
    try:
        with asking(url) as client:
            return [dict(model.raw) for model in client.models()]
    except Unreachable as error:
        raise Unreachable(f"{error}; --local lists this installation's models") from error


def _local(catalogue: list[Path] | None) -> list[dict[str, Any]]:
    with _engine(catalogue) as engine:
        here = engine.installation
        return [here.look_up(name)[1].model_dump(mode="json") for name in here.names]


def _trouble(model: dict[str, Any]) -> str:
    return model.get("problem") or ("" if model.get("ready", True) else "warming up")
