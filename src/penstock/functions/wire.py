"""Messages between a worker and a model process, over a Unix socket: JSON, and arrays or bytes beside it.

    prefix (sizes of header and body, 1 for a body in shared memory) | header (JSON) | body

A large body lies in sealed shared memory whose descriptor comes with the prefix: neither side can change it afterwards.
The worker instead lends segments of memory that a header names, and fills them again when the process has returned them
(`memory`): a new page costs several times as much as a copy into one that is there.
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
from dataclasses import dataclass
from typing import Any

from penstock.functions.memory import Borrower, Lender, Loan, UnsafeMemory

#: Bytes of a body up to which it goes through the socket.
INLINE_BYTES = 64 * 1024
#: Largest header in bytes.
MAX_HEADER_BYTES = 16 * 2**20
#: Arrays and bytes of one message, and so the images of a call.
MAX_ARRAYS = 4096
#: Segments of lent memory of one message, at most.
MAX_LOANS = 64
#: Lines that one call may print; the rest is counted in a line of its own.
MAX_LINES = 1000

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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A value that is ready for a message: its arrays are found, and large ones lie in lent memory."""

    #: JSON with None for the arrays and bytes.
    value: Any
    #: Place, dtype and shape of each array.
    rows: list[tuple[Place, str, list[int]]]
    #: The arrays' bytes; empty where they are lent.
    parts: list[Any]
    size_bytes: int
    loan: Loan | None = None


class Wire:
    """One end of a socket pair. One thread receives; any may send."""

    def __init__(self, end: socket.socket, *, max_bytes: int = 2**33, lends: bool = False) -> None:
        """Take ownership of the socket. Bodies of more than `max_bytes` break the protocol.

        The side that `lends` its memory trusts the other one with nothing but those bytes; only one side does.
        """
        self._socket = end
        self._max_bytes = max_bytes
        self._sending = threading.Lock()
        self._lender = Lender() if lends else None
        self._borrower = None if lends else Borrower(max_bytes)

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for messages."""
        return self._socket.fileno()

    def prepare(self, value: Any) -> Prepared:
        """Take the arrays out of a value, and write large ones into lent memory if this side lends.

        Raises `TypeError` for values other than JSON, arrays and bytes, and `Closed`. Safe in any thread.
        """
        plain, found = take_out(value)
        if len(found) > MAX_ARRAYS:
            raise TypeError(f"{len(found):,} arrays or files in one call or answer; at most {MAX_ARRAYS:,} are sent")
        rows, parts = [], []
        for place, array in found:
            dtype, shape, part = _described(array)
            rows.append((place, dtype, shape))
            parts.append(part)
        chunks = list(_padded(parts))
        size = sum(map(len, chunks))
        if size <= INLINE_BYTES or self._lender is None:
            return Prepared(plain, rows, parts, size)
        return Prepared(plain, rows, [], size, self._lend(chunks, size))

    def send(self, kind: str, value: Any = None, **fields: Any) -> None:
        """Send a message whose value is JSON with arrays and bytes in it; raise `Closed`, or `TypeError` for others."""
        prepared = self.prepare(value)
        self._send({"kind": kind, **fields, "value": prepared.value}, [((), prepared)])

    def send_prepared(self, kind: str, values: Sequence[Prepared], **fields: Any) -> None:
        """Send a message whose value is a list of prepared values, at most `MAX_LOANS`; raise `Closed`."""
        message = {"kind": kind, **fields, "value": [each.value for each in values]}
        self._send(message, [((at,), each) for at, each in enumerate(values)])

    def _lend(self, chunks: Sequence[Any], size: int) -> Loan:
        assert self._lender is not None  # noqa: S101  (the callers know)
        try:
            return self._lender.lend(chunks, size)
        except OSError as error:
            raise Closed from error

    def _send(self, message: dict[str, Any], values: Sequence[tuple[Place, Prepared]]) -> None:
        inline = [(place, each) for place, each in values if each.loan is None]
        lent = [(each.loan, each.size_bytes, _placed(place, each)) for place, each in values if each.loan]
        rows = [row for place, each in inline for row in _placed(place, each)]
        chunks = list(_padded([part for _, each in inline for part in each.parts]))
        size = sum(map(len, chunks))
        memory = None
        if size > INLINE_BYTES and self._lender is not None:
            lent.append((self._lend(chunks, size), size, rows))
            rows, chunks, size = [], [], 0
        try:
            if size > INLINE_BYTES:
                memory = _sealed(chunks)
            message |= {"arrays": rows, "lent": [[n.number, b, n.descriptor is not None, at] for n, b, at in lent]}
            descriptors = [loan.descriptor for loan, *_ in lent if loan.descriptor is not None]
            with self._sending:
                header = _header({**message, **self._changes()})
                prefix = _PREFIX.pack(len(header), size, memory is not None)
                data = b"".join((prefix, header, *(chunks if memory is None else ())))
                passed = descriptors if memory is None else [memory]
                sent = socket.send_fds(self._socket, [data], passed) if passed else 0
                self._socket.sendall(data[sent:] if sent else data)
        except OSError as error:
            raise Closed from error
        finally:
            if memory is not None:
                os.close(memory)

    def _changes(self) -> dict[str, Any]:
        """Return the changes of the lent memory, which the next message tells, whatever it is."""
        found = {
            "returned": self._borrower.returned() if self._borrower is not None else (),
            "dropped": self._lender.dropped() if self._lender is not None else (),
        }
        return {name: numbers for name, numbers in found.items() if numbers}

    def receive(self) -> dict[str, Any]:
        """Return the next message, its `value` with arrays in it; raise `Closed`, or `WireError` for an invalid one."""
        prefix, descriptors = self._prefix()
        try:
            header_bytes, body_bytes, shared = _PREFIX.unpack(prefix)
            if header_bytes > MAX_HEADER_BYTES or body_bytes > (self._max_bytes if shared else INLINE_BYTES):
                raise WireError(f"a message of {header_bytes} + {body_bytes} bytes")
            if shared and len(descriptors) != 1:
                raise WireError("shared memory without its descriptor")
            message = _parsed(self._read(header_bytes))
            self._note_changes(message.pop("returned", ()), message.pop("dropped", ()))
            loans = _loans([] if shared else message.pop("lent", []))
            if not shared and len(descriptors) != sum(fresh for _, _, fresh, _ in loans):
                raise WireError("a descriptor that the message does not announce")
            body = _mapped(descriptors[0], body_bytes) if shared else self._read(body_bytes)
            _put_arrays(message, message.pop("arrays", []), body, body_bytes)
            new = iter(descriptors)
            for number, size, fresh, rows in loans:
                _put_arrays(message, rows, self._borrowed(number, next(new) if fresh else None, size), size)
            return message
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _note_changes(self, returned: Any, dropped: Any) -> None:
        """Note what the other side tells of the lent memory."""
        try:
            if self._lender is not None:
                self._lender.take_back(list(map(int, returned)))
            elif self._borrower is not None:
                self._borrower.forget(list(map(int, dropped)))
        except (TypeError, ValueError) as error:
            raise WireError("the changes of the memory are invalid") from error

    def _borrowed(self, number: int, descriptor: int | None, size: int) -> Any:
        if self._borrower is None:
            raise WireError("memory that this side does not borrow")
        try:
            return self._borrower.borrow(number, descriptor, size)
        except UnsafeMemory as error:
            raise WireError(str(error)) from error

    def close(self) -> None:
        """Close this end; every wait at either end stops."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._lender is not None:
            self._lender.close()

    def _prefix(self) -> tuple[bytes, list[int]]:
        prefix, found, complete = b"", list[int](), False
        try:
            while len(prefix) < _PREFIX.size:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _PREFIX.size - len(prefix), socket.CMSG_LEN(MAX_LOANS * _INT.size), socket.MSG_CMSG_CLOEXEC
                )
                found += _passed(ancillary, cut=bool(flags & socket.MSG_CTRUNC))
                if not data:
                    break
                prefix += data
            complete = len(prefix) == _PREFIX.size
        except OSError as error:
            raise Closed from error
        finally:
            if not complete:
                for descriptor in found:
                    os.close(descriptor)
        if not complete:
            raise Closed
        return prefix, found

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


