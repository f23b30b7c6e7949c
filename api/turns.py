"""Turns: how many submissions are under way at a time, batches apart, and whose is next when more want to be."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.errors import Overloaded

#: Submissions under way in one process. More only wait for each other: for its one loop, which is a part of each job's
#: wait (`docs/decisions/0021-floods.md`), and past 2 s Redis seems away.
AT_ONCE = 6
#: Batches whose requests are taken in at a time: each keeps a thread for long, and the rest of the API needs some.
BATCHES_AT_ONCE = 2
#: Of one tenant; what comes beyond is told to come back.
MAX_WAITING = 200


class Turns:
    """Lets so many through at a time. Those that wait take turns by tenant, so that a flood delays itself."""

    def __init__(self, at_once: int = AT_ONCE, max_waiting: int = MAX_WAITING) -> None:
        self._free = at_once
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def any_waits(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._waiting)

    def waiting(self, tenant: str) -> int:
        """Return how many of a tenant wait for their turn."""
        return len(self._waiting.get(tenant, ()))

    def overload(self, tenant: str) -> Overloaded | None:
        """Return why no more of a tenant may wait; None where they may."""
        waiting = self.waiting(tenant)
        if waiting < self._max_waiting:
            return None
        return Overloaded(f"{waiting} requests wait for their turn", retry_after_s=1)

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Hold a turn inside the block; raise `Overloaded` where too many of the tenant's wait already."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if (overload := self.overload(tenant)) is not None:
            raise overload
        line = self._waiting.setdefault(tenant, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was ours by then
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next tenant that waits, who then stands last."""
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[tenant] = line
            if not turn.done():  # its request may have gone
                turn.set_result(None)
                return
        self._free += 1
