"""Connections that end without losing their last response.

A kernel that closes a socket with unread data resets the connection, and the client may never see the response that
was written before: a 413 to a large upload. So the side that writes is closed first, and what arrives is discarded
until the client closes its side (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

#: Seconds for which a client may go on sending.
LINGER_S = 5.0


class LingeringTransport(asyncio.Transport):
    """A transport whose `close` waits, while the client is sending, until it has read the response."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]
    ) -> None:
        """`is_sending` returns True while unread data of the client is expected."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._lingers = False

    def close(self) -> None:
        """End the connection, at most `LINGER_S` later where the client is sending."""
        transport = self._transport
        if self._lingers or transport.is_closing() or not self._is_sending() or not transport.can_write_eof():
            transport.close()
            return
        self._lingers = True
        transport.write_eof()
        transport.resume_reading()
        self._loop.call_later(LINGER_S, transport.abort)

    def is_closing(self) -> bool:
        """Return True where nothing more may be written."""
        return self._lingers or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data."""
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Read nothing, unless what is read is discarded."""
        if not self._lingers:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what asyncio knows of the connection."""
        return self._transport.get_extra_info(name, default)

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()
