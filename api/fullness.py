"""Fullness: which tenants had too many jobs a moment ago, so that nobody need ask again so soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import TooManyJobs

#: For how long a tenant's limit counts as reached. Jobs end meanwhile, but who was refused was asked to wait longer.
REMEMBERED_S = 0.25
#: A request that may be a repetition finds its job all the same: of a full tenant one may look each so many seconds.
LOOK_EVERY_S = 0.02


class Fullness:
    """What tenants at their limit were told, for a moment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Until when, and the words.
        self._told: dict[str, tuple[float, str, float | None]] = {}
        self._next_look_s: dict[str, float] = {}

    @property
    def any_is_full(self) -> bool:
        """Whether something is remembered of any tenant."""
        return bool(self._told)

    def note(self, tenant: str, error: TooManyJobs) -> None:
        """Remember what a tenant was told."""
        self._told[tenant] = self._clock() + REMEMBERED_S, error.detail, error.retry_after_s

    def of(self, tenant: str) -> TooManyJobs | None:
        """Return what the tenant was told a moment ago; None where it may have room."""
        if tenant not in self._told:
            return None
        until_s, detail, retry_after_s = self._told[tenant]
        if self._clock() < until_s:
            return TooManyJobs(detail, retry_after_s=retry_after_s)
        del self._told[tenant]
        self._next_look_s.pop(tenant, None)
        return None

    def may_look(self, tenant: str) -> bool:
        """Whether a request of a full tenant may look for its job now; then the next may a little later."""
        now_s = self._clock()
        if now_s < self._next_look_s.get(tenant, 0.0):
            return False
        self._next_look_s[tenant] = now_s + LOOK_EVERY_S
        return True
