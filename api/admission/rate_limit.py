"""The rate limit: bounds each tenant's submissions per second, where the settings name a limit.

Each API process rejects submissions beyond the rate by itself, without reading them or calling Redis. Redis counts the
others, over all API processes. `Pace` spreads the reading of large bodies in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import ceil

from penstock.config import Settings
from penstock.errors import TooManyRequests
from penstock.storage.redis.fields import us
from penstock.storage.redis.scripts import Arg, AsyncJobStore, Command

#: Largest burst: this many submissions, or this many seconds' worth where that is more. Small, because a burst fills
#: the worker slots of all tenants.
BURST, BURST_S = 5, 0.25
#: Tolerance for rounding errors in sums of intervals.
_ROUNDING_S = 1e-6


class RateLimit:
    """A token bucket per tenant, kept as one number by the generic cell rate algorithm (ITU-T I.371).

    The number is the time at which all submissions so far would have arrived at the tenant's rate.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._even_s: dict[str, float] = {}
        #: True where any tenant has a limit.
        self.limits_any = settings.limits_rate

    def excess(self, tenant: str) -> TooManyRequests | None:
        """Count a submission and return None, or return the error of one beyond the rate, which is not counted."""
        per_s = self._settings.max_submissions_per_s(tenant)
        if per_s is None:
            return None
        now_s, interval_s = self._clock(), 1 / per_s
        even_s = max(now_s, self._even_s.get(tenant, now_s)) + interval_s
        early_s = even_s - now_s - _burst_s(interval_s)
        if early_s > _ROUNDING_S:
            return _too_early(per_s, early_s)
        self._even_s[tenant] = even_s
        return None

    async def common_excess(self, tenant: str, store: AsyncJobStore) -> TooManyRequests | None:
        """Count a submission over all API processes; return None, or the error of one beyond the rate.

        After an error, `excess` rejects the tenant's submissions until the next one is due.

        Raises a `JobStoreError`.
        """
        per_s = self._settings.max_submissions_per_s(tenant)
        if per_s is None:
            return None
        interval_s, burst_s = 1 / per_s, _burst_s(1 / per_s)
        early_s = await store.run(_count_submission(tenant, interval_s=interval_s, burst_s=burst_s))
        if early_s <= _ROUNDING_S:
            return None
        self._even_s[tenant] = self._clock() + early_s + burst_s - interval_s
        return _too_early(per_s, early_s)


def _count_submission(tenant: str, *, interval_s: float, burst_s: float) -> Command[float]:
    """Count a submission; the reply is 0, or the seconds by which it comes too early: then it is not counted.

    Submissions may come every `interval_s` on average, and earlier by `burst_s` at most.
    """
    args: dict[str, Arg] = {"tenant": tenant, "interval_us": us(interval_s), "burst_us": us(burst_s)}
    return Command("pace", args, lambda early_us: int(early_us) / 1e6)


def _burst_s(interval_s: float) -> float:
    return max(BURST * interval_s, BURST_S)


def _too_early(per_s: float, early_s: float) -> TooManyRequests:
    detail = f"this tenant may submit {per_s:g} times per second; try again in {ceil(early_s)} s"
    return TooManyRequests(detail, retry_after_s=early_s)


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
