"""A guard whose name server belongs to the test."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.config import Settings
from penstock.intake.guard import GuardedClient, TimeLimits
from tests.support.web_server import Server

LIMIT = 1_000_000
SHORT = TimeLimits(connect_s=1, idle_s=0.3, total_s=1)


@dataclass
class Names:
    """A resolver that knows these names, and remembers what it was asked."""

    known: dict[str, Sequence[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return self.known[host]


def client(*servers: Server, patience: TimeLimits = SHORT, **known: Sequence[str]) -> GuardedClient:
    """Return a client that may ask `media.example` on the servers' ports, and any public host."""
    pairs = tuple(f"media.example:{server.port}" for server in servers)
    names = Names({"media.example": ["127.0.0.1"]} | {f"{name}.example": found for name, found in known.items()})
    return GuardedClient(Settings(allowed_hosts=pairs, fetch_any_public_host=True), names, patience)


def url(server: Server, path: str = "/scene.tif") -> str:
    """Return where a server is, by its name."""
    return f"http://media.example:{server.port}{path}"
