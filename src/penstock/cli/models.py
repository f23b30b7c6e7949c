"""`penstock models`: list, check, add, fetch, build, pin, tune, export, publish, promote and retry models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.display import err, out, print_json, show_rows, table
from penstock.cli.environments import build, of_files
from penstock.cli.failures import problem
from penstock.cli.options import DEFAULT_URL, EPILOG, JOB_FAILED, OK, AsJson, Catalogues, Data, Owner, Url, connect
from penstock.cli.promotion import promote
from penstock.cli.tuning import tune
from penstock.cli.upkeep import opened, opened_stores, operator
from penstock.client.answers import Unreachable
from penstock.client.local_files import assign_files, media_fields
from penstock.errors import ConfigError, ModelUnavailable, ObjectStoreUnavailable

if TYPE_CHECKING:
    from penstock.catalogue.records import Catalogue
    from penstock.config import Settings
    from penstock.local.inspection import Sample
    from penstock.local.library import Engine
    from penstock.models import CatalogueEntry, Model


class _ListByDefault(TyperGroup):
    """`penstock models --json` is `penstock models list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # (typer's own click context has no public name)
        """Insert `list` if no command is given."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


models_app = typer.Typer(
    cls=_ListByDefault,
    help="The models: list, check, add, fetch, build, pin, tune, export, publish, promote and retry them.",
    epilog=EPILOG,
)

models_app.command(epilog=EPILOG)(build)
models_app.command(epilog=EPILOG)(tune)
models_app.command(epilog=EPILOG)(promote)

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Names or aliases [all].")]
NamesOrFiles = Annotated[
    list[str] | None, typer.Argument(metavar="NAME|FILE.py...", help="Names, aliases, or Python files [all models].")
]


@models_app.command("list", epilog=EPILOG)
def list_models(
    local: Annotated[
        bool, typer.Option("--local", help="List this installation's models (`penstock run`), without the service.")
    ] = False,
    catalogue: Catalogues = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the service's models, or with --local this installation's, with their inputs."""
    found = _local(catalogue) if local or catalogue else _served(url)
    if as_json:
        print_json(found)
        return
    rows = []
    for model in found:
        media = media_fields(model["input_schema"])
        others = [name for name in model["input_schema"].get("properties", {}) if name not in media]
        called = ", ".join([model["name"], *model.get("aliases", ())])
        rows.append((called, model["title"], ", ".join(media), ", ".join(others), _trouble(model)))
    columns = ("model", "title", "files", "parameters", "problem")
    show_rows(out, columns, rows, omit=("parameters", "files", "title"), below="problem")


@models_app.command(epilog=EPILOG)
def check(
    names: NamesOrFiles = None,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="Also load each model and run a dummy request through it.")
    ] = False,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Scene or picture to compare models in bfloat16 with float32 on, instead of noise. Implies --warm-up.",
        ),
    ] = None,
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Check this installation's models: processor, schema, hashes, and the packages and memory that the runner needs.

    Weights are read with --warm-up only. A model in bfloat16 with classes or numbers is then computed in float32 too,
    and the share of labels that differ is shown. Exit code 1 if a model is broken.
    """
    from penstock.local.inspection import inspect
    from penstock.observation.log import configure

    configure("error", as_text=True)
    names, catalogue = of_files(names or [], catalogue or [])
    with _engine(catalogue) as engine:
        findings = list(inspect(engine, names, warm_up=warm_up or sample is not None, sample=_sample(sample)))
    if as_json:
        print_json([{**asdict(finding), "ok": finding.ok} for finding in findings])
    else:
        rows = [
            (found.model, "ok" if found.ok else "FAIL", found.revision, found.source,
             "; ".join(found.problems) or "; ".join(found.notes))
            for found in findings
        ]  # fmt: skip
        columns = ("model", "check", "revision", "source", "result")
        show_rows(out, columns, rows, omit=("source", "revision"), below="result")
    raise typer.Exit(OK if all(finding.ok for finding in findings) else JOB_FAILED)


@models_app.command(epilog=EPILOG)
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names or aliases.")],
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Fetch models from the hub or S3 into the model cache, and check their hashes."""
    from penstock.cli.progress import growing
    from penstock.local.inspection import size_bytes

    fetched = []
    with _engine(catalogue) as engine:
        for name in names:
            engine.installation.record(name)  # an unknown name is reported before other models are fetched
        for name in names:
            with growing(err, f"fetching {name}", engine.installation.cache, size_bytes):
                path = engine.installation.fetch(name)
            fetched.append({"model": name, "path": str(path), "size_bytes": size_bytes(path)})
            if not as_json:
                out.print(f"{name}  {path}  {fetched[-1]['size_bytes']:,} bytes")
    if as_json:
        print_json(fetched)


@models_app.command(epilog=EPILOG)
def add(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the record [list them].")] = None,
    to: Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="Catalogue to append the record to.")] = Path(
        "models.toml"
    ),
    as_json: AsJson = False,
) -> None:
    """Add a ready record to your catalogue: fetch its files and pin them. Without a name, list the ready records.

    Name the catalogue in the setting `models`. Nothing is written where the files cannot be fetched.
    """
    from penstock.cli.progress import growing
    from penstock.local.inspection import size_bytes
    from penstock.local.ready import add_ready, ready_records

    if name is None:
        known = ready_records()
        if as_json:
            print_json(
                [{"model": each, "title": record.title, "source": record.source} for each, record in known.items()]
            )
            return
        rows = table("model", "title", "source")
        for each, record in known.items():
            rows.add_row(each, record.title, record.source)
        out.print(rows)
        return

    def pins(path: Path, model: str) -> dict[str, str]:
        with _engine([path]) as engine, growing(err, f"fetching {model}", engine.installation.cache, size_bytes):
            return engine.installation.pins(model)

    record = add_ready(name, to, pins)
    if as_json:
        print_json(
            {
                "model": record.name,
                "revision": record.revision,
                "catalogue": str(to),
                "files": dict(record.files),
                "sha256": record.sha256,
            }
        )
    else:
        out.print(f"{record.name}  revision {record.revision}  added to {to}")


@models_app.command(epilog=EPILOG)
def pin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias.")],
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Print the hashes of a model's files in the form of a record: append them to your models.toml.

    A model that has hashes in the catalogue is rejected: a second table would make the file invalid. --json prints all.
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias of a model for scenes.")],
    catalogue: Catalogues = None,
) -> None:
    """Print a model for scenes as a STAC item (MLM 1.5): its bands, scaling, tiles, classes, weights and licence."""
    with _engine(catalogue) as engine:
        record = engine.installation.record(name)
    if not record.processor.startswith("raster-"):
        raise ConfigError(f"{record.name} is not a model for scenes: its processor is {record.processor}")
    try:
        from penstock.processors.geo.write.mlm import stac_mlm
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs {error.name}: pip install '.[geo]' in a clone of the repository") from error
    print_json(stac_mlm(record))


@models_app.command(epilog=EPILOG)
def publish(
    names: Names = None, catalogue: Catalogues = None, by: Owner = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Publish this installation's models: the service then accepts their jobs without a worker.

    Only records and processors are loaded: no weights, and no device. A worker's check counts as soon as there is one.
    Nothing is published unless all models can be described. Exit code 1 otherwise.
    """
    from penstock.catalogue.records import catalogue_of
    from penstock.storage.journal.stored_models import put_published

    settings, store = opened(data)
    found = catalogue_of(settings, *(catalogue or ()))
    entries = [_described(found, name, settings) for name in names or sorted({*found, *found.wrong})]
    if problems := [f"{entry.name}: {entry.problem}" for entry in entries if entry.problem is not None]:
        err.print("nothing was published: " + "; ".join(problems))
        err.print("Some processors read files such as a tokenizer: `penstock models fetch NAME` fetches them.")
        if as_json:
            print_json(problem(ModelUnavailable("; ".join(problems))), indent=None)
        raise typer.Exit(JOB_FAILED)
    for entry in entries:
        put_published(store, entry, owner=by or operator())
        if not as_json:
            out.print(f"{entry.name}  revision {entry.revision}  published")
    if as_json:
        print_json([{"model": entry.name, "revision": entry.revision, "queue": entry.queue} for entry in entries])


@models_app.command(epilog=EPILOG)
def unpublish(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names, not aliases.")],
    by: Owner = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw models: without a worker that serves them, the service refuses their jobs within 10 seconds.

    Jobs that wait keep waiting. A living worker keeps serving its models: remove them from its models.toml too.
    Nothing is withdrawn if one of the models is not published.
    """
    from penstock.storage.journal.stored_models import read_stored, withdraw

    _, store = opened(data)
    stored = read_stored(store)
    if unknown := [name for name in names if not stored.has(name)]:
        raise ConfigError(f"no model {', '.join(map(repr, unknown))} is published; see `penstock models list`")
    for name in names:
        withdraw(store, name, owner=by or operator())
    if as_json:
        print_json([{"model": name} for name in names])
        return
    for name in names:
        out.print(f"{name}  withdrawn")


@models_app.command(epilog=EPILOG)
def retry(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Have all workers load a model again whose load ended its process, without waiting for their next try.

    `penstock doctor` shows such models. Workers try again within their next poll.
    """
    from penstock.models import find, no_model
    from penstock.storage.journal.stored_models import merged, read_stored
    from penstock.storage.redis import catalogues, loads

    with opened_stores(data) as (_, jobs, objects):
        models = merged(jobs.run(catalogues.known()), read_stored(objects))
        if (model := find(models, name)) is None:
            raise ConfigError(no_model([name], models))
        machines = jobs.run(loads.retry(model.name))
    if as_json:
        print_json({"model": model.name, "machines": machines})
    else:
        out.print(
            f"{model.name}  {f'{machines} machines forget its failed loads' if machines else 'no load had failed'}"
        )


def _sample(path: Path | None) -> Sample | None:
    """Return a file as a sample for a model's first media field."""
    from penstock.local.inspection import Sample

    return None if path is None else Sample(path.name, lambda schema: assign_files([str(path)], schema))


def _described(found: Catalogue, name: str, settings: Settings) -> CatalogueEntry:
    """Return the entry of a model, whose files may be missing; its `problem` is that of its record or processor."""
    from penstock.models import find, no_model
    from penstock.processors.registry import Registry, export, unusable

    if record := find(found, name):
        return export(Registry.installed(), _with_files(record, settings))
    if wrong := find(found.wrong, name):
        return unusable(wrong.rest, wrong.problem)
    raise ConfigError(no_model([name], found))


def _with_files(record: Model, settings: Settings) -> Model:
    """Return the model with a local path as source if its files are on this machine, unchanged otherwise."""
    from penstock.catalogue.environments import Environments
    from penstock.storage.objects.opening import open_store
    from penstock.workers.engine.sources import localise

    try:
        return localise(
            record, cache=settings.model_cache_dir, s3=lambda url: open_store(url, settings), fetch=False,
            environments=Environments.of(settings),
        )  # fmt: skip
    except (ModelUnavailable, ObjectStoreUnavailable):
        return record


def _refuse_pinned(record: Model) -> None:
    """Raise `ConfigError` for a model that has hashes in the catalogue."""
    if record.files or record.sha256:
        where = f"the table [models.{record.name}.files]" if record.files else f"sha256 of [models.{record.name}]"
        raise ConfigError(
            f"{record.name} is pinned already: to pin other files, remove {where} from the catalogue and run this again"
        )


def _engine(catalogue: list[Path] | None) -> Engine:
    """Return an engine that imports processors in other processes, so that a crash does not end this one."""
    from penstock.local.library import Engine
    from penstock.observation.log import configure

    configure("error", as_text=True)
    return Engine(catalogue=catalogue or (), isolated=True)


def _served(url: str) -> list[dict[str, Any]]:
    try:
        with connect(url) as client:
            return [dict(model.raw) for model in client.models()]
    except Unreachable as error:
        raise Unreachable(f"{error}; --local lists this installation's models", address=error.address) from error


def _local(catalogue: list[Path] | None) -> list[dict[str, Any]]:
    with _engine(catalogue) as engine:
        here = engine.installation
        return [here.look_up(name)[1].model_dump(mode="json") for name in here.names]


def _trouble(model: dict[str, Any]) -> str:
    return model.get("problem") or model.get("note") or ("" if model.get("ready", True) else "warming up")
