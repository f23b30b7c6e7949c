"""Messages between a worker and its IO and model processes, over a Unix socket: JSON, and arrays or bytes beside it.

    prefix (bytes of the header, bytes of the body) | header (JSON) | body (the bytes of arrays)

No memory is shared: the kernel copies a body from one process into the other, in one call at each end. That takes as
long as sealed segments that both processes keep (14 MB: 6.5 ms with its reading) or less (eight arrays of 0.6 MB:
2.9 ms, not 8.0; `docs/decisions/0119-one-channel.md`). So no process holds memory that its own limit does not count,
and nothing changes under a reader. The receiver trusts no message.

Standard library only; numpy where a message holds arrays. `docs/reference/channel.md` lists the messages.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import select
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

#: Bytes of a body up to which it counts as small: no limit of memory is about it.
SMALL_BYTES = 64 * 1024
#: Largest header in bytes: a job's result is sent in a header.
MAX_HEADER_BYTES = 16 * 2**20
#: Bytes of the bodies of a model process that are in use at a time, at most.
MAX_BYTES = 2**33
#: Arrays and bytes of one message, and so the images of a call.
MAX_ARRAYS = 4096
#: Lines that one call may print; the rest is counted in a line of its own.
MAX_LINES = 1000
#: Seconds between two ticks of a wait.
TICK_S = 0.1

_PREFIX = struct.Struct("<IQ")
_INT = struct.Struct("@i")
_TIME = struct.Struct("@ll")
#: Bytes of the ancillary data of a receive, and its flag: programs that a process starts get no descriptor.
_ONE_DESCRIPTOR, _CLOSE_ON_EXEC = socket.CMSG_LEN(_INT.size), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
#: Parts of a message that the kernel takes in one call.
_MAX_PARTS = 1024
#: Booleans, integers, floats and complex numbers, with their byte order and size.
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")
_BYTES = "bytes"
_MAX_DIMENSIONS = 32
#: Bytes of a cache line: arrays begin at multiples of it.
_ALIGN = 64

#: Called repeatedly while waiting; raises to end the wait.
Tick = Callable[[], None]
#: The place of an array in a value: keys and indexes.
Place = tuple[str | int, ...]
#: Place, dtype and shape of an array.
Row = tuple[Place, str, list[int]]


class WireError(Exception):
    """A message that breaks the protocol."""


class TooMuch(WireError):
    """More bytes on their way than the receiver's limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the arrays on their way exceed {max_bytes / 2**20:.0f} MiB")
        self.max_bytes = max_bytes


class Closed(Exception):
    """The other side has closed the connection."""


class Unsendable(TypeError):
    """A value that is neither JSON nor arrays, or too large."""


class Memory:
    """The memory for received bodies: one limit for all wires to a process, counted while their arrays are in use."""

    def __init__(self, max_bytes: int) -> None:
        """Allow `max_bytes` at a time; with 0 there are small bodies only."""
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        #: Appended to at the end of a body's last array, in any thread and while any lock is held.
        self._freed: deque[int] = deque()

    def take(self, size_bytes: int) -> Any:
        """Return a writable buffer, which lives as long as an array in it; raise `TooMuch`."""
        if size_bytes <= SMALL_BYTES:
            return bytearray(size_bytes)
        with self._lock:
            while self._freed:
                self._used_bytes -= self._freed.popleft()
            if self._used_bytes + size_bytes > self.max_bytes:
                raise TooMuch(self.max_bytes)
            buffer = (ctypes.c_ubyte * size_bytes)()  # one of few buffers of which the end can be seen
            self._used_bytes += size_bytes
        weakref.finalize(buffer, self._freed.append, size_bytes).atexit = False
        return buffer


@dataclass(frozen=True, slots=True)
class Prepared:
    """A value that is ready for a message: its arrays are found."""

    #: JSON with None for the arrays and bytes.
    value: Any
    rows: list[Row]
    #: The arrays' bytes.
    parts: list[Any]


