"""Connections to addresses that were checked, within bounds that no server can stretch: time in all, bytes in all."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpcore

#: Looks a host up: (host, port) -> its addresses. Raises `OSError` or `UnicodeError` where there is none.
Resolver = Callable[[str, int], Sequence[str]]

#: What an answer may have before its body: interim answers (1xx) and the head.
MAX_HEAD_BYTES = 256 << 10
#: Sent at a time: a send of so little is done at once or not at all, so that a slow reader cannot stretch it.
PIECE_BYTES = 4096


def nothing() -> None:
    """Stand in for a check where nobody ends an exchange early."""


@dataclass(slots=True)
class Bounds:
    """What an exchange may take, redirects included."""

    #: By the monotonic clock.
    ends: float
    #: Called between two pieces of the exchange; whatever it raises ends it.
    check: Callable[[], None] = nothing
    bytes_left: int = MAX_HEAD_BYTES

    def left_s(self, timeout: float | None, late: type[Exception]) -> float:
        """Return how long the next step may take; raise `late` when the whole time is over."""
        self.check()
        left = self.ends - time.monotonic()
        if left <= 0:
            raise late("the whole time is over")
        return left if timeout is None else min(left, timeout)

    def take(self, count: int) -> None:
        """Count bytes that came in; raise `httpcore.RemoteProtocolError` past what there may be."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise httpcore.RemoteProtocolError("more bytes than the answer may have")

    def expect(self, body_bytes: int) -> None:
        """Allow a body of this size, in any chunks that a sane server makes."""
        self.bytes_left = 2 * body_bytes + MAX_HEAD_BYTES


def look_up(resolver: Resolver, host: str, port: int, wait_s: float) -> Sequence[str]:
    """Return a host's addresses, or raise what the resolver raises; `TimeoutError` when it takes too long.

    In a thread of its own: the system's resolver cannot be told how long to wait.
    """
    answer: Future[Sequence[str]] = Future()

    def ask() -> None:
        try:
            answer.set_result(resolver(host, port))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    return answer.result(wait_s)


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the addresses that were checked, whatever the host's name says by now."""

    def __init__(self, addresses: Sequence[str], bounds: Bounds) -> None:
        self._addresses = addresses
        self._bounds = bounds
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002  (the point of it)
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                left = self._bounds.left_s(timeout, httpcore.ConnectTimeout)
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _BoundStream(stream, self._bounds)
        raise failure


class _BoundStream(httpcore.NetworkStream):
    """A connection that ends at its bounds, however little of its idle time it uses."""

    def __init__(self, stream: httpcore.NetworkStream, bounds: Bounds) -> None:
        self._stream = stream
        self._bounds = bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._stream.read(max_bytes, self._bounds.left_s(timeout, httpcore.ReadTimeout))
        self._bounds.take(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE_BYTES):
            left = self._bounds.left_s(timeout, httpcore.WriteTimeout)
            self._stream.write(buffer[start : start + PIECE_BYTES], left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._bounds.left_s(timeout, httpcore.ConnectTimeout)
        return _BoundStream(self._stream.start_tls(ssl_context, server_hostname, left), self._bounds)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
