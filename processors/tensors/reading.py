"""Tensor file reader: checks the header of .npy and .safetensors files before reading data; never unpickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize, safe_open

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.tensors.description import Layout

Arrays = dict[str, npt.NDArray[Any]]

#: Maximum bytes of an .npy file's header, which holds a dtype and a shape.
_NPY_HEADER_BYTES = 10_000
#: Maximum bytes of a .safetensors file's header. The 8 bytes before the header hold its length.
_SAFETENSORS_HEADER_BYTES = 1_000_000
_LENGTH_BYTES = 8

_NPY_MAGIC = b"\x93NUMPY"
#: First bytes of other formats that users send by mistake, with their names.
_OTHERS = {b"PK\x03\x04": "a ZIP archive, such as .npz or .pt", b"\x80": "a pickle, such as .pkl or an old .pt"}
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A tensor file, with the contents of its header."""

    #: Layouts of the tensors by name; the tensor of an .npy file has the name "".
    layouts: Mapping[str, Layout]
    #: Reads the tensors in native byte order; bfloat16, which numpy lacks, becomes float32 with the same values.
    load: Callable[[], Arrays]


def open_tensors(path: Path) -> TensorFile:
    """Read the header of an .npy or .safetensors file with any suffix; raise `MediaUnreadable` for other formats."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(_NPY_MAGIC) + 6 + _NPY_HEADER_BYTES)
    if head.startswith(_NPY_MAGIC):
        return _npy(path, head, size_bytes)
    if head[_LENGTH_BYTES:].startswith(b"{"):
        return _safetensors(path, head, size_bytes)
    what = next((what for magic, what in _OTHERS.items() if head.startswith(magic)), "something else")
    raise MediaUnreadable(f"The file is {what}: use .npy or .safetensors, which cannot contain code.")


def refuse_nan(name: str, array: npt.NDArray[Any]) -> None:
    """Raise `InvalidInput` with the index of a tensor's first NaN or infinity."""
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        first = tuple(int(at) for at in np.argwhere(~finite)[0])
        count = int((~finite).sum())
        raise InvalidInput(f"`{name}` has {count} numbers that are NaN or infinite, the first at {first}.")


def _npy(path: Path, head: bytes, size_bytes: int) -> TensorFile:
    stream = BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream, max_header_size=_NPY_HEADER_BYTES)
    except Exception as error:  # the header is Python source: its tokenizer, its parser and numpy raise various errors
        raise MediaUnreadable("The .npy file's header is damaged or too long.") from error
    if any(type(length) is not int for length in shape):  # numpy lets booleans pass
        raise MediaUnreadable("The .npy file's header declares a shape that is not one of whole numbers.")
    if dtype.hasobject or dtype.kind not in "biufc":
        raise InvalidInput(f"The .npy file holds {dtype}: only numbers and booleans are allowed, no pickled objects.")
    start, declared = stream.tell(), dtype.itemsize * prod(shape)
    if size_bytes - start != declared:
        raise MediaUnreadable(
            f"The .npy file declares {declared} bytes of {dtype} {shape}, but has {size_bytes - start}."
        )
    native = dtype.newbyteorder("=")

    def load() -> Arrays:
        flat = np.fromfile(path, dtype, offset=start).astype(native, copy=False)
        return {"": np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))}

    return TensorFile({"": (native.name, shape)}, load)


def _safetensors(path: Path, head: bytes, size_bytes: int) -> TensorFile:
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > min(_SAFETENSORS_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
        raise MediaUnreadable("The .safetensors file is damaged: its header is longer than the file or too long.")

    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            layouts = {
                name: (_DTYPES.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except SafetensorError as error:
        raise MediaUnreadable("The .safetensors file is damaged: its header and its size do not agree.") from error

    def load() -> Arrays:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name, (dtype, _) in layouts.items() if dtype != "bfloat16"}
        return arrays if len(arrays) == len(layouts) else arrays | _bfloat16(path)

    return TensorFile(layouts, load)


def _bfloat16(path: Path) -> Arrays:
    """Return a file's bfloat16 tensors as float32; bfloat16 is the upper half of float32."""
    return {
        name: (np.frombuffer(part["data"], "<u2").astype("<u4") << 16).view("<f4").reshape(part["shape"])
        for name, part in deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        if part["dtype"] == "BF16"
    }
