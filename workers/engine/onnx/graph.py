"""Checks of an ONNX file before it is run: its format, and the other files that it reads.

Weights may lie in other files, which the graph names by relative paths. Paths that lead out of the model's directory,
also over links, are rejected, and so are files without a hash if the model is pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.sources import verify
from penstock.workers.engine.weights import locate


def find_file(model: Model, name: str) -> Path:
    """Return the model's ONNX file after checking its hashes: the source itself, or `name` in a directory."""
    source = locate(model).absolute()
    verify(model.model_copy(update={"source": str(source)}))
    path = source / name if source.is_dir() else source
    if not path.is_file():
        raise ModelUnavailable(
            f"model {model.name!r} lacks the file {name}: give its name as `file` in the table options.onnx"
        )
    if source.is_dir() and model.files and name not in model.files:
        raise ModelUnavailable(f"model {model.name!r} has hashes in `files`, and none of {name}")
    return path


def check_graph(model: Model, path: Path) -> tuple[int, bool]:
    """Return the bytes of the file's weights, and True if some lie in other files; raise `ModelUnavailable`."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (DecodeError, OSError, ValueError) as error:
        raise ModelUnavailable(f"the file {path.name} of model {model.name!r} is not an ONNX file") from error
    if not graph.node and not graph.output:
        raise ModelUnavailable(f"the file {path.name} of model {model.name!r} is not an ONNX file, or an empty one")
    outside = {_external(model, path, place) for place in _places(_tensors(graph))}
    return sum(file.stat().st_size for file in {path, *outside}), bool(outside)


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield every tensor of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner) if inner.ByteSize() else ()


def _places(tensors: Iterable[Any]) -> set[str]:
    """Return the names of the files with external tensors."""
    return {
        entry.value
        for tensor in tensors
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _external(model: Model, path: Path, place: str) -> Path:
    """Return a file of weights that the graph names; raise `ModelUnavailable` outside of the model's directory."""
    # The second root is for caches, as the hub's, that keep all files in one folder and link to them.
    roots = path.parent.resolve(), path.resolve().parent
    try:
        file = (roots[0] / place).resolve()
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"the file {path.name} of model {model.name!r} names an impossible file") from error
    inside = not Path(place).is_absolute() and ".." not in Path(place).parts and any(map(file.is_relative_to, roots))
    if not inside or not locate(model).is_dir():
        where = "has weights outside of its directory" if locate(model).is_dir() else "has weights in other files"
        hint = "" if locate(model).is_dir() else ": let `source` name the directory of all of them"
        raise ModelUnavailable(f"the file {path.name} of model {model.name!r} {where} ({place}){hint}")
    if not file.is_file():
        raise ModelUnavailable(f"model {model.name!r} lacks the file {place}, where weights of {path.name} lie")
    name = (path.parent / place).relative_to(locate(model).absolute()).as_posix()
    if model.files and name not in model.files:
        raise ModelUnavailable(f"model {model.name!r} has hashes in `files`, and none of {name}")
    return file
