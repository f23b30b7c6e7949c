"""`penstock sample-model`: write a tiny random model of a kind, to try the kind offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import err, out
from penstock.errors import ConfigError


def sample_model(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the model; `list` shows all kinds.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", file_okay=False, help="Folder of the model [my-KIND].")
    ] = None,
) -> None:
    """Write a tiny model with random weights, and print its record for models.toml. Its answers mean nothing.

    penstock sample-model text-generation --out stories >> models.toml
    """
    from difflib import get_close_matches

    from penstock.local.sample_files import FILES
    from penstock.local.sample_models import KINDS, write_sample

    if kind == "list":
        for name, known in KINDS.items():
            out.print(f"{name}  {known.runner}")
        return
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"there is no sample model of the kind {kind!r}{hint}; known kinds: {', '.join(KINDS)}")
    folder = folder or Path(f"my-{kind}")
    if folder.exists():
        raise ConfigError(f"{folder} exists: choose another folder with --out")
    try:
        record = write_sample(kind, folder.absolute())
    except ModuleNotFoundError as error:
        extra = KINDS[kind].runner  # each runner has an extra of its name
        raise ConfigError(f"this needs {error.name}: pip install '.[{extra}]' in a clone of the repository") from error
    out.print(record)
    err.print(
        f"{folder}: a random {kind} model, whose answers mean nothing. Add the record above to models.toml, then:"
    )
    file = KINDS[kind].arguments.partition(" ")[0]
    if Path(file).suffix in FILES:
        err.print(f"penstock sample {file}")
    err.print(f"penstock run {folder.name} --catalogue models.toml {KINDS[kind].arguments}")
