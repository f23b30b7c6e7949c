"""The rate limit: how fast a tenant may submit to this process, where one is set. What is beyond is refused unread."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

from penstock.config import Settings
from penstock.errors import TooManyRequests

#: What may come at once: so many submissions, or so many seconds' worth where that is more. A burst fills the slots for
#: everybody, so it is small.
BURST, BURST_S = 5, 0.25
#: Sums of intervals are not exact.
_ROUNDING_S = 1e-6


class RateLimit:
    """Counts submissions by the generic cell rate algorithm (ITU-T I.371): a token bucket that is one number a tenant.

    The number is the time by which all of the tenant's submissions so far would have come at its rate.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._even_s: dict[str, float] = {}
        #: Whether any tenant has a limit.
        self.limits_any = settings.limits_rate

    def excess(self, tenant: str) -> TooManyRequests | None:
        """Count a submission; return why it may not be, which costs the tenant nothing, or None where it may."""
        per_s = self._settings.max_submissions_per_s(tenant)
        if per_s is None:
            return None
        now_s, interval_s = self._clock(), 1 / per_s
        even_s = max(now_s, self._even_s.get(tenant, now_s)) + interval_s
        early_s = even_s - now_s - max(BURST * interval_s, BURST_S)
        if early_s > _ROUNDING_S:
            detail = f"this tenant may submit {per_s:g} times a second: try again in {ceil(early_s)} s"
            return TooManyRequests(detail, retry_after_s=early_s)
        self._even_s[tenant] = even_s
        return None
