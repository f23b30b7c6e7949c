"""The pace of large bodies: bounds the bytes per second that this process reads of one tenant's large JSON bodies.

Without the bound, large bodies would fill each turn of the event loop and delay the responses to other tenants.
"""

from __future__ import annotations

import asyncio
import time

#: Bytes of a body that are read at once.
FREE_BYTES = 64 * 1024
#: Bytes per second after the first `FREE_BYTES`; one megabyte takes 3 ms of the event loop.
BYTES_PER_S = 20_000_000


class Pace:
    """The time at which each tenant's next bytes are due, as `RateLimit` keeps it."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}

    async def wait(self, tenant: str, size_bytes: int) -> None:
        """Wait until these bytes of a tenant's large bodies are due."""
        now_s = time.monotonic()
        due_s = max(now_s, self._due_s.get(tenant, now_s))
        self._due_s[tenant] = due_s + size_bytes / BYTES_PER_S
        await asyncio.sleep(due_s - now_s)
