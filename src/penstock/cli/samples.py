"""`penstock sample` and `sample-model`: write a small synthetic file, or a tiny random model, to try a kind with."""

from __future__ import annotations

import csv
import math
import wave
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from penstock.cli.display import err, out
from penstock.errors import ConfigError

#: Width and height of a scene in pixels where nothing else is asked for.
SCENE_PX = 1024
#: The recording: samples per second, and its tones in hertz with their seconds; 0 is silence.
_RATE_HZ = 16_000
_TONES = ((0, 0.3), (220, 0.4), (330, 0.4), (0, 0.6), (440, 0.4), (262, 0.6), (0, 0.3))
#: The video: size in pixels, frames per second, and frames.
_CLIP_PX, _CLIP_RATE_HZ, _CLIP_FRAMES = (160, 120), 10, 20
_PAGE = (
    ((250, 40), 44, "Annual Report"),
    ((60, 160), 26, "The river rose by 14 cm in October."),
    ((60, 220), 26, "Nobody was hurt."),
)


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A kind of sample file."""

    write: Callable[[Path], None]
    #: Content of the file, for users.
    content: str


def kind_of(path: Path) -> SampleFile:
    """Return the kind of file that the path's end names; raise `ConfigError` for other ends."""
    end = path.suffix.lower()
    if (found := FILES.get(_OTHER_ENDS.get(end, end))) is None:
        raise ConfigError(f"there is no sample file with the end {path.suffix!r}; known ends: {', '.join(FILES)}")
    return found


def write_file(path: Path, *, size_px: int | None = None) -> None:
    """Write the file that the path's end names; `size_px` is the side of a scene, the only kind that has a choice."""
    kind = kind_of(path)
    if kind.write is not _scene:
        if size_px is not None:
            raise ConfigError("only a scene (.tif) can have a size")
        kind.write(path)
    else:
        _scene(path, size_px or SCENE_PX)


def _scene(path: Path, size_px: int = SCENE_PX) -> None:
    from penstock.processors.geo.sample import write_sample

    write_sample(path, size_px=size_px)


def _photo(path: Path) -> None:
    """Draw a hill with a house and a tree under a sky."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (640, 480))
    draw = ImageDraw.Draw(picture)
    for row in range(480):
        draw.line((0, row, 639, row), fill=(110 + row // 5, 160 + row // 8, 225))
    draw.ellipse((500, 40, 570, 110), fill=(250, 225, 130))
    draw.ellipse((-200, 300, 900, 900), fill=(86, 125, 60))
    draw.rectangle((180, 220, 320, 330), fill=(190, 150, 120))
    draw.polygon(((160, 220), (340, 220), (250, 150)), fill=(140, 60, 50))
    draw.rectangle((235, 270, 270, 330), fill=(80, 55, 40))
    draw.rectangle((440, 240, 455, 340), fill=(95, 70, 50))
    draw.ellipse((395, 150, 500, 265), fill=(50, 95, 45))
    picture.save(path, quality=90)


def _page(path: Path) -> None:
    """Draw a page of three lines."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (800, 600), "white")
    draw = ImageDraw.Draw(page)
    for place, size, words in _PAGE:
        draw.text(place, words, fill="black", font=ImageFont.load_default(size))
    page.save(path)


def _recording(path: Path) -> None:
    """Write tones with pauses, 16 bit and one channel."""
    samples = array("h")
    for tone_hz, seconds in _TONES:
        for step in range(round(seconds * _RATE_HZ)):
            samples.append(round(9000 * math.sin(2 * math.pi * tone_hz * step / _RATE_HZ)))
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, _RATE_HZ, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())


def _clip(path: Path) -> None:
    """Write a ball that crosses a meadow."""
    import av
    import numpy as np
    from PIL import Image, ImageDraw

    with av.open(str(path), "w") as film:
        stream = film.add_stream("mpeg4", rate=_CLIP_RATE_HZ)
        stream.width, stream.height = _CLIP_PX
        stream.pix_fmt = "yuv420p"
        for number in range(_CLIP_FRAMES):
            picture = Image.new("RGB", _CLIP_PX, (95, 140, 70))
            ImageDraw.Draw(picture).circle((10 + 7 * number, 60), 12, fill=(220, 80, 40))
            film.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        film.mux(stream.encode())


def _table(path: Path) -> None:
    """Write eight plots of land with the columns of the sample model `tabular`."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("plot", "rain", "sun"))
        writer.writerows((plot, 400 + 35 * plot % 220, 1500 + 90 * plot % 400) for plot in range(1, 9))


def _rows(path: Path) -> None:
    """Write six rows of 64 numbers, the input of the sample models `tensor` and `text-generation`."""
    import numpy as np

    np.save(path, np.random.default_rng(1).normal(size=(6, 64)).astype(np.float32))


#: All kinds by the end of the file's name.
FILES: Mapping[str, SampleFile] = MappingProxyType(
    {
        ".tif": SampleFile(_scene, "a synthetic scene, six bands of reflectance x 10000"),
        ".jpg": SampleFile(_photo, "a drawn photograph of a house and a tree"),
        ".png": SampleFile(_page, "a page of three lines"),
        ".wav": SampleFile(_recording, "a recording of 3 s, tones and pauses without a word"),
        ".mp4": SampleFile(_clip, "a video of 2 s, a ball that crosses a meadow"),
        ".csv": SampleFile(_table, "a table of eight plots with rain and sun"),
        ".npy": SampleFile(_rows, "six rows of 64 random numbers, float32"),
    }
)
_OTHER_ENDS = {".tiff": ".tif", ".jpeg": ".jpg"}


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