def _header(message: Mapping[str, Any]) -> bytes:
    header = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(header) > MAX_HEADER_BYTES:
        raise TypeError(f"the JSON exceeds {MAX_HEADER_BYTES >> 20} MiB")
    return header


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


def _passed(ancillary: Any, *, cut: bool) -> list[int]:
    """Return the descriptors beside a part of a message; raise `WireError` for more than a message has."""
    found = list[int]()
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += [number for (number,) in _INT.iter_unpack(content[: len(content) - len(content) % _INT.size])]
    if cut:
        for descriptor in found:
            os.close(descriptor)
        raise WireError("a message with too many descriptors")
    return found


def _placed(place: Place, prepared: Prepared) -> list[tuple[Place, str, list[int]]]:
    return [((*place, *inner), dtype, shape) for inner, dtype, shape in prepared.rows] if place else prepared.rows


def _loans(rows: Any) -> list[tuple[int, int, bool, Any]]:
    """Return the number, the bytes, True for a new one, and the arrays of each lent segment; raise `WireError`."""
    if not isinstance(rows, list) or len(rows) > MAX_LOANS:
        raise WireError("the list of lent memory is invalid")
    for row in rows:
        match row:
            case [int(number), int(size), bool(), [*_]] if number > 0 and size > 0:
                pass
            case _:
                raise WireError("the description of lent memory is invalid")
    return [(number, size, fresh, arrays) for number, size, fresh, arrays in rows]


def _put_arrays(message: dict[str, Any], rows: Any, body: Any, body_bytes: int) -> None:
    """Put the arrays of a body into their message; raise `WireError` for those without a place."""
    try:
        for place, dtype, shape, begin, size in _laid_out(rows, body_bytes):
            put_in(message, ["value", *place], _array(body, dtype, shape, begin, size))
    except (KeyError, IndexError, TypeError) as error:
        raise WireError("an array without a place") from error


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
        return bytes(memoryview(body).cast("B")[begin : begin + size])
    import numpy as np

    if not size:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, body, begin)
