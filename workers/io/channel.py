"""Messages between a worker and an IO process, over a Unix socket: JSON, arrays, and at most one file descriptor.

    prefix (kind of body, sizes of header and body) | header (two lines of JSON) | body (the arrays' bytes)

A large body lies in shared memory and not in the stream (`penstock.functions.memory`). The header's first line, if not
empty, manages this memory. Before an IO process sends a large body, it asks the worker for memory, and the worker
answers with a descriptor. The receiver trusts no message: a captured decoder may have sent it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ProcessorFailed
from penstock.functions.memory import Borrower, Buffer, Lender, Loan
from penstock.processors.base import Value
from penstock.workers.io.values import Packed, pack, unpack

#: Bytes of arrays up to which they go through the socket: for fewer bytes a mapping costs more.
INLINE_BYTES = 64 * 1024
#: Largest header in bytes: a job's result is sent in a header.
MAX_HEADER_BYTES = 16 * 2**20
#: Seconds between two ticks of a wait.
TICK_S = 0.1

_INT = struct.Struct("@i")
#: Bytes of the ancillary data of a receive, and its flag: programs that a processor starts get no descriptor.
_ONE_DESCRIPTOR, _CLOSE_ON_EXEC = socket.CMSG_LEN(_INT.size), getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_PREFIX = struct.Struct("<BIQ")
_JSON = json.JSONEncoder(ensure_ascii=False)
#: Kinds of bodies (in the stream, in shared memory, in the stream with a descriptor), then a request for memory of a
#: size (its header: the dropped segments), and the answer (a number).
_INLINE, _SHARED, _DESCRIPTOR, _WANTED, _GRANTED = range(5)
#: Kinds whose bodies follow the header.
_IN_STREAM = (_INLINE, _DESCRIPTOR)

#: Called repeatedly while waiting for a message; raises to end the wait.
Tick = Callable[[], None]


class Disconnected(Exception):
    """The other side has closed the connection."""


@dataclass(frozen=True, slots=True)
class Message:
    """A received message."""

    header: Mapping[str, Any]
    #: Arrays and plain values together, by name.
    data: dict[str, Value] = field(default_factory=dict)
    #: A descriptor sent with the message; the receiver must close it.
    descriptor: int | None = None

    @property
    def kind(self) -> str:
        """The message's kind."""
        return str(self.header.get("kind"))


def _forever() -> None:
    """Wait without a limit."""


class Memory:
    """The memory that two processes share, across all sockets between them."""

    def __init__(self, max_bytes: int) -> None:
        """Map at most `max_bytes` of the other process's memory."""
        self.max_bytes = max_bytes
        self.lent = Lender()
        self.borrowed = Borrower(max_bytes)

    def close(self) -> None:
        """Free the memory; arrays still in use keep theirs."""
        self.lent.close()
        self.borrowed.close()


