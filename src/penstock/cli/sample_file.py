"""`penstock sample`: write a small synthetic file to try a model with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import out
from penstock.errors import ConfigError
from penstock.local.sample_files import FILES, SCENE_PX, kind_of, write_file

#: Extras that bring the libraries of the files.
_EXTRAS = {"av": "media", "numpy": "worker", "PIL": "worker", "rasterio": "geo"}


def sample(
    path: Annotated[
        Path,
        typer.Argument(help=f"File to write; its end names the kind: {', '.join(FILES)}.", dir_okay=False),
    ],
    size_px: Annotated[
        int | None,
        typer.Option("--size", min=64, max=20_000, help=f"Width and height of a scene in pixels [{SCENE_PX}]."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a small synthetic file to try models with.

    A scene (.tif), a photograph (.jpg), a page (.png), a recording (.wav), a video (.mp4), a table (.csv) or rows of
    numbers (.npy): penstock sample scene.tif
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists: choose another name, or replace it with --force")
    write_sample_file(path, size_px=size_px)
    out.print(f"{path}: {kind_of(path).content}")


def write_sample_file(path: Path, *, size_px: int | None = None) -> None:
    """Write the file that the path's end names; raise `ConfigError` if it cannot be written here."""
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
        write_file(path, size_px=size_px)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "worker")
        raise ConfigError(f"this needs {error.name}: pip install '.[{extra}]' in a clone of the repository") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
