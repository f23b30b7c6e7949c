"""Messages between a worker and a model process, over a Unix socket: JSON, and arrays or bytes beside it.

    prefix (sizes of header and body, 1 for a body in shared memory) | header (JSON) | body

A large body lies in sealed shared memory whose descriptor comes with the prefix: neither side can change it afterwards.
Standard library only; numpy where a message holds arrays.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

#: Bytes of a body up to which it goes through the socket.
INLINE_BYTES = 64 * 1024
#: Largest header in bytes.
MAX_HEADER_BYTES = 16 * 2**20
#: Arrays and bytes of one message, and so the images of a call.
MAX_ARRAYS = 4096

_PREFIX = struct.Struct("<IQB")
_INT = struct.Struct("@i")
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")
_BYTES = "bytes"
_ALIGN = 64
#: F_ADD_SEALS, and the seals: no more seals, sizes or writes.
_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8


class WireError(Exception):
    """A message that breaks the protocol."""


class Closed(Exception):
    """The other side has closed the connection."""


#: The place of an array in a value: keys and indexes.
Place = tuple[str | int, ...]


class Wire:
    """One end of a socket pair. One thread receives; any may send."""

    def __init__(self, end: socket.socket, *, max_bytes: int = 2**33) -> None:
        """Take ownership of the socket. Bodies of more than `max_bytes` break the protocol."""
        self._socket = end
        self._max_bytes = max_bytes
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for messages."""
        return self._socket.fileno()

    def send(self, kind: str, value: Any = None, **fields: Any) -> None:
        """Send a message whose value is JSON with arrays and bytes in it; raise `Closed`, or `TypeError` for others."""
        value, found = take_out(value)
        if len(found) > MAX_ARRAYS:
            raise TypeError(f"{len(found):,} arrays or files in one call or answer; at most {MAX_ARRAYS:,} are sent")
        arrays, parts = [], []
        for place, array in found:
            dtype, shape, part = _described(array)
            arrays.append((place, dtype, shape))
            parts.append(part)
        text = json.dumps({"kind": kind, **fields, "value": value, "arrays": arrays}, ensure_ascii=False)
        header = text.encode("utf-8", "surrogatepass")
        if len(header) > MAX_HEADER_BYTES:
            raise TypeError(f"the JSON exceeds {MAX_HEADER_BYTES >> 20} MiB")
        chunks = list(_padded(parts))
        size = sum(map(len, chunks))
        with self._sending:
            try:
                if size <= INLINE_BYTES:
                    self._socket.sendall(b"".join((_PREFIX.pack(len(header), size, 0), header, *chunks)))
                    return
                memory = _sealed(chunks)
                try:
                    prefix = _PREFIX.pack(len(header), size, 1)
                    sent = socket.send_fds(self._socket, [prefix], [memory])
                    self._socket.sendall(prefix[sent:] + header)
                finally:
                    os.close(memory)
            except OSError as error:
                raise Closed from error

    def receive(self) -> dict[str, Any]:
        """Return the next message, its `value` with arrays in it; raise `Closed`, or `WireError` for an invalid one."""
        prefix, descriptor = self._prefix()
        try:
            header_bytes, body_bytes, shared = _PREFIX.unpack(prefix)
            if header_bytes > MAX_HEADER_BYTES or body_bytes > (self._max_bytes if shared else INLINE_BYTES):
                raise WireError(f"a message of {header_bytes} + {body_bytes} bytes")
            if bool(shared) != (descriptor is not None):
                raise WireError("a descriptor that the message does not announce")
            message = _parsed(self._read(header_bytes))
            body = self._read(body_bytes) if descriptor is None else _mapped(descriptor, body_bytes)
            return _with_arrays(message, body, body_bytes)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Close this end; every wait at either end stops."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _prefix(self) -> tuple[bytes, int | None]:
        prefix, found = b"", list[int]()
        try:
            while len(prefix) < _PREFIX.size:
                data, ancillary, *_ = self._socket.recvmsg(
                    _PREFIX.size - len(prefix), socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC
                )
                for level, kind, content in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        found += _INT.unpack(content[: _INT.size])
                if not data:
                    raise Closed
                prefix += data
        except OSError as error:
            raise Closed from error
        finally:
            if len(found) > 1 or (found and len(prefix) < _PREFIX.size):
                for descriptor in found:
                    os.close(descriptor)
        if len(found) > 1:
            raise WireError("a message with several descriptors")
        return prefix, found[0] if found else None

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        left = memoryview(buffer)
        while left:
            try:
                got = self._socket.recv_into(left)
            except OSError as error:
                raise Closed from error
            if not got:
                raise Closed
            left = left[got:]
        return buffer


