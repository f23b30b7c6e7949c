"""Messages between a worker and an IO process, over a Unix socket: JSON, arrays, and at most one file descriptor.

    prefix (what the body is, how long header and body are) | header (two lines of JSON) | body (the arrays' bytes)

The header's first line is about the memory that both sides share: a large body lies there and not in the stream
(`memory.py`). Whoever receives trusts nothing: a captured decoder may have sent it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ProcessorFailed
from penstock.processors.base import Value
from penstock.workers.io.memory import Borrower, Buffer, Lender, Loan
from penstock.workers.io.values import Packed, pack, unpack

#: Below this the arrays go through the socket: a mapping costs more.
INLINE_BYTES = 64 * 1024
#: Of a header: a job's result is in one.
MAX_HEADER_BYTES = 16 * 2**20
#: How often whoever waits looks whether it still should.
TICK_S = 0.1

_PREFIX = struct.Struct("<BIQ")
_INLINE, _SHARED, _DESCRIPTOR = range(3)

#: Called again and again while a message is waited for; it raises to end the wait.
Tick = Callable[[], None]


class Gone(Exception):
    """The other side is not there any more."""


@dataclass(frozen=True, slots=True)
class Message:
    """What arrived."""

    header: Mapping[str, Any]
    #: Arrays and plain values together.
    data: dict[str, Value] = field(default_factory=dict)
    #: A socket that came along; the receiver's to close.
    descriptor: int | None = None

    @property
    def kind(self) -> str:
        """What kind of message it is."""
        return str(self.header.get("kind"))


def _forever() -> None:
    """Wait as long as it takes."""


class Memory:
    """The memory that one process shares with one other, whatever the sockets between them."""

    def __init__(self, max_bytes: int) -> None:
        """Hold at most so much of the other's."""
        self.max_bytes = max_bytes
        self.lent = Lender()
        self.borrowed = Borrower(max_bytes)

    def close(self) -> None:
        """Free it; arrays that are still used keep theirs."""
        self.lent.close()
        self.borrowed.close()


class Channel:
    """One end of a socket pair. One thread may receive while others send."""

    def __init__(self, end: socket.socket, memory: Memory | None = None, *, patient: bool = False) -> None:
        """Take over the socket; without `memory` its messages hold small arrays only.

        A `patient` end is the trusting one, in the IO process: it waits without ticking and takes descriptors.
        """
        self._socket = end
        self._memory = memory or Memory(0)
        self._patient = patient
        self._sending = threading.Lock()
        end.settimeout(None if patient else TICK_S)

    def send(
        self, kind: str, values: Mapping[str, Value] | None = None, /, *, tick: Tick = _forever,
        descriptor: int | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Send a message; raise `Gone`, or `ProcessorFailed` for data that cannot cross."""
        packed = pack(values or {})
        said = _dump({"kind": kind, **fields, "plain": packed.plain, "arrays": packed.layout})
        loan = self._lend(packed)  # from here on nothing is wrong with the data any more
        header = self._housekeeping(loan) + b"\n" + said
        if descriptor is not None:
            self._write(_PREFIX.pack(_DESCRIPTOR, len(header), 0), [header], descriptor, tick)
        elif loan is None:
            prefix = _PREFIX.pack(_INLINE, len(header), packed.size_bytes)
            self._write(prefix, [header, *packed.parts], None, tick)
        else:
            self._write(_PREFIX.pack(_SHARED, len(header), packed.size_bytes), [header], loan.descriptor, tick)

    def receive(self, *, tick: Tick = _forever) -> Message:
        """Return the next message; raise `Gone`, or `ProcessorFailed` for one that no process of ours would send."""
        prefix, descriptor = self._read_prefix(tick)
        try:
            body, header_bytes, body_bytes = self._checked(prefix)
            housekeeping, _, said = self._read(header_bytes, tick).partition(b"\n")
            memory, header = json.loads(housekeeping), json.loads(said)
            self._memory.lent.take_back(memory["returned"])
            self._memory.borrowed.forget(memory["dropped"])
            if body == _DESCRIPTOR:
                message, descriptor = Message(header, {}, descriptor), None
                return message
            if body == _INLINE:
                buffer = self._read(body_bytes, tick)
            else:
                buffer = self._memory.borrowed.borrow(int(memory["lent"]), descriptor, body_bytes)
            return Message(header, {**header["plain"], **unpack(header["arrays"], buffer, body_bytes)})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProcessorFailed(f"the processor's process sent nonsense ({error})") from error
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def readable(self) -> bool:
        """Whether something arrived: a message, or the other side's end."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def shut(self) -> None:
        """End the conversation: whoever waits at either end is told at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was faster

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _lend(self, packed: Packed) -> Loan | None:
        if packed.size_bytes <= INLINE_BYTES:
            return None
        if packed.size_bytes > self._memory.max_bytes:
            raise ProcessorFailed(f"the data of one prompt or output exceed {self._memory.max_bytes / 2**20:.0f} MiB")
        return self._memory.lent.lend(packed.parts, packed.size_bytes)

    def _housekeeping(self, loan: Loan | None) -> bytes:
        """Return what the other side is told of the memory that both share."""
        told = {"returned": self._memory.borrowed.returned(), "dropped": self._memory.lent.dropped()}
        return json.dumps({**told, "lent": loan.number if loan else None}).encode()

    def _write(self, prefix: bytes, parts: list[Buffer], descriptor: int | None, tick: Tick) -> None:
        descriptors = [] if descriptor is None else [descriptor]
        with self._sending:
            sent = self._patiently(tick, socket.send_fds, self._socket, [prefix], descriptors)
            for part in [prefix[sent:], *parts]:
                left = memoryview(part)
                while left:
                    left = left[self._patiently(tick, self._socket.send, left) :]

    def _read_prefix(self, tick: Tick) -> tuple[bytes, int | None]:
        args = self._socket, _PREFIX.size, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        begin, descriptors, *_ = self._patiently(tick, socket.recv_fds, *args)
        if not begin:
            raise Gone
        descriptor = descriptors[0] if descriptors else None
        try:
            return begin + bytes(self._read(_PREFIX.size - len(begin), tick)), descriptor
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise

    def _checked(self, prefix: bytes) -> tuple[int, int, int]:
        body, header_bytes, body_bytes = _PREFIX.unpack(prefix)
        most = {_INLINE: INLINE_BYTES, _SHARED: self._memory.max_bytes, _DESCRIPTOR: 0 if self._patient else -1}
        if header_bytes > MAX_HEADER_BYTES or body_bytes > most.get(body, -1):
            raise ValueError(f"a message of {header_bytes} + {body_bytes} bytes")
        return body, header_bytes, body_bytes

    def _read(self, count: int, tick: Tick) -> bytearray:
        buffer = bytearray(count)
        left = memoryview(buffer)
        while left:
            got = self._patiently(tick, self._socket.recv_into, left)
            if not got:
                raise Gone
            left = left[got:]
        return buffer

    def _patiently(self, tick: Tick, act: Callable[..., Any], *args: Any) -> Any:
        while True:
            tick()
            try:
                return act(*args)
            except TimeoutError:
                continue
            except OSError as error:
                raise Gone from error


def _dump(header: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(header, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProcessorFailed(f"a processor's data are neither arrays nor JSON: {error}") from error
    if len(text) > MAX_HEADER_BYTES:
        raise ProcessorFailed(f"a processor's data that are not arrays exceed {MAX_HEADER_BYTES / 2**20:.0f} MiB")
    return text
