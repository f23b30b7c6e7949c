"""Digests of structured values: different values have different digests.

Every value is encoded as a frame: a letter for its type, eight bytes for its length, its contents. So no two values
have the same bytes: [1, 2] is not [[1], 2], ("ab", "c") is not ("a", "bc"), and True, 1 and 1.0 are three values. The
length of a list or an object is the number of its elements, whose frames follow. Pure, and without numpy: arrays are
recognised by their attributes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_HEAD = struct.Struct(">cQ")


def digest(*values: Any) -> bytes:
    """Return the SHA-256 of a sequence of values, 32 bytes.

    A value is None, a boolean, a number, text, bytes, a numpy array or scalar (dtype, shape and elements), a list or
    tuple (both encode alike) or a mapping with text keys, in any order. Raises `TypeError` for other values.
    """
    found = hashlib.sha256()
    for piece in frames(values):
        found.update(piece)
    return found.digest()


def frames(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a value's frame in parts."""
    match value:
        case None:
            yield _head(b"n", 0)
        case bool():
            yield from _frame(b"t" if value else b"f", b"")
        case int():
            yield from _frame(b"i", str(value).encode())
        case float():
            yield from _frame(b"d", struct.pack(">d", value))
        case str():
            yield from _frame(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes():
            yield from _frame(b"b", value)
        case list() | tuple():
            yield from _group(b"l", value)
        case Mapping():
            yield from _group(b"o", [part for name in _names(value) for part in (name, value[name])])
        case _ if _is_array(value):
            yield from _array(value)
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be digested")


def _head(kind: bytes, length: int) -> bytes:
    return _HEAD.pack(kind, length)


def _frame(kind: bytes, contents: bytes) -> Iterator[bytes]:
    yield _head(kind, len(contents))
    yield contents


def _group(kind: bytes, parts: Iterable[Any]) -> Iterator[bytes | memoryview]:
    parts = list(parts)
    yield _head(kind, len(parts))
    for part in parts:
        yield from frames(part)


def _names(value: Mapping[Any, Any]) -> list[str]:
    if not all(isinstance(name, str) for name in value):
        raise TypeError("a mapping with keys that are not text cannot be digested")
    return sorted(value)


def _is_array(value: Any) -> bool:
    """Return True for numpy's arrays, except arrays of objects, which have no bytes of their own."""
    return hasattr(value, "__array_interface__") and not value.dtype.hasobject


def _array(value: Any) -> Iterator[bytes | memoryview]:
    """Yield a frame of dtype, shape and the elements' bytes in C order; -0.0 and 0.0 differ, as their bytes do."""
    yield _head(b"a", 3)
    yield from frames(value.dtype.str)
    yield from frames(list(value.shape))
    contiguous = value.ndim and value.flags.c_contiguous and value.nbytes
    elements = memoryview(value.view("u1") if contiguous else value.tobytes()).cast("B")
    yield _head(b"b", elements.nbytes)
    yield elements
