"""The API's tests with a real server: the app on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from penstock.api.framing import Framing
from tests.support.service import Service


class Server(uvicorn.Server):
    """A server that says when it listens, and leaves the test's signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@asynccontextmanager
async def listening(service: Service, port: int = 0) -> AsyncIterator[Server]:
    """Serve the app on a port of its own, or on the one that its links name."""
    server = Server(
        uvicorn.Config(
            Framing(service.app), port=port, http="h11", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
    )
    task = asyncio.create_task(server._serve())
    await asyncio.wait_for(server.listening.wait(), 10)
    try:
        yield server
    finally:
        server.should_exit = True
        await task
