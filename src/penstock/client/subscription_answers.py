"""The API's answers about subscriptions as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.client.answers import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionNote:
    """A decision on an item of the catalogue: `decision` is `job`, `filter`, `area`, `waiting` and so on."""

    at: datetime
    item: str
    collection: str
    #: Time of the item.
    time: datetime
    decision: str
    reason: str = ""
    #: The job that the item became.
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCounts:
    """The items of the last complete look at the catalogue, by what was decided."""

    found: int = 0
    new: int = 0
    done: int = 0
    filtered: int = 0
    outside: int = 0
    waiting: int = 0
    #: Items that are passed over, by the reason, such as `without a time`.
    unread: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolygonChange:
    """The condition in one polygon of the area; `m2` has its quantities, such as `gained(water)`."""

    name: str
    holds: bool
    counted_m2: float = 0
    m2: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionResult:
    """A result in the collection of a subscription; `url` is its STAC item."""

    item: str
    collection: str
    time: datetime
    job: str
    url: str
    #: True where the condition holds; None without a condition.
    changed: bool | None = None
    compared_with: str | None = None
    polygons: tuple[PolygonChange, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(Answer):
    """A subscription: `state` is `active`, `paused`, `waiting` or `failing`, the latter two with a `reason`."""

    name: str
    state: str
    reason: str | None = None
    stac: str
    collections: tuple[str, ...] = ()
    model: str
    area: Mapping[str, Any] | None = None
    filter: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    #: Seconds between two looks, and before the last one at which late items are still found.
    every: float = 0
    look_back: float = 0
    since: datetime | None = None
    max_jobs_a_day: int | None = None
    webhook: str | None = None
    condition: str | None = None
    created_at: datetime
    last_look_at: datetime | None = None
    next_look_at: datetime | None = None
    #: All items up to this time are decided.
    seen_until: datetime | None = None
    jobs: int = 0
    jobs_today: int = 0
    last_look: SubscriptionCounts = field(default_factory=SubscriptionCounts)
    #: The latest decisions, newest first.
    notes: tuple[SubscriptionNote, ...] = ()
    #: The STAC collection of the results, and the latest results, newest first.
    collection_url: str = ""
    results: tuple[SubscriptionResult, ...] = ()
