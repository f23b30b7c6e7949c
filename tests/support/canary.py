"""A canary for what this process asks of the system: look-ups, connections, files, each seen before it happens."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Canary:
    """Requests that were seen while it sang."""

    #: Names of hosts, by whatever function; what is written as an address is asked of nobody.
    looked_up: list[str] = field(default_factory=list)
    #: Addresses of connections that were tried, by any socket.
    connected: list[tuple[Any, ...]] = field(default_factory=list)
    #: Paths.
    opened: list[str] = field(default_factory=list)


@contextmanager
def canary() -> Iterator[Canary]:
    """Note what happens inside the block, in any thread."""
    if not _hooked:
        sys.addaudithook(_note)
        _hooked.append(True)
    singing = Canary()
    _singing.append(singing)
    try:
        yield singing
    finally:
        _singing.remove(singing)


#: A hook cannot be taken away again: there is one, and these listen to it.
_singing: list[Canary] = []
_hooked: list[bool] = []


def _note(event: str, args: tuple[Any, ...]) -> None:
    for each in _singing:
        if event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_address(str(args[0])):
            each.looked_up.append(str(args[0]))
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
            each.connected.append(args[1])
        elif event == "open":
            each.opened.append(str(args[0]))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
