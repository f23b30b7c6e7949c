"""The decorator of functions that are models, and the types of their annotations.

`from penstock import model, Image, ...` gets them from here.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from PIL.Image import Image as Image

    Table = pa.Table
    Tensor = npt.NDArray[Any]
else:

    class Image:
        """An image, as Pillow has it: upright, RGB. A returned one is written as PNG."""

    class Table:
        """A table, as pyarrow has it (`pandas.DataFrame` and `polars.DataFrame` are annotations too)."""

    class Tensor:
        """A numpy array from a `.npy` file or a safetensors file of one tensor. A returned one is written as `.npy`."""


#: The attribute of a decorated function or class.
MARK = "__penstock__"

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `model`."""

    name: str | None = None
    title: str | None = None
    gpu: bool = False
    max_batch: int = 1
    concurrency: int = 1
    network: bool | tuple[str, ...] = False
    secrets: tuple[str, ...] = ()
    timeout_s: int = 3600
    memory_bytes: int | None = None
    queue: str = "default"
    cache: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name, least in (("max_batch", 1), ("concurrency", 1), ("timeout_s", 1), ("memory_bytes", 1)):
            value = getattr(self, name)
            if name == "memory_bytes" and value is None:
                continue
            if not isinstance(value, int) or value < least:
                raise ValueError(f"`{name}` is a whole number of at least {least}, not {value!r}")


@overload
def model(target: Target, /) -> Target: ...
@overload
def model(
    *, name: str | None = None, title: str | None = None, gpu: bool = False, max_batch: int = 1, concurrency: int = 1,
    network: bool | str | Sequence[str] = False, secrets: str | Sequence[str] = (), timeout_s: int = 3600,
    memory_bytes: int | None = None, queue: str = "default", cache: bool = False,
) -> Callable[[Target], Target]: ...  # fmt: skip


def model(target: Any = None, /, **options: Any) -> Any:
    """Make a function or class a model; the function itself stays as it is, to be called and tested.

    * `name`: the model's name; by default the function's, in lower case.
    * `title`: by default the docstring's first line.
    * `gpu`: it runs on workers with a GPU only, and sees the worker's; others see none.
    * `max_batch`: up to so many items of several jobs go to one call: the first parameter is a list, and so is the
      answer, in the same order.
    * `concurrency`: so many calls of an `async` function at a time.
    * `network`: `True`, or the hosts that it may call. By default it has no network.
    * `secrets`: names of variables of the worker's environment that it gets. It gets no others.
    * `timeout_s`: seconds that a job may run. `memory_bytes`: bytes that its process may take.
    * `queue`: the queue of its jobs. `cache`: equal jobs of a tenant share one result.
    """
    if unknown := [name for name in options if name not in Options.__dataclass_fields__]:
        raise TypeError(f"`model` has no option {unknown[0]!r}: it has {', '.join(Options.__dataclass_fields__)}")
    for several in ("network", "secrets"):
        given = options.get(several, False)
        if not isinstance(given, bool):
            options[several] = (given,) if isinstance(given, str) else tuple(given)
    chosen = Options(**options)

    def mark(marked: Any) -> Any:
        setattr(marked, MARK, chosen)
        return marked

    return mark if target is None else mark(target)


@dataclass(frozen=True, slots=True)
class Field:
    """Bounds and help of a parameter: `Annotated[int, Field(ge=16, le=1024, description="Side in pixels")]`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Makes an array an image: `Annotated[np.ndarray, Pixels()]` is uint8 (height, width, 3), RGB."""


@dataclass(slots=True)
class Audio:
    """A recording, mixed into one channel. `Audio(rate=16000)` as an annotation resamples to 16 kHz.

    A returned one is written as WAV.
    """

    #: float32 (samples,), from -1 to 1.
    samples: npt.NDArray[np.float32] | Any = None
    #: Samples in a second.
    rate: int = 16_000


@dataclass(slots=True)
class Video:
    """A video's pictures. `Video(fps=2)` as an annotation takes two a second. A returned one is written as MP4."""

    #: uint8 (pictures, height, width, 3), RGB.
    frames: npt.NDArray[np.uint8] | Any = None
    #: Pictures in a second.
    fps: float = 1.0


@dataclass(slots=True)
class Page:
    """A page of a document."""

    #: Pillow's image, RGB; None in an answer of text alone.
    image: Image | Any = None
    text: str = ""


@dataclass(slots=True)
class Document:
    """The pages of a PDF, or an image as one page. `Document(dpi=150)` as an annotation has so many pixels in an inch.

    A returned one is written as PDF of its images, and its texts stand in the answer.
    """

    pages: list[Page] = field(default_factory=list)
    #: Pixels in an inch of the pages' images.
    dpi: int = 150


@dataclass(slots=True)
class File:
    """A file, untouched. A returned one becomes a file of the result, with its name; so does a `pathlib.Path`."""

    path: Path | str
    media_type: str = "application/octet-stream"
    #: The file's own name; empty for that of `path`.
    name: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Yielded by a function: `done` of `total` is done."""

    done: float
    total: float


class InvalidInput(Exception):
    """Raised by a function for input that it cannot take: the job fails with this sentence, and is not tried again."""


class Text(str):
    """Yielded by a function: the next part of the answer's text."""

    __slots__ = ()


class Labels(dict[str, float]):
    """Labels with scores; people see them best first."""


class Boxes(list[dict[str, Any]]):
    """Objects in an image: `{"label": ..., "score": ..., "box": [left, top, right, bottom]}`, in pixels."""


class Vector(list[float]):
    """An embedding."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A type of one's own: how a file becomes a value of it, and how a value becomes a file."""

    decode: Callable[[Path], Any]
    encode: Callable[[Any, Path], object]
    suffix: str = ".bin"
    media_type: str = "application/octet-stream"


#: Types of a file's own, with their codecs.
CODECS: dict[type, Codec] = {}


def codec(kind: type, *, suffix: str = ".bin", media_type: str = "application/octet-stream") -> Callable[[type], type]:
    """Make a class with the methods `decode(self, path)` and `encode(self, value, path)` the codec of a type.

    Both run in the model's process. Static methods are as good. Raises `TypeError` if one is missing.
    """

    def register(functions: Any) -> Any:
        made = functions()  # so that its methods may be static, or not
        for name, given in (("decode", ("path",)), ("encode", ("value", "path"))):
            try:
                inspect.signature(getattr(made, name)).bind(*given)
            except (AttributeError, TypeError):
                said = ", ".join(("self", *given))
                raise TypeError(f"the codec {functions.__name__} needs a method `{name}({said})`") from None
        CODECS[kind] = Codec(made.decode, made.encode, suffix, media_type)
        return functions

    return register


#: Path of the `source` of the record that names the function; empty without a record. Set by the model's process.
SOURCE = ""


def weights(name: str = "", *, sha256: str | None = None) -> Path:
    """Return the path of a file that lies beside the caller's file; raise `FileNotFoundError`.

    Where a record of `models.toml` names the function, the file lies in the record's `source`; without a name this is
    the path of the source itself. With `sha256`, raise `ValueError` for a file with another digest.
    """
    if not name and not SOURCE:
        raise FileNotFoundError("name a file, or serve the function by a record of models.toml with a `source`")
    folder = Path(SOURCE or Path(sys._getframe(1).f_code.co_filename).parent)
    path = folder / name
    if not path.exists():
        where = f"in {folder}" if SOURCE else f"beside the model's file: {path}"
        raise FileNotFoundError(f"there is no {name!r} {where}")
    if sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256.lower():
            raise ValueError(f"{name!r} is not the file that was pinned: its sha256 is {found}")
    return path