class Channel:
    """One end of a socket pair. One thread may receive while others send."""

    def __init__(self, end: socket.socket, memory: Memory | None = None, *, patient: bool = False) -> None:
        """Take ownership of the socket; without `memory` its messages hold small arrays only.

        A `patient` end, in the IO process, trusts the other side: it waits without ticks and accepts descriptors.
        """
        self._socket = end
        self._memory = memory or Memory(0)
        self._patient = patient
        self._sending = threading.Lock()
        #: The largest body of each kind.
        self._limits = {
            _INLINE: INLINE_BYTES,
            _SHARED: self._memory.max_bytes,
            _DESCRIPTOR: INLINE_BYTES if patient else -1,
        }
        end.settimeout(None if patient else TICK_S)

    def send(
        self, kind: str, values: Mapping[str, Value] | None = None, /, *, tick: Tick = _forever,
        descriptor: int | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Send a message; raise `Disconnected`, or `ProcessorFailed` for data that cannot be sent."""
        packed = pack(values or {})
        text = _dump({"kind": kind, **fields, "plain": packed.plain, "arrays": packed.layout})
        # From here on the data is valid. A message has one descriptor at most: its own, or that of shared memory.
        loan = self._lend(packed) if descriptor is None else None
        header = self._memory_header(loan) + b"\n" + text
        if loan is None:
            prefix = _PREFIX.pack(_INLINE if descriptor is None else _DESCRIPTOR, len(header), packed.size_bytes)
            self._write(prefix, [header, *packed.parts], descriptor, tick)
        else:
            self._write(_PREFIX.pack(_SHARED, len(header), packed.size_bytes), [header], loan.descriptor, tick)

    def receive(self, *, tick: Tick = _forever) -> Message:
        """Return the next message; raise `Disconnected`, or `ProcessorFailed` for an invalid message."""
        descriptor = None
        try:
            prefix, descriptor = self._answer_wants(tick)
            body, header_bytes, body_bytes = self._checked(prefix, descriptor)
            memory_line, _, text = self._read(header_bytes, tick).partition(b"\n")
            header, memory = _parsed(text), {}
            if memory_line:
                memory = json.loads(memory_line.decode())
                self._memory.lent.take_back(memory["returned"])
                self._memory.borrowed.forget(memory["dropped"])
            if body in _IN_STREAM:
                buffer = self._read(body_bytes, tick)
            else:
                buffer = self._memory.borrowed.borrow(int(memory["lent"]), descriptor, body_bytes)
            data = {**header["plain"], **unpack(header["arrays"], buffer, body_bytes)}
            if body == _DESCRIPTOR:
                message, descriptor = Message(header, data, descriptor), None
                return message
            return Message(header, data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProcessorFailed(f"the processor's process sent an invalid message ({error})") from error
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def readable(self) -> bool:
        """Return True when data has arrived: a message, or the other side's end."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def shut(self) -> None:
        """Shut the connection down: every wait at either end stops at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side has closed already

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _lend(self, packed: Packed) -> Loan | None:
        if packed.size_bytes <= INLINE_BYTES:
            return None
        if packed.size_bytes > self._memory.max_bytes:
            raise ProcessorFailed(f"the data of one prompt or output exceeds {self._memory.max_bytes / 2**20:.0f} MiB")
        return self._memory.lent.lend(packed.parts, packed.size_bytes, self._ask_grant if self._patient else None)

    def _ask_grant(self, size_bytes: int) -> tuple[int, int]:
        """Ask the worker for a segment; return its number and descriptor. Only for a thread that reads here alone."""
        for _ in range(2):
            dropped = json.dumps(self._memory.lent.dropped()).encode()
            self._write(_PREFIX.pack(_WANTED, len(dropped), size_bytes), [dropped], None, _forever)
            prefix, descriptor = self._read_prefix(_forever)
            if descriptor is not None:
                return int(_PREFIX.unpack(prefix)[2]), descriptor
            self._memory.lent.drop_unused()
        limit = self._memory.max_bytes / 2**20
        raise ProcessorFailed(f"the processor's prompts on their way exceed {limit:.0f} MiB (io_memory_bytes)")

    def _answer_wants(self, tick: Tick) -> tuple[bytes, int | None]:
        """Return the next message's prefix and descriptor; grant the memory that the other side wants before."""
        while True:
            prefix, descriptor = self._read_prefix(tick)
            kind, header_bytes, size_bytes = _PREFIX.unpack(prefix)
            if kind != _WANTED or self._patient or header_bytes > MAX_HEADER_BYTES or descriptor is not None:
                return prefix, descriptor
            self._memory.borrowed.forget(json.loads(self._read(header_bytes, tick)))
            segment = self._memory.borrowed.grant(size_bytes)
            number, granted = (0, None) if segment is None else (segment.number, segment.descriptor)
            self._write(_PREFIX.pack(_GRANTED, 0, number), [], granted, tick)

    def _memory_header(self, loan: Loan | None) -> bytes:
        """Return the header's first line: the changes in the shared memory; empty where there are none."""
        changes = {"returned": self._memory.borrowed.returned(), "dropped": self._memory.lent.dropped()}
        if loan is None and not any(changes.values()):
            return b""
        return json.dumps({**changes, "lent": loan.number if loan else None}).encode()

    def _write(self, prefix: bytes, parts: list[Buffer], descriptor: int | None, tick: Tick) -> None:
        """Send a message, in one call where the socket has room."""
        buffers = [memoryview(part) for part in (prefix, *parts)]
        descriptors = [] if descriptor is None else [descriptor]
        with self._sending:
            sent = _call(tick, socket.send_fds, self._socket, buffers, descriptors)
            for buffer in buffers:
                left = buffer[sent:]
                sent = max(0, sent - len(buffer))
                while left:
                    left = left[_call(tick, self._socket.send, left) :]

    def _read_prefix(self, tick: Tick) -> tuple[bytes, int | None]:
        """Return the next message's prefix, and the descriptor that came with the prefix."""
        prefix, descriptors = b"", list[int]()
        try:
            while len(prefix) < _PREFIX.size:
                prefix += self._read_with_descriptors(_PREFIX.size - len(prefix), descriptors, tick)
        except BaseException:
            _close_all(descriptors)
            raise
        _close_all(descriptors[:-1])  # an untrusted process may send several
        return prefix, descriptors[-1] if descriptors else None

    def _read_with_descriptors(self, count: int, descriptors: list[int], tick: Tick) -> bytes:
        """Return at most `count` bytes; add the descriptors that came with them to the list."""
        data, ancillary, *_ = _call(tick, self._socket.recvmsg, count, _ONE_DESCRIPTOR, _CLOSE_ON_EXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(content) == _INT.size:
                descriptors += _INT.unpack(content)
        if not data:
            raise Disconnected
        return bytes(data)

    def _checked(self, prefix: bytes, descriptor: int | None) -> tuple[int, int, int]:
        if descriptor is not None and not self._patient:
            raise ValueError("a descriptor that nobody asked for")
        body, header_bytes, body_bytes = _PREFIX.unpack(prefix)
        if header_bytes > MAX_HEADER_BYTES or body_bytes > self._limits.get(body, -1):
            raise ValueError(f"a message of {header_bytes} + {body_bytes} bytes")
        return body, header_bytes, body_bytes

    def _read(self, count: int, tick: Tick) -> bytearray:
        buffer = bytearray(count)
        left = memoryview(buffer)
        while left:
            got = _call(tick, self._socket.recv_into, left)
            if not got:
                raise Disconnected
            left = left[got:]
        return buffer


def _call(tick: Tick, function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a socket's function; call `tick` before, and after each timeout."""
    while True:
        tick()
        try:
            return function(*args)
        except TimeoutError:
            continue
        except OSError as error:
            raise Disconnected from error


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _parsed(text: bytes | bytearray) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(text.decode())
    if not isinstance(header["plain"], dict):
        raise TypeError("the plain values have no names")
    return header


def _dump(header: Mapping[str, Any]) -> bytes:
    try:
        text = _JSON.encode(header).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProcessorFailed(f"the processor's data is neither arrays nor JSON: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise ProcessorFailed(f"the processor's JSON data exceeds {MAX_HEADER_BYTES / 2**20:.0f} MiB")
    return text
