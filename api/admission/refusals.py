"""Recent refusals: remembers tenants at their job limit, which saves a Redis call per further submission."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import TooManyJobs

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
