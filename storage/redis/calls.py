"""Calls of threads to Redis: each takes an open connection, writes its commands at once and reads their replies.

redis-py's own way looks at the connection before each command and reports each to its observers, which costs more than
the call. redis-py opens the connections, logs in, packs commands and reads replies here too.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis
from redis.connection import Connection

#: A command: its words.
Words = Sequence[str | int]


def packed(words: Words) -> bytes:
    """Return a command as Redis gets it. The first word may be two, as `SCRIPT LOAD`. For other data: `TypeError`."""
    name, *rest = words
    text: bytes = hiredis.pack_command((*str(name).split(), *rest))  # type: ignore[arg-type]  # of any length
    return text


class Calls:
    """The calls of a client. Safe to use from many threads."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._retry: Any = client.get_retry()
        #: Open connections that no call uses; the one used last is at the end. As many as there were calls at a time.
        self._free: list[Connection] = []

    def call(self, *commands: Words) -> list[Any]:
        """Return the reply of each command, an error of the server among them; raise where the connection is lost.

        The commands must be safe to repeat: they are sent again after an error of the connection.
        """
        if self._retry is None:
            return self._call(commands)
        replies: list[Any] = self._retry.call_with_retry(lambda: self._call(commands), self._close_free)
        return replies

    def close(self) -> None:
        """Close the connections that no call uses."""
        self._close_free()

    def _call(self, commands: Sequence[Words]) -> list[Any]:
        connection = self._open()
        try:
            connection.send_packed_command([b"".join(map(packed, commands))], check_health=False)  # type: ignore[no-untyped-call]
            replies = [_reply(connection) for _ in commands]
        except BaseException:
            self._give_back(connection)
            raise
        self._free.append(connection)
        return replies

    def _open(self) -> Connection:
        with suppress(IndexError):
            return self._free.pop()
        connection: Connection = self._pool.get_connection()
        _wait_in_kernel(connection)
        return connection

    def _close_free(self, _error: Exception | None = None) -> None:
        """Close the connections that no call uses: where one was lost, the others are too."""
        with suppress(IndexError):
            while True:
                self._give_back(self._free.pop())

    def _give_back(self, connection: Connection) -> None:
        connection.disconnect()  # type: ignore[no-untyped-call]
        self._pool.release(connection)


def _wait_in_kernel(connection: Connection) -> None:
    """Let the kernel keep the connection's time limit: Python would call `poll` before each call of the socket.

    A wait that reaches the limit then raises redis-py's `ConnectionError` instead of `TimeoutError`; both are retried.
    """
    end = getattr(connection, "_sock", None)  # in every redis-py from 6 on
    timeout_s = end.gettimeout() if type(end) is socket.socket else None  # a TLS socket keeps Python's limit
    if end is not None and timeout_s:
        limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, limit)
        end.settimeout(None)


def _reply(connection: Connection) -> Any:
    """Return a reply, or the error that the server replies; raise the errors of the connection."""
    try:
        return connection.read_response(disconnect_on_error=False)
    except (redis.ConnectionError, redis.TimeoutError):
        raise
    except redis.RedisError as error:
        return error
