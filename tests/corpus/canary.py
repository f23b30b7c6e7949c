"""A file that nobody may open and a port that nobody may call, and who says whether somebody did."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

_OPENED, _NON_BLOCKING = 0x20, os.O_NONBLOCK  #: IN_OPEN and IN_NONBLOCK of inotify(7)
_EVENT = struct.Struct("iIII")


class Canary:
    """Watches a file by inotify, which tells of every process's opening, and listens at a port of this machine."""

    def __init__(self, file: Path) -> None:
        """Begin to watch an existing file."""
        self.file = file
        libc = ctypes.CDLL(None, use_errno=True)
        self._watch = libc.inotify_init1(_NON_BLOCKING)
        if self._watch < 0 or libc.inotify_add_watch(self._watch, os.fsencode(file), _OPENED) < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)

    @property
    def url(self) -> str:
        """The address that nobody may call, of a file that would be there."""
        return f"http://127.0.0.1:{self.address[1]}/scene.tif"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.getsockname()
        return host, port

    def times_opened(self) -> int:
        """Return how often the file was opened since the last time it was asked."""
        try:
            return len(os.read(self._watch, 2**16)) // _EVENT.size
        except BlockingIOError:
            return 0

    def times_called(self) -> int:
        """Return how many calls wait at the port, and hang up."""
        called = 0
        while True:
            try:
                self._server.accept()[0].close()
            except BlockingIOError:
                return called
            called += 1

    def close(self) -> None:
        """Watch no more."""
        self._server.close()
        os.close(self._watch)
