"""Classic NetCDF files (CDF-1 and CDF-2): read by SciPy."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import MediaTooLarge
from penstock.json_body import shown
from penstock.processors.decoding import decoding
from penstock.processors.geo.read.products.variables import MAX_OBJECTS, Variable, Variables, library, undamaged

#: Attributes of CF that begin like private names, which `vars` of SciPy's objects also has.
_ATTRIBUTES = ("_FillValue", "_Unsigned")
_OWN = ("data", "dimensions", "maskandscale", "fp", "filename", "mode", "use_mmap", "version_byte", "variables")


def open_netcdf3(path: Path) -> Variables:
    """Return the variables of a classic NetCDF file. Raises `MediaUnreadable`."""
    with library("classic NetCDF", "netcdf"):
        from scipy.io import netcdf_file
    with undamaged("The scene cannot be opened"), decoding(size_bytes=path.stat().st_size):
        try:
            # The map outlives its file. SciPy's own `close` can be hidden by an attribute of the scene.
            with path.open("rb") as stream:
                file = netcdf_file(stream, "r", mmap=True, maskandscale=False)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MediaTooLarge(
                f"The classic NetCDF file has {path.stat().st_size:,} bytes, more than the worker maps into memory. "
                "`nccopy -k nc4 -d 1` converts it to NetCDF 4, which is read by windows."
            ) from error
        if len(file.variables) > MAX_OBJECTS:
            raise MediaTooLarge(f"The file has {len(file.variables):,} variables; at most {MAX_OBJECTS:,} are read.")
        each, unread = dict[str, Variable](), list[str]()
        for name, variable in file.variables.items():
            # SciPy keeps a variable's attributes with its own: `dimensions` would hide the names of the dimensions.
            if isinstance(variable.dimensions, tuple) and isinstance(variable.data, np.ndarray):
                each[name] = _variable(name, variable)
            else:
                unread.append(f"{shown(name)} has an attribute `dimensions` or `data`, which is not read: rename it")
        return Variables(each, {"": _attributes(file)}, unread=tuple(unread))


def _variable(name: str, variable: Any) -> Variable:
    shape = tuple(variable.shape)
    chunks = (1,) * max(0, len(shape) - 1) + shape[-1:]
    dtype = np.dtype(variable.data.dtype)
    return Variable(name, tuple(variable.dimensions), shape, dtype, chunks, _attributes(variable), variable.data)


def _attributes(item: Any) -> Mapping[str, Any]:
    found = {name: value for name, value in vars(item).items() if not name.startswith("_") and name not in _OWN}
    return found | {name: value for name in _ATTRIBUTES if (value := getattr(item, name, None)) is not None}
