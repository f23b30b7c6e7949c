"""Concurrency limits: bound the submissions in progress at a time and share the capacity fairly between tenants.

`RecentRefusals` remembers tenants at their job limit, which saves a Redis call per further submission.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from penstock.errors import Overloaded, TooManyJobs

#: Concurrent submissions in one process. They share the syncs of Redis; more would only wait for the one event
#: loop.
MAX_CONCURRENT = 16
#: Batches whose requests are stored at a time. Each occupies a thread for long; other routes need threads too.
MAX_CONCURRENT_BATCHES = 2
#: Waiting submissions of one tenant. Further ones are rejected with `Retry-After`.
MAX_WAITING = 200
#: Seconds that the first of a tenant's waiting submissions may wait before further ones are rejected. A longer line
#: would admit submissions whose clients have left.
LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Waiter:
    turn: asyncio.Future[None]
    since_s: float


class ConcurrencyLimit:
    """A semaphore that serves waiting tenants round-robin, so that a flood of one tenant delays only that tenant."""

    def __init__(
        self,
        limit: int = MAX_CONCURRENT,
        max_waiting: int = MAX_WAITING,
        late_s: float = LATE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = limit
        self._max_waiting = max_waiting
        self._late_s = late_s
        self._clock = clock
        #: Tenant -> the line of those who wait, oldest first. Those who left leave their line at once.
        self._waiting: OrderedDict[str, OrderedDict[int, _Waiter]] = OrderedDict()
        self._numbers = count()

    @property
    def any_waiting(self) -> bool:
        """True where any request waits."""
        return bool(self._waiting)

    def waiting(self, tenant: str) -> int:
        """Return the number of a tenant's waiting requests."""
        return len(self._waiting.get(tenant, ()))

    def overload(self, tenant: str) -> Overloaded | None:
        """Return the error for another request of a tenant; None if the request may wait."""
        line = self._waiting.get(tenant)
        if not line:
            return None
        waited_s = self._clock() - next(iter(line.values())).since_s
        if len(line) < self._max_waiting and waited_s < self._late_s:
            return None
        return Overloaded(f"{len(line)} requests of this tenant are already waiting; try again in 1 s", retry_after_s=1)

    @asynccontextmanager
    async def acquire(self, tenant: str) -> AsyncIterator[None]:
        """Occupy one place inside the block; raise the errors of `enter`."""
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave()

    @property
    def has_room(self) -> bool:
        """True where `enter` returns without waiting."""
        return self._free > 0

    async def enter(self, tenant: str) -> None:
        """Occupy one place until `leave`; raise `Overloaded` where too many requests of the tenant wait.

        A cancelled call loses its turn to the next one.
        """
        if self._free > 0:
            self._free -= 1
            return
        if (overload := self.overload(tenant)) is not None:
            raise overload
        line, number = self._waiting.setdefault(tenant, OrderedDict()), next(self._numbers)
        waiter = _Waiter(asyncio.get_running_loop().create_future(), self._clock())
        line[number] = waiter
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():  # the place was assigned before the cancellation
                self.leave()
            else:
                self._forget(tenant, number)
            raise

    def leave(self) -> None:
        """Assign the place to the next waiting tenant, which then moves to the end of the order."""
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            _, waiter = line.popitem(last=False)
            if line:
                self._waiting[tenant] = line
            if not waiter.turn.done():  # done: it is being cancelled
                waiter.turn.set_result(None)
                return
        self._free += 1

    def _forget(self, tenant: str, number: int) -> None:
        line = self._waiting.get(tenant, OrderedDict())
        line.pop(number, None)
        if not line:
            self._waiting.pop(tenant, None)


#: Seconds a refusal is remembered. Jobs may end meanwhile, but `Retry-After` asked the client to wait longer.
REMEMBERED_S = 0.25
#: Seconds between look-ups for a tenant at its limit: a repeated request must still find its job.
LOOK_UP_INTERVAL_S = 0.02


class RecentRefusals:
    """The latest `TooManyJobs` of each tenant, kept for `REMEMBERED_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Tenant -> end of validity (monotonic), detail, `retry_after_s`.
        self._refusals: dict[str, tuple[float, str, float | None]] = {}
        self._next_look_up_s: dict[str, float] = {}

    @property
    def any_recent(self) -> bool:
        """True where any tenant's refusal is remembered."""
        return bool(self._refusals)

    def record(self, tenant: str, error: TooManyJobs) -> None:
        """Remember a tenant's refusal."""
        self._refusals[tenant] = self._clock() + REMEMBERED_S, error.detail, error.retry_after_s

    def recent(self, tenant: str) -> TooManyJobs | None:
        """Return a tenant's recent refusal, None where it may have room."""
        if tenant not in self._refusals:
            return None
        until_s, detail, retry_after_s = self._refusals[tenant]
        if self._clock() < until_s:
            return TooManyJobs(detail, retry_after_s=retry_after_s)
        del self._refusals[tenant]
        self._next_look_up_s.pop(tenant, None)
        return None

    def may_look_up(self, tenant: str) -> bool:
        """Return True where a repeated request may look up its job now; at most one in `LOOK_UP_INTERVAL_S`."""
        now_s = self._clock()
        if now_s < self._next_look_up_s.get(tenant, 0.0):
            return False
        self._next_look_up_s[tenant] = now_s + LOOK_UP_INTERVAL_S
        return True
