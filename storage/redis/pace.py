"""The pace of a tenant's submissions to all API processes together."""

from __future__ import annotations

from penstock.storage.redis.fields import us
from penstock.storage.redis.scripts import Arg, Command


def count_submission(tenant: str, *, interval_s: float, burst_s: float) -> Command[float]:
    """Count a submission; the reply is 0, or the seconds by which it comes too early: then it is not counted.

    Submissions may come every `interval_s` on average, and earlier by `burst_s` at most.
    """
    args: dict[str, Arg] = {"tenant": tenant, "interval_us": us(interval_s), "burst_us": us(burst_s)}
    return Command("pace", args, lambda early_us: int(early_us) / 1e6)
