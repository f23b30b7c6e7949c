"""The server of the API: uvicorn with our protocol, and with few new connections in each turn of the event loop."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

from penstock.api.protocol import Protocol
from penstock.config import Settings

#: Connections that wait in the kernel. It delays further ones by a second, which costs this process nothing.
BACKLOG = 512
#: Connections that asyncio's event loop accepts in one turn, at most; uvloop accepts one. Each takes 0.15 ms.
ACCEPTED_IN_A_TURN = 16
#: Exit code where the app or its port cannot be opened, as uvicorn's.
STARTUP_FAILURE = 3
#: Seconds that requests have to end at a stop.
GRACE_S = 5


class Server(uvicorn.Server):
    """uvicorn's server, whose `backlog` is both limits at once: asyncio accepts as many in a turn as may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and let more connections wait than a turn accepts."""
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                with socket.fromfd(listener.fileno(), listener.family, listener.type) as own:
                    own.listen(BACKLOG)


def serve(app: FastAPI | str, settings: Settings, descriptor: int | None = None) -> None:
    """Serve an app, or the one that `module:factory` returns, until SIGTERM; exit with 3 where it cannot start.

    `descriptor` is a bound socket, which other processes may share: each accepts the connections that it gets to first.
    None = the settings' host and port.
    """
    options: dict[str, Any] = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": GRACE_S}
    server = Server(
        uvicorn.Config(
            app, factory=isinstance(app, str), host=settings.host, port=settings.port, http=Protocol,
            backlog=ACCEPTED_IN_A_TURN, **options,
        )
    )  # fmt: skip
    with suppress(KeyboardInterrupt):  # it has ended in order
        server.run(None if descriptor is None else [socket.socket(fileno=descriptor)])
    if not server.started:
        sys.exit(STARTUP_FAILURE)
