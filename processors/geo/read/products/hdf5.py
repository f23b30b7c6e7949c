"""HDF5 files, and with them NetCDF 4: read by h5py, never beyond the file.

A link or a dataset of HDF5 can name other files, which the library would open. Such a file is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InvalidInput, MediaTooLarge
from penstock.json_body import shown
from penstock.processors.decoding import decoding
from penstock.processors.geo.read.products.variables import (
    MAX_OBJECTS,
    Variable,
    Variables,
    as_text,
    library,
    undamaged,
)

#: Prefix of netCDF-4 for a variable that has the name of a dimension and is not its coordinate.
_NOT_A_COORDINATE = "_nc4_non_coord_"
#: Name of a dimension of netCDF-4 that has no coordinate.
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
#: Groups inside each other, at most.
_MAX_DEPTH = 32
#: Bytes of decoded chunks that h5py keeps for a variable.
_CACHE_BYTES = 16 * 2**20


def open_hdf5(path: Path) -> Variables:
    """Return the variables of an HDF5 file. Raises `MediaUnreadable`, or `InvalidInput` for one that names others."""
    # Filters that the library does not have would be loaded from shared libraries.
    os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")
    with library("NetCDF and HDF5", "netcdf"):
        import h5py
    with undamaged("The scene cannot be opened"), decoding(size_bytes=path.stat().st_size):
        file = h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_BYTES)
    try:
        with decoding(size_bytes=path.stat().st_size):
            return _variables(h5py, file)
    except BaseException:
        file.close()
        raise


def _variables(h5py: Any, file: Any) -> Variables:
    each, attributes = dict[str, Variable](), {"": _attributes(file)}
    with undamaged("The scene's header cannot be read"):
        for name, item in _walk(h5py, file, "", 0, [0]):
            if isinstance(item, h5py.Group):
                attributes[name] = _attributes(item)
            elif (found := _variable(h5py, name, item)) is not None:
                each[found.path] = found
    return Variables(each, attributes, file.close)


def _walk(h5py: Any, group: Any, path: str, depth: int, count: list[int]) -> Iterator[tuple[str, Any]]:
    """Yield the groups and datasets of a file by hard links, which have no loops for files of sane depth."""
    if depth > _MAX_DEPTH:
        raise _too_many()
    for name in group:
        count[0] += 1
        if count[0] > MAX_OBJECTS:
            raise _too_many()
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise _outside(f"the link {shown(name)!r}")
        if isinstance(link, h5py.SoftLink):  # another name of something that is found by its own
            continue
        item, below = group[name], f"{path}/{name}" if path else name
        if isinstance(item, h5py.Group):
            yield below, item
            yield from _walk(h5py, item, below, depth + 1, count)
        elif isinstance(item, h5py.Dataset):
            if item.is_virtual:
                raise _outside(f"the virtual dataset {shown(name)!r}")
            if item.external:
                raise _outside(f"the dataset {shown(name)!r}")
            yield below, item


def _too_many() -> MediaTooLarge:
    return MediaTooLarge(f"The file has more than {MAX_OBJECTS:,} variables and groups, or groups {_MAX_DEPTH} deep.")


def _outside(what: str) -> InvalidInput:
    return InvalidInput(
        f"The HDF5 file refers to other files, which are not read: {what}. Write one file with all data, e.g. with "
        "`h5repack`."
    )


def _variable(h5py: Any, path: str, dataset: Any) -> Variable | None:
    """Return a dataset of numbers or texts; None for any other, which is no part of a scene."""
    kind = None if dataset.shape is None else dataset.dtype.kind
    if kind not in ("i", "u", "f", "S") and not (kind == "O" and h5py.check_string_dtype(dataset.dtype)):
        return None
    if h5py.check_enum_dtype(dataset.dtype) or as_text(dataset.attrs.get("NAME")).startswith(_NO_VARIABLE):
        return None
    folder, _, name = path.rpartition("/")
    name = name.removeprefix(_NOT_A_COORDINATE)
    chunks = dataset.chunks or (1,) * max(0, len(dataset.shape) - 1) + dataset.shape[-1:]
    return Variable(
        f"{folder}/{name}" if folder else name, _dimensions(dataset), dataset.shape, np.dtype(dataset.dtype), chunks,
        _attributes(dataset), dataset,
    )  # fmt: skip


def _dimensions(dataset: Any) -> tuple[str, ...]:
    """Return the names of the dimension scales; a scale is its own dimension."""
    if dataset.is_scale and len(dataset.shape) == 1:
        return (dataset.name.rpartition("/")[2],)
    return tuple(scales[0].name.rpartition("/")[2] if len(scales) else "" for scales in dataset.dims)


def _attributes(item: Any) -> Mapping[str, Any]:
    """Return the attributes that can be read: references and damaged ones are left out."""
    found = {}
    for name in item.attrs:
        try:
            value = item.attrs[name]
        except Exception:  # noqa: S112  (h5py raises anything for a damaged attribute, which nothing may need)
            continue
        if isinstance(value, str | bytes | int | float | np.ndarray | np.generic):
            found[name] = value
    return found
