"""Kinds: the codec that each annotation means."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from penstock.functions import declaration as d
from penstock.functions import scenes

#: Codecs of types that other packages bring, by module and name.
_FOREIGN: Mapping[tuple[str, str], str] = {
    ("PIL", "Image"): "image", ("pyarrow", "Table"): "table", ("pandas", "DataFrame"): "table",
    ("polars", "DataFrame"): "table", ("numpy", "ndarray"): "tensor",
}  # fmt: skip
_OURS: Mapping[type, str] = {
    d.Image: "image", d.Audio: "audio", d.Video: "video", d.Table: "table", d.Document: "document", d.Tensor: "tensor",
    d.File: "file", Path: "file", d.Labels: "labels", d.Boxes: "boxes", d.Vector: "vector",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """The meaning of one annotation: the codec of a value, a list of them, or JSON."""

    codec: str = "json"
    is_list: bool = False
    #: Options of the codec: a sample rate, pictures a second, the type of an array or table.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The annotation of JSON, by which values are made.
    annotation: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return the kind as the service reads it."""
        return {"codec": self.codec, "list": self.is_list, "options": dict(self.options)}


def split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an annotation without `Annotated`, and what `Annotated` adds."""
    if typing.get_origin(annotation) is typing.Annotated:
        base, *extra = typing.get_args(annotation)
        return base, tuple(extra)
    return annotation, ()


def members(base: Any) -> tuple[Any, ...]:
    """Return the members of a union; none of anything else."""
    return typing.get_args(base) if typing.get_origin(base) in (Union, types.UnionType) else ()


def codec_of(base: Any, extra: Sequence[Any]) -> Kind | None:
    """Return the kind of an annotation that is a file of its own, or of a scene; None for JSON.

    Raises `ValueError` for words on scenes at another type.
    """
    scenes.refuse_bare(base)
    if isinstance(base, d.Audio):
        return Kind("audio", options={"rate": base.rate})
    if isinstance(base, d.Video):
        return Kind("video", options={"fps": base.fps})
    if isinstance(base, d.Document):
        return Kind("document", options={"dpi": base.dpi})
    if isinstance(base, types.ModuleType) and base.__name__ == "PIL.Image":
        return Kind("image")
    base = base if inspect.isclass(base) else typing.get_origin(base)
    if not inspect.isclass(base):
        return None
    of_scene = scenes.codec_of(_package(base) == ("numpy", "ndarray"), base is d.Boxes, extra)
    return Kind(of_scene[0], options=of_scene[1]) if of_scene else _codec_of_class(base, extra)


def _package(kind: type) -> tuple[str, str]:
    return kind.__module__.partition(".")[0], kind.__name__


def _codec_of_class(base: type, extra: Sequence[Any]) -> Kind | None:
    if base in d.CODECS:
        return Kind("own", options={"type": base.__name__}, annotation=base)
    package, name = _package(base)
    found = _OURS.get(base) or _FOREIGN.get((package, name))
    if found is None:
        return None
    if found == "tensor" and any(isinstance(one, d.Pixels) or one is d.Pixels for one in extra):
        return Kind("image", options={"as": "numpy"})
    if found == "table":
        return Kind("table", options={"as": package if package in ("pandas", "polars") else "pyarrow"})
    if found == "file":
        return Kind("file", options={"as": "File" if base is d.File else "Path"})
    return Kind(found)
