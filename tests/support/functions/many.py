# ruff: noqa: T201  (what a model prints is its log)
"""Functions of every kind that a model may be, and of those that misbehave."""

from __future__ import annotations

import asyncio
import ctypes
import enum
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL import ImageOps

import penstock
from penstock import Audio, Boxes, Document, File, Image, Labels, Pixels, Progress, Table, Tensor, Text, Vector, Video


@dataclass
class Point:
    x: float
    y: float = 0.0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Views:
    small: Image
    note: str


class Grid:
    """A type of one's own."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows


@penstock.codec(Grid, suffix=".grid", media_type="text/plain")
class GridCodec:
    @staticmethod
    def decode(path: Path) -> Grid:
        return Grid([[int(word) for word in line.split()] for line in path.read_text().splitlines()])

    @staticmethod
    def encode(grid: Grid, path: Path) -> None:
        path.write_text("\n".join(" ".join(map(str, row)) for row in grid.rows))


@penstock.model
def plain(
    a: int, b: float = 1.5, c: bool = False, d: Literal["x", "y"] = "x", e: list[int] | None = None,
    p: Point | None = None, colour: Colour = Colour.RED,
) -> dict[str, Any]:  # fmt: skip
    """Echo what came.

    With all kinds of JSON.
    """
    return {"a": a, "b": b, "c": c, "d": d, "e": e, "p": p and [type(p).__name__, p.x, p.y], "colour": colour.name}


@penstock.model
def thumbnail(image: Image, size: Annotated[int, penstock.Field(ge=16, le=1024)] = 128) -> Image:
    """Shrink an image."""
    return image.resize((size, size))


@penstock.model(max_batch=8)
class Brightness:
    """Tell how bright images are."""

    def load(self) -> None:
        self.calls = 0

    def predict(self, images: list[Image], top: int = 2) -> list[Labels]:
        self.calls += 1
        print("a call of", len(images))
        bright = [float(np.asarray(image).mean()) / 255 for image in images]
        return [Labels(list({"bright": one, "dark": 1 - one}.items())[:top]) for one in bright]


@penstock.model
class Counted:
    """Count the calls of this process."""

    def load(self) -> None:
        self.calls = 0

    def predict(self, text: str) -> str:
        self.calls += 1
        return f"{text}{self.calls}"


_inside: list[str] = []


@penstock.model(concurrency=16)
async def meet(name: str, number: int) -> str:
    """Wait until so many calls are here, and answer in capitals."""
    _inside.append(name)
    while len(_inside) < number:
        await asyncio.sleep(0.01)
    return name.upper()


@penstock.model
def simulate(years: int) -> Iterator[Progress | Text | File]:
    """Yield progress, text and files."""
    for year in range(years):
        yield Progress(year, years)
        yield Text(f"year {year} ")
        Path(f"{year}.txt").write_text(str(year))
        yield File(f"{year}.txt", "text/plain")


@penstock.model
def steady(go_on: str) -> Iterator[Progress]:
    """Be a quarter done until a file is there."""
    yield Progress(1, 4)
    while not Path(go_on).exists():
        time.sleep(0.01)
    yield Progress(4, 4)


@penstock.model
def louder(audio: Audio(rate=8000), gain: float = 2.0) -> Audio:  # type: ignore[valid-type]
    return Audio(audio.samples * gain, audio.rate)  # type: ignore[attr-defined]


@penstock.model
def backwards(video: Video(fps=2)) -> Video:  # type: ignore[valid-type]
    return Video(video.frames[::-1], 2)  # type: ignore[attr-defined]


@penstock.model
def grey(image: Annotated[np.ndarray, Pixels()]) -> Annotated[np.ndarray, Pixels()]:
    return np.repeat(image.mean(axis=2, keepdims=True), 3, 2).astype(np.uint8)


@penstock.model
def turned(document: Document(dpi=36)) -> Document:  # type: ignore[valid-type]
    """Turn the pages of a document upside down, and their words."""
    found: Document = document
    pages = [penstock.Page(page.image.rotate(180), page.text.upper()) for page in found.pages]
    return Document(pages, found.dpi)


@penstock.model
def first_rows(table: Table, n: int = 2) -> Table:
    return table.slice(0, n)


@penstock.model
def doubled(tensor: Tensor) -> Tensor:
    return tensor * 2


@penstock.model
def transposed(grid: Grid) -> Grid:
    return Grid([list(row) for row in zip(*grid.rows, strict=True)])


@penstock.model
def inverted(images: list[Image], times: int = 1) -> list[Image]:
    return [ImageOps.invert(image) for image in images for _ in range(times)]


@penstock.model
def vector(text: str) -> Vector:
    return Vector([len(text), 1.0])


@penstock.model
def boxes(image: Image) -> Boxes:
    return Boxes([{"label": "all", "score": 1.0, "box": [0, 0, image.width, image.height]}])


@penstock.model
def views(image: Image) -> Views:
    return Views(image.resize((8, 8)), image.mode)


@penstock.model
def size_of(path: Path) -> int:
    return len(path.read_bytes())


@penstock.model
def named(paths: list[Path], file: File) -> list[str]:
    return [*(f"{path.name} {len(path.read_bytes())}" for path in paths), file.name, Path(file.path).name]


@penstock.model(concurrency=2)
async def named_too(path: Path) -> str:
    return f"{path.name} {len(path.read_bytes())} {Path.cwd() in path.parents}"


@penstock.model
def divide(a: float, b: float) -> float:
    print("dividing", a, b)
    return a / b


@penstock.model
def taxed(price: float, vat: Literal[0, 10, 20] = 20, whole: bool = False) -> float:
    return round(price * (100 + vat) / 100) if whole else price * (100 + vat) / 100


@penstock.model
def refuse(text: str) -> str:
    raise penstock.InvalidInput(f"{text!r} is no good")


@penstock.model
def crash(how: str) -> str:
    if how == "segfault":
        ctypes.string_at(0)
    if how == "double free":
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
        taken = libc.malloc(100_000)
        libc.free(taken)
        libc.free(taken)
    if how == "sys.exit":
        sys.exit("enough")
    if how == "exit":
        os._exit(3)
    if how == "abort":
        os.abort()
    if how == "hang":
        print("hanging")
        time.sleep(1000)
    return "alive"


@penstock.model(max_batch=4)
def fragile(words: list[str]) -> list[int]:
    print("words:", *words)
    if "bad" in words:
        os.abort()
    return [len(word) for word in words]


@penstock.model
def reach(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


@penstock.model
def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        return str(answer.status)


@penstock.model
def gathered(number: int) -> Iterator[Progress | Text]:
    return [Progress(1, 1), *(Text(f"{at} ") for at in range(number))]  # type: ignore[return-value]


@penstock.model(network=["localhost"])
def reach_this_machine(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


@penstock.model(gpu=True)
def on_gpu() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@penstock.model(secrets=["GIVEN_SECRET"])
def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("GIVEN_SECRET", "OTHER_SECRET", "PENSTOCK_SECRET")}


@penstock.model(memory_bytes=400 * 2**20)
def hungry(megabytes: int) -> int:
    held = bytearray(megabytes * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    if megabytes > 400:
        time.sleep(60)
    return len(held)


@penstock.model
def chatty(lines: int) -> int:
    for number in range(lines):
        print(number)
    return lines


@penstock.model
class Broken:
    def load(self) -> None:
        print("no weights here")
        os.abort()

    def predict(self, text: str) -> str:
        return text