class Wire:
    """One end of a socket pair. One thread receives; any may send."""

    def __init__(
        self, end: socket.socket, memory: Memory | None = None, *, flat: bool = False, takes_descriptors: bool = False,
        ticks: bool = False, stall_s: float | None = None,
    ) -> None:  # fmt: skip
        """Take ownership of the socket; without `memory` it receives `MAX_BYTES` at a time.

        `flat`: values are arrays and JSON by name, as prompts and outputs are, and texts are UTF-8; else arrays and
        bytes lie anywhere in a value. An end that `takes_descriptors` trusts the other side. An end with `ticks` calls
        the tick of a wait at least every `TICK_S`; one with `stall_s` takes so long a silence within a message, or
        before it, as the end.
        """
        self._socket = end
        self._memory = memory or Memory(MAX_BYTES)
        self._flat = flat
        self._takes_descriptors = takes_descriptors
        self._stalls = stall_s is not None
        self._sending = threading.Lock()
        end.settimeout(None)
        # Limits of the kernel: with those of Python, no call would fill a whole buffer.
        if (wait_s := TICK_S if ticks else stall_s) is not None:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, _TIME.pack(int(wait_s), int(wait_s % 1 * 1e6)))

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for messages."""
        return self._socket.fileno()

    def readable(self) -> bool:
        """Return True when data has arrived: a message, or the other side's end."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def send(
        self, kind: str, value: Any = None, *, tick: Tick | None = None, descriptor: int | None = None, **fields: Any
    ) -> None:
        """Send a message of JSON `fields` and a value with arrays in it; raise `Closed` or `Unsendable`."""
        found = _named(value) if self._flat else prepare(value)
        self._send({"kind": kind, **fields, "value": found.value}, found.rows, found.parts, tick, descriptor)

    def send_prepared(self, kind: str, values: Sequence[Prepared], **fields: Any) -> None:
        """Send a message whose value is a list of values; raise `Closed` or `Unsendable`."""
        rows = [((at, *place), dtype, shape) for at, one in enumerate(values) for place, dtype, shape in one.rows]
        message = {"kind": kind, **fields, "value": [one.value for one in values]}
        self._send(message, rows, [part for one in values for part in one.parts])

    def receive(self, *, tick: Tick | None = None) -> dict[str, Any]:
        """Return the next message, its `value` with arrays in it.

        Where descriptors are taken, `descriptor` is the one that came with it, which the receiver must close, or None.
        Raises `Closed`, or `WireError` for an invalid message: nothing after it can be read.
        """
        prefix, descriptors = self._prefix(tick)
        try:
            if descriptors and not self._takes_descriptors:
                raise WireError("a descriptor that nobody asked for")
            header_bytes, body_bytes = _PREFIX.unpack(prefix)
            message = self._message(header_bytes, body_bytes, tick)
            if self._takes_descriptors:
                message["descriptor"] = descriptors.pop() if descriptors else None
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise WireError(f"{type(error).__name__}: {error}") from error
        else:
            return message
        finally:
            _close_all(descriptors)

    def shut(self) -> None:
        """Shut the connection down: every wait at either end stops at once."""
        with suppress(OSError):  # the other side has closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; where a fork has the socket too, the connection stays."""
        self._socket.close()

    def _message(self, header_bytes: int, body_bytes: int, tick: Tick | None) -> dict[str, Any]:
        """Return what follows a prefix."""
        if header_bytes > MAX_HEADER_BYTES or body_bytes > max(SMALL_BYTES, self._memory.max_bytes):
            raise WireError(f"a message of {header_bytes} + {body_bytes} bytes")
        message = _parsed(self._filled(bytearray(header_bytes), tick))
        if self._flat and not isinstance(message["value"], dict):
            raise WireError("a value without names")
        body = self._filled(self._memory.take(body_bytes), tick)
        for place, dtype, shape, begin, size in _laid_out(message.pop("arrays", []), body_bytes, flat=self._flat):
            put_in(message, ["value", *place], _array(body, dtype, shape, begin, size))
        return message

    def _send(
        self, message: Mapping[str, Any], rows: Sequence[Row], parts: Sequence[Any], tick: Tick | None = None,
        descriptor: int | None = None,
    ) -> None:  # fmt: skip
        if len(rows) > MAX_ARRAYS:
            detail = f"{len(rows):,} arrays or files in one call, batch or answer; at most {MAX_ARRAYS:,} are sent"
            raise Unsendable(detail)
        chunks = list(_padded(parts))
        size = sum(map(len, chunks))
        if size > max(SMALL_BYTES, self._memory.max_bytes):
            raise Unsendable(f"the data of one prompt or output exceeds {self._memory.max_bytes / 2**20:.0f} MiB")
        header = self._header({**message, "arrays": rows})
        left = [memoryview(part) for part in (_PREFIX.pack(len(header), size), header, *chunks)]
        beside = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.pack(descriptor))]
        at = 0
        with self._sending:
            while at < len(left):
                sent = self._call(tick, self._socket.sendmsg, left[at : at + _MAX_PARTS], beside)
                beside = []
                while at < len(left) and sent >= len(left[at]):
                    sent -= len(left[at])
                    at += 1
                if sent:
                    left[at] = left[at][sent:]

    def _header(self, message: Mapping[str, Any]) -> bytes:
        try:
            header = json.dumps(message, ensure_ascii=False).encode(
                "utf-8", "strict" if self._flat else "surrogatepass"
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise Unsendable(f"the data is neither arrays nor JSON: {error}") from error
        if len(header) > MAX_HEADER_BYTES:
            raise Unsendable(f"the JSON data exceeds {MAX_HEADER_BYTES >> 20} MiB")
        return header

    def _prefix(self, tick: Tick | None) -> tuple[bytes, list[int]]:
        """Return the next message's prefix, and the descriptors that came with it."""
        prefix, descriptors = b"", list[int]()
        try:
            while len(prefix) < _PREFIX.size:
                prefix += self._with_descriptors(_PREFIX.size - len(prefix), descriptors, tick)
        except BaseException:
            _close_all(descriptors)
            raise
        return prefix, descriptors

    def _with_descriptors(self, count: int, descriptors: list[int], tick: Tick | None) -> bytes:
        """Return at most `count` bytes; add the descriptors that came with them to the list."""
        data, ancillary, *_ = self._call(tick, self._socket.recvmsg, count, _ONE_DESCRIPTOR, _CLOSE_ON_EXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(content) == _INT.size:
                descriptors += _INT.unpack(content)
        if not data:
            raise Closed
        return bytes(data)

    def _filled(self, buffer: Any, tick: Tick | None) -> Any:
        """Return a buffer that was filled with what comes next."""
        left = memoryview(buffer).cast("B")
        while left:
            got = self._call(tick, self._socket.recv_into, left, len(left), socket.MSG_WAITALL)
            if not got:
                raise Closed
            left = left[got:]
        return buffer

    def _call(self, tick: Tick | None, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a socket's function; call `tick` before, and after each wait."""
        while True:
            if tick is not None:
                tick()
            try:
                return function(*args)
            except BlockingIOError as error:  # the kernel's limit of the wait
                if self._stalls:
                    raise Closed from error
            except OSError as error:
                raise Closed from error


def prepare(value: Any) -> Prepared:
    """Take the arrays and bytes out of a value; raise `Unsendable` for objects, dates and text."""
    plain, found = take_out(value)
    return Prepared(plain, *_described(found))


def _named(value: Any) -> Prepared:
    """Take the arrays out of a mapping, and look no deeper: a list of numbers may be long."""
    found = [((name,), one) for name, one in (value or {}).items() if _is_array(one)]
    plain = {**value, **{name: None for (name,), _ in found}} if found else value or {}
    return Prepared(plain, *_described(found))


def take_out(value: Any) -> tuple[Any, list[tuple[Place, Any]]]:
    """Return JSON with None for the arrays and bytes in it, and these with their places."""
    found = list[tuple[Place, Any]]()

    def taken(one: Any, place: Place) -> Any:
        if isinstance(one, Mapping):
            return {name: taken(inner, (*place, name)) for name, inner in one.items()}
        if isinstance(one, list | tuple):
            return [taken(inner, (*place, at)) for at, inner in enumerate(one)]
        if _is_array(one) and not one.shape:
            return one.item()
        if _is_array(one) or isinstance(one, bytes | bytearray | memoryview):
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


def _is_array(one: Any) -> bool:
    return hasattr(one, "__array_interface__") and hasattr(one, "dtype")


def _described(found: Sequence[tuple[Place, Any]]) -> tuple[list[Row], list[Any]]:
    """Return the rows and the bytes of arrays and plain bytes."""
    rows, parts = list[Row](), list[Any]()
    for place, array in found:
        if isinstance(array, bytes | bytearray | memoryview):
            parts.append(memoryview(array).cast("B"))
            rows.append((place, _BYTES, [len(parts[-1])]))
            continue
        import numpy as np

        if not _DTYPE.fullmatch(array.dtype.str):
            name = f"{place[0]!r} is " if len(place) == 1 else ""
            raise Unsendable(f"{name}an array of {array.dtype}; only numbers and booleans can be sent")
        array = np.asarray(array, order="C")
        rows.append((place, array.dtype.str, list(array.shape)))
        parts.append(array.reshape(-1).view(np.uint8).data if array.nbytes else b"")
    return rows, parts


def _padded(parts: Sequence[Any]) -> Iterator[Any]:
    size = 0
    for part in parts:
        if (gap := -size % _ALIGN) and part:
            yield bytes(gap)
            size += gap
        yield part
        size += len(part)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _parsed(text: bytearray) -> dict[str, Any]:
    message = json.loads(text.decode("utf-8", "surrogatepass"))
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireError("a header without a kind")
    return {**message, "value": message.get("value")}


def _laid_out(rows: Any, body_bytes: int, *, flat: bool) -> Iterator[tuple[Any, str, list[int], int, int]]:
    """Yield the place, dtype, shape, begin and size in bytes of each array; raise `WireError` unless they fit."""
    if not isinstance(rows, list) or len(rows) > MAX_ARRAYS:
        raise WireError("the list of arrays is invalid")
    end = 0
    for row in rows:
        match row:
            case [[*place], str(dtype), [*shape]] if len(shape) <= _MAX_DIMENSIONS and all(
                type(side) is int and side >= 0 for side in shape
            ):
                pass
            case _:
                raise WireError("the description of an array is invalid")
        if not (_DTYPE.fullmatch(dtype) or (dtype == _BYTES and not flat)) or (flat and len(place) != 1):
            raise WireError("the dtype or the place of an array is invalid")
        size = math.prod(shape) * (1 if dtype == _BYTES else int(dtype[2:]))
        begin = end + (-end % _ALIGN if size else 0)
        end = begin + size
        if end > body_bytes:
            raise WireError("the arrays are larger than their body")
        yield place, dtype, shape, begin, size
    if end != body_bytes:
        raise WireError("the arrays are smaller than their body")


def _array(body: Any, dtype: str, shape: Sequence[int], begin: int, size: int) -> Any:
    if dtype == _BYTES:
        return bytes(memoryview(body).cast("B")[begin : begin + size])
    import numpy as np

    return np.ndarray(shape, dtype, body, begin) if size else np.empty(shape, dtype)
