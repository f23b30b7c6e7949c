"""Values of a call in the model's process: from what IO processes decoded to Python's types, and back."""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import inspect
import math
import tempfile
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from penstock.functions import declaration as d
from penstock.functions.kinds import Kind, members, split
from penstock.functions.scenes import output_of
from penstock.functions.signature import said

#: The folder of the call whose values are taken.
FOLDER: contextvars.ContextVar[str | None] = contextvars.ContextVar("folder", default=None)


class WrongAnswer(Exception):
    """An answer that is not what the function's annotation says."""


#: Packages that values of a codec need in the model's environment, by the names of their modules.
_PACKAGES = {
    "image": {"numpy": "numpy", "PIL": "pillow"}, "audio": {"numpy": "numpy"}, "video": {"numpy": "numpy"},
    "tensor": {"numpy": "numpy"}, "scene": {"numpy": "numpy"},
    "document": {"numpy": "numpy", "PIL": "pillow"}, "table": {"pyarrow": "pyarrow"},
}  # fmt: skip


def missing_packages(kind: Kind) -> list[str]:
    """Return the packages that values of a kind need and this environment lacks."""
    wanted = {name: package for name, package in _PACKAGES.get(kind.codec, {}).items() if find_spec(name) is None}
    if kind.options.get("as") == "numpy":
        wanted.pop("PIL", None)
    return list(wanted.values())


def take(kind: Kind, value: Any) -> Any:
    """Return the Python value of what an IO process decoded."""
    if value is None and kind.codec != "json":
        return None
    if kind.is_list:
        return [take(dataclasses.replace(kind, is_list=False), one) for one in value]
    return _TAKE[kind.codec](kind, value) if kind.codec in _TAKE else build(kind.annotation, value)


def build(annotation: Any, value: Any) -> Any:
    """Make the value of an annotation from JSON that fits its schema."""
    base, _ = split(annotation)
    origin, inner = typing.get_origin(base), typing.get_args(base)
    if found := members(base):
        return _build_member(found, value)
    if base is float and isinstance(value, int):
        return float(value)
    if origin in (list, Sequence):
        return [build(inner[0], one) for one in value]
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return tuple(build(kind, one) for kind, one in zip(kinds, value, strict=True))
    if origin in (dict, Mapping):
        return {name: build(inner[1], one) for name, one in value.items()}
    if not inspect.isclass(base):
        return value
    if issubclass(base, enum.Enum):
        return base(value)
    if hasattr(base, "model_validate"):
        return base.model_validate(value)
    if dataclasses.is_dataclass(base):
        hints = typing.get_type_hints(base, include_extras=True)
        return base(**{name: build(hints[name], one) for name, one in value.items()})
    return value


def _build_member(union: Sequence[Any], value: Any) -> Any:
    """Make a value of the first member of a union that takes it."""
    if value is None and type(None) in union:
        return None
    for member in union:
        base, _ = split(member)
        kind = typing.get_origin(base) or base
        try:
            made = build(member, value)
        except (TypeError, ValueError, AttributeError):
            continue
        if not inspect.isclass(kind) or isinstance(made, kind):
            return made
    return value


def give(value: Any, kind: Kind | None = None) -> dict[str, Any]:
    """Return what an IO process encodes: the codec, and its value of JSON, arrays and bytes.

    Without a kind, the codec is that of the value's type. Raises `WrongAnswer`.
    """
    codec = "" if kind is None else kind.codec
    if kind is not None and codec == "json" and kind.annotation is not None and not fits(kind.annotation, value):
        raise WrongAnswer(f"it answered {type(value).__name__}, and its annotation says {said(kind.annotation)}")
    codec = codec if codec and codec != "json" else _codec_of(value)
    if codec == "own":
        return _own(value)
    if codec not in _GIVE:
        return {"codec": "json", "value": plain(value)}
    try:
        return {"codec": codec, "value": _GIVE[codec](value)}
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise WrongAnswer(f"it answered {type(value).__name__}, and its annotation says {codec}: {error}") from error


def give_tile(kind: Kind, answer: Any, tile: Any) -> dict[str, Any]:
    """Return the arrays of the answer to a scene's tile; raise `WrongAnswer`."""
    try:
        return output_of(kind.codec, kind.options, answer, tile)
    except (TypeError, ValueError, KeyError) as error:
        at = " x ".join(map(str, tile.shape))
        raise WrongAnswer(f"its answer to a tile of {at} cannot be used: {error}") from error


def fits(annotation: Any, value: Any) -> bool:
    """Return False for an answer that is surely not what its annotation says."""
    base, _ = split(annotation)
    if union := members(base):
        return any(fits(member, value) for member in union)
    if typing.get_origin(base) is Literal:
        return value in typing.get_args(base)
    if base in (None, type(None)):
        return value is None
    if base is float:
        return isinstance(value, int | float) or hasattr(value, "dtype")
    if base in (int, bool):
        return isinstance(value, base) or hasattr(value, "dtype")
    kind = typing.get_origin(base) or base
    if kind in (str, dict):
        return isinstance(value, kind) or (
            kind is dict and not isinstance(value, str | int | float | list | type(None))
        )
    return value is not None or not isinstance(kind, type)


