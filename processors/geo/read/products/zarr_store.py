"""Zarr stores (version 2 and 3) in a zip archive, read by zarr-python.

The metadata are checked before zarr sees them: a codec can run code (`pickle`), and only a short list of codecs is
needed. A store in an archive cannot refer to anything outside of it.

Sources: https://zarr-specs.readthedocs.io (v2; v3 core, sharding codec); xarray's conventions for dimensions and fills.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.json_body import shown
from penstock.processors.geo.read.metadata import parse_json
from penstock.processors.geo.read.products.archive import has_member, opened_archive, read_text
from penstock.processors.geo.read.products.variables import (
    MAX_OBJECTS,
    UnreadError,
    Variable,
    Variables,
    library,
    undamaged,
)

_NODES: Final = ("zarr.json", ".zarray", ".zgroup")
#: Codecs of numbers that are read; `vlen-utf8` has the names of bands.
_V2_CODECS: Final = frozenset(
    {"blosc", "zlib", "gzip", "zstd", "lz4", "lzma", "bz2", "shuffle", "delta", "fixedscaleoffset", "vlen-utf8"}
)
_V3_CODECS: Final = frozenset(
    {"bytes", "blosc", "gzip", "zstd", "crc32c", "transpose", "sharding_indexed", "vlen-utf8"}
)
_V2_TYPE: Final = re.compile(r"[<>|](?:[iu][1248]|f[248]|[US]\d{1,4}|M8\[(?:D|h|m|s|ms|us|ns)\])")
_V3_TYPES: Final = re.compile(r"u?int(?:8|16|32|64)|float(?:16|32|64)")
#: Bytes of a chunk or shard as it is stored, at most.
_MAX_STORED_BYTES: Final = 2**30


@dataclass
class _LazyStore:
    """A store that zarr opens when numbers of an array in it are read."""

    path: Path
    store: Any = None

    def array(self, path: str, version: Literal[2, 3]) -> Any:
        import zarr
        from zarr.storage import ZipStore

        if self.store is None:
            self.store = ZipStore(self.path, mode="r")
        return zarr.open_array(self.store, path=path, mode="r", zarr_format=version)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


@dataclass(frozen=True)
class _LazyArray:
    """An array that zarr opens when its numbers are read."""

    store: _LazyStore
    path: str
    version: Literal[2, 3]

    @cached_property
    def opened(self) -> Any:
        return self.store.array(self.path, self.version)

    def __getitem__(self, key: Any) -> Any:
        return self.opened[key]


def is_zarr(archive: zipfile.ZipFile) -> bool:
    """Return True for an archive with the metadata of a Zarr store."""
    return any(name.rpartition("/")[2] in _NODES for name in archive.namelist())


def open_zarr(path: Path) -> Variables:
    """Return the variables of a zipped Zarr store.

    Raises `MediaUnreadable` for a damaged store, `InvalidInput` for several of them, and `MediaTooLarge`.
    """
    with library("Zarr", "zarr"):
        import zarr
    with opened_archive(path) as archive:
        large = next((each for each in archive.infolist() if each.file_size > _MAX_STORED_BYTES), None)
        if large is not None:
            raise MediaTooLarge(f"{shown(large.filename)} in the Zarr store has {large.file_size:,} bytes.")
        nodes = sorted(name for name in archive.namelist() if name.rpartition("/")[2] in _NODES)
        if len(nodes) > MAX_OBJECTS:
            raise MediaTooLarge(f"The Zarr store has {len(nodes):,} arrays and groups; at most {MAX_OBJECTS:,}.")
        root = _root(nodes)
        zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})  # one job, one core
        store = _LazyStore(path)
        each, attributes, unread = dict[str, Variable](), dict[str, Mapping[str, Any]](), list[str]()
        for node in nodes:
            place, _, kind = node.rpartition("/")
            inner = place[len(root) :].strip("/")
            document = parse_json(read_text(archive, node), f"Zarr store's {shown(node)}")
            with undamaged(f"The Zarr store's {shown(node)} cannot be read"):
                own = _attributes(archive, place, kind, document)
                if kind == ".zgroup" or document.get("node_type") == "group":
                    attributes[inner] = own
                    continue
                try:
                    each[inner] = _variable(store, place, inner, kind, document, own)
                except UnreadError as error:
                    unread.append(f"{shown(inner or 'the array')} {error}")
    return Variables(each, attributes, store.close, tuple(unread))


def _root(nodes: Sequence[str]) -> str:
    """Return the folder of the store in the archive. Raises `InvalidInput` for several stores."""
    folders = sorted((node.rpartition("/")[0] for node in nodes), key=lambda folder: (folder.count("/"), len(folder)))
    root = folders[0]
    if any(folder != root and not folder.startswith(f"{root}/" if root else "") for folder in folders):
        raise InvalidInput("The zip archive has several Zarr stores: send one in each job.")
    return root


def _attributes(archive: zipfile.ZipFile, place: str, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "zarr.json":
        found = document.get("attributes", {})
    else:
        name = f"{place}/.zattrs" if place else ".zattrs"
        found = parse_json(read_text(archive, name), "Zarr store's .zattrs") if has_member(archive, name) else {}
    return dict(found) if isinstance(found, dict) else {}


def _variable(
    store: Any, place: str, inner: str, kind: str, document: Mapping[str, Any], attributes: dict[str, Any]
) -> Variable:
    """Return an array as a variable. Raises `UnreadError` for types and codecs that are not read."""
    if kind == "zarr.json":
        dtype, chunks, dimensions = _checked_v3(document)
        fill = _decoded(attributes.get("_FillValue"))
    else:
        dtype, chunks = _checked_v2(document)
        dimensions = attributes.get("_ARRAY_DIMENSIONS")
        # As xarray has it: the fill of chunks that do not exist is that of missing data.
        fill = document.get("fill_value")
    shape = tuple(int(size) for size in document["shape"])
    named = dimensions if isinstance(dimensions, list) and len(dimensions) == len(shape) else [None] * len(shape)
    if len(chunks) != len(shape) or not all(size > 0 for size in chunks) or any(size < 0 for size in shape):
        raise MediaUnreadable(f"The Zarr store's {shown(inner)} is damaged: its chunks do not fit its shape.")
    attributes.pop("_FillValue", None)
    if fill is not None:
        attributes["_FillValue"] = _number(fill)
    names = tuple(name if isinstance(name, str) else "" for name in named)
    return Variable(
        inner, names, shape, dtype, chunks, attributes, _LazyArray(store, place, 3 if kind == "zarr.json" else 2)
    )


def _checked_v2(document: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    compressor, filters = document.get("compressor"), document.get("filters") or []
    codecs = [each.get("id") for each in (*([compressor] if compressor else []), *filters)]
    _check_codecs(codecs, _V2_CODECS)
    dtype = document.get("dtype")
    if dtype == "|O" and "vlen-utf8" in codecs:
        return np.dtype(object), tuple(map(int, document["chunks"]))
    if not isinstance(dtype, str) or not _V2_TYPE.fullmatch(dtype):
        raise UnreadError(f"has the data type {str(dtype)[:40]!r}, which is not read")
    return np.dtype(dtype), tuple(map(int, document["chunks"]))


def _checked_v3(document: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    if document.get("storage_transformers"):
        raise UnreadError("has a storage transformer, which is not read")
    grid = document["chunk_grid"]
    if grid["name"] != "regular":
        raise UnreadError(f"has the chunk grid {str(grid['name'])[:40]!r}, which is not read")
    chunks = grid["configuration"]["chunk_shape"]
    codecs = list(_codecs_v3(document["codecs"]))
    _check_codecs([name for name, _ in codecs], _V3_CODECS)
    inner = [each["chunk_shape"] for name, each in codecs if name == "sharding_indexed"]
    chunks = inner[-1] if inner else chunks
    data_type = document["data_type"]
    if data_type == "string" and "vlen-utf8" in [name for name, _ in codecs]:
        dtype = np.dtype(object)
    elif isinstance(data_type, str) and _V3_TYPES.fullmatch(data_type):
        dtype = np.dtype(data_type)
    else:
        raise UnreadError(f"has the data type {json.dumps(data_type)[:60]}, which is not read")
    return dtype, tuple(map(int, chunks)), document.get("dimension_names")


def _codecs_v3(codecs: Iterable[Mapping[str, Any]], depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield all codecs with their configuration, those of shards too."""
    for codec in codecs:
        own = codec.get("configuration") or {}
        yield str(codec["name"]), own
        if depth < 2:
            for inside in ("codecs", "index_codecs"):
                yield from _codecs_v3(own.get(inside, ()), depth + 1)
        elif "codecs" in own or "index_codecs" in own:
            raise UnreadError("has shards inside shards inside shards, which are not read")


def _check_codecs(names: Sequence[Any], known: frozenset[str]) -> None:
    other = next((name for name in names if name not in known), None)
    if other is not None:
        raise UnreadError(f"is stored with the codec {str(other)[:40]!r}, which is not read")


def _decoded(fill: Any) -> Any:
    """Return a fill of xarray for version 3, which writes real numbers as base64 of eight bytes."""
    if not isinstance(fill, str):
        return fill
    try:
        return struct.unpack("<d", base64.b64decode(fill, validate=True))[0]
    except (binascii.Error, ValueError, struct.error):
        return fill


def _number(fill: Any) -> Any:
    named = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    return named.get(fill, fill) if isinstance(fill, str) else fill
