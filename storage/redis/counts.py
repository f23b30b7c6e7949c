"""Counts for monitoring, which the scripts update as jobs end and webhooks are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.storage.redis.fields import MICRO, fields
from penstock.storage.redis.scripts import Command

_INFINITE = "inf"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by their size: `counts[i]` of them were at most `bounds_s[i]` and above the previous bound."""

    #: Upper bounds, the last of them infinite.
    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since Redis was empty. They name no tenant and no job."""

    #: (model, status) -> ended jobs.
    ended: Mapping[tuple[str, str], int]
    #: `delivered`, `retried` or `failed` -> tries of webhooks.
    tries: Mapping[str, int]
    #: (model, phase) -> times of the attempts that ended a job.
    phases: Mapping[tuple[str, str], Histogram]
    #: Pending webhook deliveries.
    waiting_webhooks: int
    #: Every queue that ever had a job or a worker.
    queues: frozenset[str]
    #: (source, outcome) -> events of buckets.
    drop_events: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Events that the keeper has not processed yet.
    waiting_drop_events: int = 0
    #: (model, `encoder` or `result`, `hit` or `miss`) -> cache look-ups by ended jobs.
    lookups: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    #: Seconds for which the keeper is behind with purging: since the end of the oldest retention that is over.
    retention_lag_s: float = 0.0
    #: (model, measure) -> sum over the ended jobs of all tenants; `storage.redis.usage.MEASURES`.
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Model -> attempts whose worker died or hung, so that their lease ended.
    lost: Mapping[str, int] = field(default_factory=dict)
    #: Model -> failed attempts after which the job was tried again.
    retried: Mapping[str, int] = field(default_factory=dict)
    #: Seconds that all workers lived, and seconds in which their devices computed.
    worker_s: float = 0.0
    worker_busy_s: float = 0.0
    #: True while a keeper is the active one.
    keeper_active: bool = False
    #: Seconds since a keeper last looked at leases; None before the first time.
    swept_s: float | None = None
    #: Bytes of Redis, and their limit; 0 without one.
    redis_bytes: int = 0
    redis_limit_bytes: int = 0


def counts() -> Command[Counts]:
    """Return all counts."""
    return Command("counts", {}, _counts)


def _counts(reply: Sequence[Any]) -> Counts:
    ended, tries, phases, bounds_ms, waiting, queues, events, waiting_events, lookups, lag_us, used, *others = reply
    lost, retried, workers, keeper, swept_us, redis_bytes, redis_limit_bytes = others
    times = fields(workers)
    return Counts(
        ended={_pair(name): int(n) for name, n in fields(ended).items()},
        tries={name: int(n) for name, n in fields(tries).items()},
        phases=_histograms(fields(phases), bounds_ms),
        waiting_webhooks=waiting,
        queues=frozenset(queues),
        drop_events={_pair(name): int(n) for name, n in fields(events).items()},
        waiting_drop_events=waiting_events,
        lookups={_three(name): int(n) for name, n in fields(lookups).items()},
        retention_lag_s=int(lag_us) / MICRO,
        used={_pair(name): int(n) for name, n in fields(used).items()},
        lost={model: int(n) for model, n in fields(lost).items()},
        retried={model: int(n) for model, n in fields(retried).items()},
        worker_s=int(times.get("lived_us", 0)) / MICRO,
        worker_busy_s=int(times.get("busy_us", 0)) / MICRO,
        keeper_active=bool(keeper),
        swept_s=None if swept_us is None else int(swept_us) / MICRO,
        redis_bytes=redis_bytes,
        redis_limit_bytes=redis_limit_bytes,
    )


def _histograms(found: Mapping[str, str], bounds_ms: Sequence[int]) -> dict[tuple[str, str], Histogram]:
    names = sorted({_pair(name.rpartition(" ")[0]) for name in found})
    bounds_s = (*(ms / 1000 for ms in bounds_ms), float(_INFINITE))

    def of(name: tuple[str, str]) -> Histogram:
        counts = (int(found.get(f"{' '.join(name)} {bound}", 0)) for bound in (*bounds_ms, _INFINITE))
        return Histogram(bounds_s, tuple(counts), int(found[f"{' '.join(name)} sum"]) / MICRO)

    return {name: of(name) for name in names}


def _three(name: str) -> tuple[str, str, str]:
    first, second, third = name.split(" ")
    return first, second, third


def _pair(name: str) -> tuple[str, str]:
    first, _, second = name.partition(" ")
    return first, second
