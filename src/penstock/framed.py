"""Hashes of structured values: two values have one digest only if they are the same value.

Every value is a frame: a letter for its type, eight bytes for its length, its contents. So nothing runs together:
[1, 2] is not [[1], 2], ("ab", "c") is not ("a", "bc"), and True, 1 and 1.0 are three values. A list's and an object's
length is the number of what is in them, whose frames follow. Pure, and without numpy: arrays are known by what they
have.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_HEAD = struct.Struct(">cQ")


def digest(*values: Any) -> bytes:
    """Return the SHA-256 of values in their order, 32 bytes.

    A value is None, a boolean, a number, text, bytes, a numpy array or scalar (its dtype, shape and elements), a list
    (a tuple is one, too) or a mapping of texts to values, whose order does not matter. Raises `TypeError` for others.
    """
    found = hashlib.sha256()
    for piece in frames(values):
        found.update(piece)
    return found.digest()


def frames(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a value's frame in pieces."""
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
            raise TypeError(f"a {type(value).__name__} has no frame")


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
        raise TypeError("a mapping whose names are not texts has no frame")
    return sorted(value)


def _is_array(value: Any) -> bool:
    """Whether it is numpy's. Arrays of objects have no bytes of their own."""
    return hasattr(value, "__array_interface__") and not value.dtype.hasobject


def _array(value: Any) -> Iterator[bytes | memoryview]:
    """Yield a frame of dtype, shape and the elements' bytes in C order; -0.0 is not 0.0, as their bytes differ."""
    yield _head(b"a", 3)
    yield from frames(value.dtype.str)
    yield from frames(list(value.shape))
    contiguous = value.ndim and value.flags.c_contiguous and value.nbytes
    elements = memoryview(value.view("u1") if contiguous else value.tobytes()).cast("B")
    yield _head(b"b", elements.nbytes)
    yield elements