def take_out(value: Any) -> tuple[Any, list[tuple[Place, Any]]]:
    """Return JSON with None for the arrays and bytes in it, and these with their places."""
    found = list[tuple[Place, Any]]()

    def taken(one: Any, place: Place) -> Any:
        if isinstance(one, Mapping):
            return {name: taken(inner, (*place, name)) for name, inner in one.items()}
        if isinstance(one, list | tuple):
            return [taken(inner, (*place, at)) for at, inner in enumerate(one)]
        is_array = hasattr(one, "__array_interface__") and hasattr(one, "dtype")
        if is_array and not one.shape:
            return one.item()
        if is_array or isinstance(one, bytes | bytearray | memoryview):
            found.append((place, one))
            return None
        return one

    return taken(value, ()), found


def put_in(holder: Any, place: Sequence[Any], array: Any) -> None:
    """Put an array back where `take_out` left None; raise `KeyError`, `IndexError` or `TypeError` elsewhere."""
    *steps, last = place
    for step in steps:
        holder = holder[step]
    if holder[last] is not None:
        raise KeyError(last)
    holder[last] = array


def _with_arrays(message: dict[str, Any], body: Any, body_bytes: int) -> dict[str, Any]:
    """Put the arrays of a body into their message; raise `WireError` for those without a place."""
    try:
        for place, dtype, shape, begin, size in _laid_out(message.pop("arrays", []), body_bytes):
            put_in(message, ["value", *place], _array(body, dtype, shape, begin, size))
    except (KeyError, IndexError, TypeError) as error:
        raise WireError("an array without a place") from error
    return message


def _described(array: Any) -> tuple[str, list[int], Any]:
    """Return the dtype, the shape and the bytes of an array or of plain bytes."""
    if isinstance(array, bytes | bytearray | memoryview):
        part = memoryview(array).cast("B")
        return _BYTES, [len(part)], part
    import numpy as np

    if not _DTYPE.fullmatch(array.dtype.str):
        raise TypeError(f"an array of {array.dtype}: only numbers and booleans can be sent")
    array = np.ascontiguousarray(array)
    return array.dtype.str, list(array.shape), array.reshape(-1).view(np.uint8).data if array.nbytes else b""


def _padded(parts: Sequence[Any]) -> Iterator[Any]:
    size = 0
    for part in parts:
        if gap := -size % _ALIGN:
            yield bytes(gap)
        yield part
        size += gap + len(part)


def _sealed(chunks: Sequence[Any]) -> int:
    """Return a descriptor of shared memory with these bytes, which nobody can change."""
    memory = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                left = left[os.write(memory, left) :]
        fcntl.fcntl(memory, _ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def _mapped(descriptor: int, size: int) -> Any:
    if os.fstat(descriptor).st_size < size or not fcntl.fcntl(descriptor, _ADD_SEALS + 1) & 0x2:
        raise WireError("shared memory that is too small or can shrink")
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def _parsed(text: bytes | bytearray) -> dict[str, Any]:
    try:
        message = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a header that is no JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireError("a header without a kind")
    return message


def _laid_out(places: Any, body_bytes: int) -> Iterator[tuple[Any, str, list[int], int, int]]:
    """Yield the place, dtype, shape, begin and size in bytes of each array; raise `WireError` unless they fit."""
    if not isinstance(places, list) or len(places) > MAX_ARRAYS:
        raise WireError("the list of arrays is invalid")
    end = 0
    for row in places:
        match row:
            case [[*place], str(dtype), [*shape]] if all(type(side) is int and side >= 0 for side in shape):
                pass
            case _:
                raise WireError("the description of an array is invalid")
        if dtype != _BYTES and not _DTYPE.fullmatch(dtype):
            raise WireError("the dtype of an array is invalid")
        size = math.prod(shape) * (1 if dtype == _BYTES else int(dtype[2:]))
        begin = end + -end % _ALIGN
        end = begin + size
        if end > body_bytes:
            raise WireError("the arrays are larger than their memory")
        yield place, dtype, shape, begin, size
    if end != body_bytes:
        raise WireError("the arrays are smaller than their memory")


def _array(body: Any, dtype: str, shape: Sequence[int], begin: int, size: int) -> Any:
    if dtype == _BYTES:
        return bytes(memoryview(body)[begin : begin + size])
    import numpy as np

    if not size:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, body, begin)
