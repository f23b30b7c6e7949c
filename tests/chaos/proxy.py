"""A TCP proxy in the test's process that does to a connection what networks do: refuse, reset, swallow, delay, forget.

Every direction of every connection has a thread. What happens is decided chunk by chunk from `fault`, which may be
changed at any time.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 16
#: Closing a socket with this sends a reset instead of an orderly end.
_RESET = struct.pack("ii", 1, 0)


class Mode(StrEnum):
    """The proxy's treatment of the data that passes."""

    PASS = "pass"
    #: New connections are closed at once, old ones are cut.
    REFUSE = "refuse"
    #: Data that arrives is read and never answered.
    BLACK_HOLE = "black_hole"
    #: Every chunk waits `delay_s`.
    SLOW = "slow"
    #: Answers are cut off with a reset after `after_bytes` of a connection.
    RESET_MID_BODY = "reset_mid_body"
    #: HTTP only: every request is answered 503.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Fault:
    """The mode and its numbers."""

    mode: Mode = Mode.PASS
    delay_s: float = 0.0
    after_bytes: int = 0


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    near: socket.socket
    far: socket.socket
    #: The answer to what just passed must not arrive.
    lose_reply: bool = False
    answered_bytes: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        """Cut both sides without an orderly end."""
        self.closed.set()
        for side in (self.near, self.far):
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


#: Looks at a chunk: False = it goes no further, OSError = the connection is reset.
_Passes = Callable[[_Link, bytes], bool]


class Proxy:
    """Listens on `port` and passes to `target`; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._fault = Fault()
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._lost: dict[bytes, int] = {}
        self._ended = threading.Event()
        #: Times at which a mode was set.
        self.modes: list[tuple[float, Mode]] = [(time.time(), Mode.PASS)]
        #: Numbers of lost answers, by the mark of their request.
        self.lost: dict[bytes, int] = {}
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(10)

    def set(self, mode: Mode, *, delay_s: float = 0.0, after_bytes: int = 0) -> None:
        """Do this from now on. `REFUSE` also cuts the connections there are; the end of `BLACK_HOLE` cuts them too."""
        self.modes.append((time.time(), mode))
        swallowed = self._fault.mode is Mode.BLACK_HOLE
        self._fault = Fault(mode, delay_s, after_bytes)
        if swallowed or mode is Mode.REFUSE:
            self.cut()

    def away(self) -> list[tuple[float, float]]:
        """Return the times in which something else than `PASS` was set, from and to."""
        ends = [at_s for at_s, _ in self.modes[1:]] + [time.time()]
        return [(at_s, end_s) for (at_s, mode), end_s in zip(self.modes, ends, strict=True) if mode is not Mode.PASS]

    def lose_replies(self, mark: bytes, count: int) -> None:
        """Pass the next `count` requests that hold the mark on, and reset their connections instead of answering."""
        with self._lock:
            self._lost[mark] = self._lost.get(mark, 0) + count

    def cut(self) -> int:
        """Reset every connection and return how many there were."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.reset()
        return len(links)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._fault.mode is Mode.REFUSE:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            self._serve(near, far)

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        for side in (near, far):
            side.settimeout(None)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(near, far)
        with self._lock:
            self._links.add(link)
        threading.Thread(target=self._pump, args=(link, near, far, self._request), daemon=True).start()
        threading.Thread(target=self._pump, args=(link, far, near, self._answer), daemon=True).start()

    def _pump(self, link: _Link, source: socket.socket, sink: socket.socket, passes: _Passes) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                if passes(link, data):
                    sink.sendall(data)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            link.reset()
        if link.closed.is_set() or source is link.far:
            link.reset()
            with self._lock:
                self._links.discard(link)

    def _request(self, link: _Link, data: bytes) -> bool:
        fault = self._fault
        if fault.mode is Mode.BLACK_HOLE:
            return False
        if fault.mode is Mode.SLOW:
            self._ended.wait(fault.delay_s)
        if fault.mode is Mode.UNAVAILABLE:
            link.near.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            raise OSError("answered")
        link.lose_reply = link.lose_reply or self._loses(data)
        return True

    def _answer(self, link: _Link, data: bytes) -> bool:
        fault = self._fault
        if link.lose_reply:
            raise OSError("lost")
        if fault.mode is Mode.BLACK_HOLE:
            return False
        link.answered_bytes += len(data)
        if fault.mode is Mode.RESET_MID_BODY and link.answered_bytes > fault.after_bytes:
            link.near.sendall(data[: len(data) // 2])
            raise OSError("reset")
        return True

    def _loses(self, data: bytes) -> bool:
        with self._lock:
            for mark, left in self._lost.items():
                if left > 0 and mark in data:
                    self._lost[mark] = left - 1
                    self.lost[mark] = self.lost.get(mark, 0) + 1
                    return True
        return False
