"""`penstock sample` and `sample-model`: write a small synthetic file, or a tiny random model, to try a kind with."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from shutil import copyfile
from types import MappingProxyType
from typing import Annotated

import typer

from penstock.cli.display import err, out
from penstock.errors import ConfigError

#: Width and height of a scene in pixels where nothing else is asked for.
SCENE_PX = 1024
#: The end of each file's name, and its content. All but the scene are drawn files that lie in `sample-files`.
FILES: Mapping[str, str] = MappingProxyType(
    {
        ".tif": "a synthetic scene, six bands of reflectance x 10000",
        ".jpg": "a drawn photograph of a house and a tree",
        ".png": "a page of three lines",
        ".wav": "a recording of 3 s, tones and pauses without a word",
        ".mp4": "a video of 2 s, a ball that crosses a meadow",
        ".csv": "a table of eight plots with rain and sun",
        ".npy": "six rows of 64 random numbers, float32",
    }
)
_OTHER_ENDS = {".tiff": ".tif", ".jpeg": ".jpg"}


def end_of(path: Path) -> str:
    """Return the end in `FILES` that a path's own end means; raise `ConfigError` for another one."""
    end = _OTHER_ENDS.get(path.suffix.lower(), path.suffix.lower())
    if end not in FILES:
        raise ConfigError(f"there is no sample file with the end {path.suffix!r}; known ends: {', '.join(FILES)}")
    return end


def write_file(path: Path, *, size_px: int | None = None) -> None:
    """Write the file that the path's end names; `size_px` is the side of a scene, the only kind that has a choice."""
    if (end := end_of(path)) == ".tif":
        from penstock.processors.geo.sample import write_sample

        write_sample(path, size_px=size_px or SCENE_PX)
        return
    if size_px is not None:
        raise ConfigError("only a scene (.tif) can have a size")
    copyfile(Path(__file__).parent / "sample-files" / f"sample{end}", path)


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
    out.print(f"{path}: {FILES[end_of(path)]}")


def write_sample_file(path: Path, *, size_px: int | None = None) -> None:
    """Write the file that the path's end names; raise `ConfigError` if it cannot be written here."""
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
        write_file(path, size_px=size_px)
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs {error.name}: pip install '.[geo]' in a clone of the repository") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def sample_model(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the model; `list` shows all kinds.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", file_okay=False, help="Folder of the model [my-KIND].")
    ] = None,
) -> None:
    """Write a tiny model with random weights, and print its record for models.toml. Its answers mean nothing.

    penstock sample-model text-generation --out stories >> models.toml
    """
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
