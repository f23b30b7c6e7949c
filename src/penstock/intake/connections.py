"""Connections to checked addresses, with limits that no server can extend: total time, total bytes, least rate."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpcore2

from penstock.errors import FetchFailed

#: Resolves a host: (host, port) -> its addresses. Raises `OSError` or `UnicodeError` if it has none.
Resolver = Callable[[str, int], Sequence[str]]

#: Bytes of a response before its body, at most: interim responses (1xx) and headers.
MAX_HEAD_BYTES = 256 << 10
#: Bytes of one write: a write this small returns at once or blocks, so that the time limit is checked in between.
PIECE_BYTES = 4096


def no_check() -> None:
    """Do nothing: the check of an exchange that never ends early."""


@dataclass(slots=True)
class LeastRate:
    """The least rate of the server of one file, over all requests for it. Pure.

    Only the time during which the worker waits for the server counts: neither a slow disk nor a busy processor ends a
    download. The waits of all requests for a file add up, so that a server cannot delay each of a thousand ranges.
    """

    #: Bytes a second; 0 = no limit.
    bytes_per_s: int
    #: Seconds of waiting after which the rate is compared.
    window_s: float
    _received_bytes: int = 0
    _waited_s: float = 0.0
    _has_sent: bool = False

    def count(self, received_bytes: int, waited_s: float) -> None:
        """Count a wait and its bytes; raise `FetchFailed` at the end of a window with too few bytes.

        Raise `httpcore2.ReadTimeout` for a server that has sent nothing so far: the client sees the same error as for
        any other server without a response.
        """
        self._received_bytes += received_bytes
        self._has_sent = self._has_sent or received_bytes > 0
        self._waited_s += waited_s
        if self._waited_s < self.window_s:
            return
        if self._received_bytes < self.bytes_per_s * self._waited_s:
            if not self._has_sent:
                raise httpcore2.ReadTimeout("nothing was received")
            raise FetchFailed(
                f"the server sent fewer than {self.bytes_per_s:,} bytes a second for {self._waited_s:.0f} s"
            )
        self._received_bytes, self._waited_s = 0, 0.0


@dataclass(slots=True)
class Bounds:
    """The limits of an exchange, redirects included."""

    #: End of the exchange, by the monotonic clock.
    ends: float
    #: Called between two parts of the exchange; any error it raises ends the exchange.
    check: Callable[[], None] = no_check
    bytes_left: int = MAX_HEAD_BYTES
    #: Least rate of the server; None = the whole time is limit enough.
    rate: LeastRate | None = None

    def left_s(self, timeout: float | None, late: type[Exception]) -> float:
        """Return the seconds that the next step may take; raise `late` if the total time is over."""
        self.check()
        left = self.ends - time.monotonic()
        if left <= 0:
            raise late("the whole time is over")
        return left if timeout is None else min(left, timeout)

    def take(self, count: int) -> None:
        """Count received bytes; raise `httpcore2.RemoteProtocolError` above the limit."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise httpcore2.RemoteProtocolError("more bytes than the answer may have")

    def waited(self, since_s: float, received_bytes: int = 0) -> None:
        """Count a wait for the server, since a monotonic time; raise `FetchFailed` below the least rate."""
        if self.rate is not None:
            self.rate.count(received_bytes, time.monotonic() - since_s)

    def expect(self, body_bytes: int) -> None:
        """Allow a body of this size, in chunks of any reasonable size."""
        self.bytes_left = 2 * body_bytes + MAX_HEAD_BYTES


def look_up(resolver: Resolver, host: str, port: int, wait_s: float) -> Sequence[str]:
    """Return a host's addresses; raise the resolver's errors, or `TimeoutError` after `wait_s`.

    The system's resolver has no timeout, so it runs in a thread of its own.
    """
    answer: Future[Sequence[str]] = Future()

    def ask() -> None:
        try:
            answer.set_result(resolver(host, port))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    return answer.result(wait_s)


class PinnedBackend(httpcore2.NetworkBackend):
    """Connects to the checked addresses, whatever the host's name resolves to by now."""

    def __init__(self, addresses: Sequence[str], bounds: Bounds) -> None:
        self._addresses = addresses
        self._bounds = bounds
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002  (ignored on purpose)
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        failure: Exception = httpcore2.ConnectError("no address")
        for address in self._addresses:
            begun_s = time.monotonic()
            try:
                left = self._bounds.left_s(timeout, httpcore2.ConnectTimeout)
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _BoundStream(stream, self._bounds)
            finally:
                self._bounds.waited(begun_s)
        raise failure


class _BoundStream(httpcore2.NetworkStream):
    """A connection that ends at its limits, even if it is never idle for long."""

    def __init__(self, stream: httpcore2.NetworkStream, bounds: Bounds) -> None:
        self._stream = stream
        self._bounds = bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left, begun_s, data = self._bounds.left_s(timeout, httpcore2.ReadTimeout), time.monotonic(), b""
        try:
            data = self._stream.read(max_bytes, left)
        finally:
            self._bounds.waited(begun_s, len(data))
        self._bounds.take(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE_BYTES):
            left = self._bounds.left_s(timeout, httpcore2.WriteTimeout)
            self._stream.write(buffer[start : start + PIECE_BYTES], left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        left, begun_s = self._bounds.left_s(timeout, httpcore2.ConnectTimeout), time.monotonic()
        try:
            return _BoundStream(self._stream.start_tls(ssl_context, server_hostname, left), self._bounds)
        finally:
            self._bounds.waited(begun_s)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
