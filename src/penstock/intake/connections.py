"""Connections to checked addresses, within limits that no server can stretch: total time and total bytes."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpcore

#: Resolves a host: (host, port) -> its addresses. Raises `OSError` or `UnicodeError` if it has none.
Resolver = Callable[[str, int], Sequence[str]]

#: Bytes of a response before its body, at most: interim responses (1xx) and headers.
MAX_HEAD_BYTES = 256 << 10
#: Bytes sent at once: few enough to be sent at once or not at all, so that a slow reader cannot stretch the time.
PIECE_BYTES = 4096


def no_check() -> None:
    """Do nothing: the check of an exchange that never ends early."""


@dataclass(slots=True)
class Bounds:
    """The limits of an exchange, redirects included."""

    #: End of the exchange, by the monotonic clock.
    ends: float
    #: Called between two parts of the exchange; any error it raises ends the exchange.
    check: Callable[[], None] = no_check
    bytes_left: int = MAX_HEAD_BYTES

    def left_s(self, timeout: float | None, late: type[Exception]) -> float:
        """Return the seconds that the next step may take; raise `late` if the total time is over."""
        self.check()
        left = self.ends - time.monotonic()
        if left <= 0:
            raise late("the whole time is over")
        return left if timeout is None else min(left, timeout)

    def take(self, count: int) -> None:
        """Count received bytes; raise `httpcore.RemoteProtocolError` above the limit."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise httpcore.RemoteProtocolError("more bytes than the answer may have")

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


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the checked addresses, whatever the host's name resolves to by now."""

    def __init__(self, addresses: Sequence[str], bounds: Bounds) -> None:
        self._addresses = addresses
        self._bounds = bounds
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002  (ignored on purpose)
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
    """A connection that ends at its limits, even if it is never idle for long."""

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
