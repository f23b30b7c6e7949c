"""Tensor files: what they say they hold is looked at before any of it is read. Nothing in them is ever unpickled."""

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

#: Of an .npy file's header: a dtype and a shape are no longer.
_NPY_HEADER_BYTES = 10_000
#: Of a .safetensors file's header, which has 8 bytes before it that say its length.
_SAFETENSORS_HEADER_BYTES = 1_000_000
_LENGTH_BYTES = 8

_NPY_MAGIC = b"\x93NUMPY"
#: How other files begin that people send for tensors, and what they are.
_OTHERS = {b"PK\x03\x04": "a ZIP archive, such as .npz or .pt", b"\x80": "a pickle, such as .pkl or an old .pt"}
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A file whose header was read."""

    #: By name; an .npy file has one without a name, "".
    layouts: Mapping[str, Layout]
    #: Reads the tensors, in this machine's byte order; bfloat16, which numpy lacks, as float32 of the same values.
    load: Callable[[], Arrays]


def open_tensors(path: Path) -> TensorFile:
    """Return what an .npy or .safetensors file holds, whatever it is called; raise `MediaUnreadable` for others."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(_NPY_MAGIC) + 6 + _NPY_HEADER_BYTES)
    if head.startswith(_NPY_MAGIC):
        return _npy(path, head, size_bytes)
    if head[_LENGTH_BYTES:].startswith(b"{"):
        return _safetensors(path, head, size_bytes)
    what = next((what for magic, what in _OTHERS.items() if head.startswith(magic)), "something else")
    raise MediaUnreadable(f"The file is {what}: give .npy or .safetensors, in which there is no code.")


def refuse_nan(name: str, array: npt.NDArray[Any]) -> None:
    """Raise `InvalidInput` with the first place where a tensor has NaN or infinity."""
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
    except Exception as error:  # it is Python source: tokenizer, parser and numpy have errors of their own
        raise MediaUnreadable("The .npy file's header is damaged, or longer than any that says a dtype.") from error
    if dtype.hasobject or dtype.kind not in "biufc":
        raise InvalidInput(f"The .npy file holds {dtype}: only numbers and booleans are taken, no pickled objects.")
    start, promised = stream.tell(), dtype.itemsize * prod(shape)
    if size_bytes - start != promised:
        raise MediaUnreadable(
            f"The .npy file promises {promised} bytes of {dtype} {shape} and has {size_bytes - start}."
        )
    native = dtype.newbyteorder("=")

    def load() -> Arrays:
        flat = np.fromfile(path, dtype, offset=start).astype(native, copy=False)
        return {"": np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))}

    return TensorFile({"": (native.name, shape)}, load)


def _safetensors(path: Path, head: bytes, size_bytes: int) -> TensorFile:
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > min(_SAFETENSORS_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
        raise MediaUnreadable(
            "The .safetensors file is damaged: its header is longer than the file, or than any of use."
        )

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
    """Return a file's tensors of bfloat16 as float32, of which they are the upper halves."""
    return {
        name: (np.frombuffer(part["data"], "<u2").astype("<u4") << 16).view("<f4").reshape(part["shape"])
        for name, part in deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        if part["dtype"] == "BF16"
    }