def plain(value: Any) -> Any:
    """Return a value as JSON; raise `WrongAnswer` for one that has no such form."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongAnswer("it answered NaN or an infinite number, which JSON does not have")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # numpy, torch
        return plain(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [plain(one) for one in value]
    raise WrongAnswer(f"it answered {type(value).__name__}, which is neither JSON nor a type of penstock")


def _codec_of(value: Any) -> str:
    if type(value) in d.CODECS:
        return "own"
    for kind, codec in ((d.Audio, "audio"), (d.Video, "video"), (d.Document, "document"), (d.File, "file"),
                        (Path, "file"), (d.Labels, "labels"), (d.Boxes, "boxes"), (d.Vector, "vector")):  # fmt: skip
        if isinstance(value, kind):
            return codec
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    if package == "PIL":
        return "image"
    if (package, name) in (("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")):
        return "table"
    return "tensor" if (package, name) == ("numpy", "ndarray") else "json"


# In


def _image(kind: Kind, pixels: Any) -> Any:
    if kind.options.get("as") == "numpy":
        return pixels
    from PIL import Image

    return Image.fromarray(pixels)


def _audio(_kind: Kind, value: Mapping[str, Any]) -> d.Audio:
    return d.Audio(value["samples"], value["rate"])


def _video(_kind: Kind, value: Mapping[str, Any]) -> d.Video:
    return d.Video(value["frames"], value["fps"])


def _document(kind: Kind, value: Mapping[str, Any]) -> d.Document:
    return d.Document([d.Page(_image(kind, one["image"]), one["text"]) for one in value["pages"]], value["dpi"])


def _table(kind: Kind, data: bytes) -> Any:
    import pyarrow as pa

    table = pa.ipc.open_stream(data).read_all()
    if kind.options["as"] == "pandas":
        return table.to_pandas()
    if kind.options["as"] == "polars":
        import polars  # type: ignore[import-not-found,unused-ignore]  # of the model's environment

        return polars.from_arrow(table)
    return table


def _file(kind: Kind, value: Mapping[str, Any]) -> Any:
    path = _named(value)
    return d.File(path, value.get("media_type", ""), path.name) if kind.options.get("as") == "File" else path


def _own_in(kind: Kind, value: Mapping[str, Any]) -> Any:
    return d.CODECS[kind.annotation].decode(_named(value))


def _named(value: Mapping[str, Any]) -> Path:
    """Return the path of a file under its own name: a link in the folder of the call, if the file has another."""
    path, name = Path(value["path"]), Path(str(value.get("name", ""))).name
    if not name or path.name == name:
        return path
    link = Path(tempfile.mkdtemp(prefix="file-", dir=FOLDER.get())) / name
    link.symlink_to(path)
    return link


_TAKE: Mapping[str, Any] = {
    "image": _image, "audio": _audio, "video": _video, "document": _document, "table": _table,
    "tensor": lambda _kind, array: array, "scene": lambda _kind, array: array, "file": _file, "own": _own_in,
}  # fmt: skip


# Out


def _pixels(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "convert"):  # Pillow
        mode = value.mode if value.mode in ("L", "RGB", "RGBA") else "RGBA" if "A" in value.mode else "RGB"
        value = np.asarray(value.convert(mode))
    array = np.asarray(value)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ValueError(f"an image is uint8 (height, width[, 3 or 4]), not {array.dtype} {array.shape}")
    return array


def _samples(value: Any) -> dict[str, Any]:
    import numpy as np

    return {"samples": np.asarray(value.samples, np.float32), "rate": int(value.rate)}


def _frames(value: Any) -> dict[str, Any]:
    import numpy as np

    frames = np.asarray(value.frames)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise ValueError(f"a video's frames are uint8 (pictures, height, width, 3), not {frames.dtype} {frames.shape}")
    return {"frames": frames, "fps": float(value.fps)}


def _pages(value: Any) -> dict[str, Any]:
    pages = [{"image": None if one.image is None else _pixels(one.image), "text": str(one.text)} for one in value.pages]
    if len({one["image"] is None for one in pages}) > 1:
        raise ValueError("all pages of a document have images, or none has")
    return {"pages": pages, "dpi": int(value.dpi)}


def _arrow(value: Any) -> bytes:
    import pyarrow as pa

    name = type(value).__module__.partition(".")[0]
    if name == "pandas":
        value = pa.Table.from_pandas(value, preserve_index=False)
    elif name == "polars":
        value = value.to_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    return bytes(sink.getvalue())


def _tensor(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu().numpy()
    return np.atleast_1d(np.asarray(value))


def _written(value: Any) -> dict[str, Any]:
    path = Path(value.path if isinstance(value, d.File) else value)
    media_type = value.media_type if isinstance(value, d.File) else "application/octet-stream"
    name = (value.name if isinstance(value, d.File) else "") or path.name
    return {"name": name, "media_type": media_type, "bytes": path.read_bytes()}


def _own(value: Any) -> dict[str, Any]:
    import tempfile

    codec = d.CODECS[type(value)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{type(value).__name__.lower()}{codec.suffix}"
        codec.encode(value, path)
        return {"codec": "file", "value": {**_written(path), "media_type": codec.media_type}}


def _labels(value: Any) -> list[dict[str, Any]]:
    rows = value.items() if isinstance(value, Mapping) else ((one["label"], one["score"]) for one in value)
    found = [{"label": str(label), "score": plain(float(score))} for label, score in rows]
    return sorted(found, key=lambda row: -row["score"])


def _boxes(value: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {**plain(one), "label": str(one["label"]), "score": float(one["score"]), "box": [float(x) for x in one["box"]]}
        for one in value
    ]


def _vector(value: Any) -> list[float]:
    return [float(one) for one in (value.tolist() if hasattr(value, "tolist") else value)]


_GIVE: Mapping[str, Any] = {
    "image": _pixels, "audio": _samples, "video": _frames, "document": _pages, "table": _arrow,
    "tensor": _tensor, "file": _written,
    "labels": _labels, "boxes": _boxes, "vector": _vector,
}  # fmt: skip
