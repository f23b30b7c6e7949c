"""Schemas of subscriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.schemas.jobs import Outgoing, Time
from penstock.jobs import Priority
from penstock.models import MAX_NAME_CHARS
from penstock.requests import DAY_S, Incoming
from penstock.storage.journal.subscription_progress import Progress, Published
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey
from penstock.times import Time as GivenTime

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
Collection = Annotated[str, StringConstraints(pattern=r"^[^,\s]{1,200}$")]
State = Literal["active", "paused", "waiting", "failing"]
#: Fields that requests, records and views have alike.
_SAME = ("stac", "model", "area", "filter", "max_jobs_a_day", "condition")


class SubscriptionWebhook(Incoming):
    """The receiver of the results of a subscription."""

    #: Address of the receiver.
    url: Url


class SubscriptionRequest(Incoming):
    """A subscription to create: each new item of a STAC API becomes a job."""

    name: Annotated[str, StringConstraints(pattern=NAME)] = Field(examples=["lagoon"])
    stac: Url = Field(
        description="Address of the STAC API, or of its search.", examples=["https://earth-search.aws.element84.com/v1"]
    )
    collections: Annotated[list[Collection], Field(min_length=1, max_length=20)] = Field(examples=[["sentinel-2-l2a"]])
    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)] = Field(examples=["csmask"])
    area: dict[str, Any] | None = Field(
        default=None,
        description=(
            "GeoJSON in EPSG:4326: a polygon, a feature or a collection of features, whose property `name` names each "
            "polygon. Items that do not overlap it are skipped; jobs of models with an `area` get it."
        ),
    )
    filter: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description=(
            "CQL2 text on the items' properties, with AND, OR, NOT, comparisons, BETWEEN, IN, LIKE and IS NULL. The "
            "service also checks it itself."
        ),
        examples=["eo:cloud_cover < 20"],
    )
    input: dict[str, Any] = Field(default_factory=dict, description="The rest of each job's input.")
    priority: Priority = Field(default="normal", description="Priority of the jobs.")
    every: Annotated[float, Field(ge=1, le=30 * DAY_S)] = Field(
        default=900, description="Seconds between two looks at the catalogue."
    )
    look_back: Annotated[float, Field(ge=0, le=400 * DAY_S)] = Field(
        default=10 * DAY_S,
        description=(
            "Seconds before the last look at which new and corrected items are still found: longer than the catalogue "
            "takes to publish an item after its time."
        ),
    )
    since: GivenTime | None = Field(
        default=None, strict=False, description="Items from this time on become jobs. Default: the creation."
    )
    max_jobs_a_day: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Jobs of the subscription in a UTC day, at most; further items wait."
    )
    webhook: SubscriptionWebhook | None = Field(
        default=None,
        description=(
            "Receiver of the ends of the jobs, signed as other webhooks. With a `condition`, it gets the event "
            "`subscription.changed` instead, for the results for which the condition holds."
        ),
    )
    condition: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = Field(
        default=None,
        description=(
            "Condition on the classes of a result and their change since the result before it: `area`, `gained` or "
            "`lost`, compared with m2, ha or km2, joined by and, or. It holds if it holds in one polygon of the area. "
            "`ignoring` names classes that hide the ground."
        ),
        examples=["gained(water) > 2 km2 ignoring cloud, cloud shadow"],
    )

    def value(self, key: SubscriptionKey, *, uid: str, fingerprint: str, at: float) -> Subscription:
        """Return the subscription of this request, created at the time `at`."""
        return Subscription(
            key=key,
            uid=uid,
            collections=tuple(dict.fromkeys(self.collections)),
            every_s=self.every,
            look_back_s=self.look_back,
            since_s=at if self.since is None else self.since.timestamp(),
            created_s=at,
            input=self.input,
            priority=self.priority,
            webhook=None if self.webhook is None else self.webhook.url,
            fingerprint=fingerprint,
            **{name: getattr(self, name) for name in _SAME},
        )


class SubscriptionCountsView(Outgoing):
    """The items of the last complete look, by what was decided."""

    found: int = Field(description="Items in the range of time that was looked at.")
    new: int = Field(description="Items that became jobs.")
    done: int = Field(description="Items decided before.")
    filtered: int = Field(description="Items that do not pass the filter.")
    outside: int = Field(description="Items that do not overlap the area.")
    waiting: int = Field(description="Items that wait: see `reason`.")
    unread: dict[str, int] = Field(description="Items that are passed over, by the reason, such as `without a time`.")


class SubscriptionNoteView(Outgoing):
    """A decision on an item."""

    at: Time = Field(validation_alias="at_s")
    item: str
    collection: str
    time: Time = Field(validation_alias="time_s", description="Time of the item.")
    decision: Literal["job", "filter", "area", "refused", "superseded", "waiting", "withdrawn"] = Field(
        description=(
            "`job`: it became a job. `filter`, `area`: skipped. `refused`: no job can be made of it. `superseded`: a "
            "later version was seen before. `waiting`: it becomes a job later. `withdrawn`: the catalogue no longer "
            "lists it; its job and its result stay."
        )
    )
    reason: str
    job: str | None


class PolygonView(Outgoing):
    """The condition in one polygon of the area."""

    name: str
    holds: bool
    counted_m2: float = Field(description="Area of the pixels that count: with data, and not ignored, at both dates.")
    m2: dict[str, float] = Field(description="The quantities of the condition, such as `gained(water)`.")


class SubscriptionResultView(Outgoing):
    """A result in the collection of a subscription."""

    item: str = Field(description="Id of the source item.")
    collection: str
    time: Time
    job: str
    url: str = Field(description="The STAC item of the result.")
    changed: bool | None = Field(description="True where the condition holds; null without a condition.")
    compared_with: str | None = Field(description="The source item of the result that it was compared with.")
    polygons: list[PolygonView]
    problem: str | None = Field(description="The reason why the condition could not be judged; it then holds.")


class SubscriptionView(Outgoing):
    """A subscription and its progress."""

    name: str
    object: Literal["subscription"] = "subscription"
    state: State = Field(
        description=(
            "`waiting`: items wait, for the reason in `reason`. `failing`: the last look failed. Both go on by "
            "themselves; `paused` only by a request."
        )
    )
    reason: str | None = Field(description="The reason of `waiting` or `failing`.")
    stac: str
    collections: list[str]
    model: str
    area: dict[str, Any] | None
    filter: str | None
    input: dict[str, Any]
    every: float
    look_back: float
    since: Time
    max_jobs_a_day: int | None
    webhook: str | None
    condition: str | None
    created_at: Time
    last_look_at: Time | None = Field(description="The last complete look at the catalogue.")
    next_look_at: Time | None = Field(description="Null while paused.")
    seen_until: Time = Field(description="All items up to this time are decided.")
    jobs: int = Field(description="Jobs made so far.")
    jobs_today: int
    last_look: SubscriptionCountsView
    notes: list[SubscriptionNoteView] = Field(description="The latest decisions, newest first.")
    collection_url: str = Field(description="The STAC collection of the results; it exists once there is one.")
    results: list[SubscriptionResultView] = Field(description="The latest results by their items' time, newest first.")


class SubscriptionList(Outgoing):
    """A tenant's subscriptions, by name, each with its latest ten notes."""

    subscriptions: list[SubscriptionView]


def subscription_view(found: Subscription, progress: Progress, base_url: str, *, most: int) -> SubscriptionView:
    """Return the view of a subscription with its latest notes and results, at most so many of each."""
    due_s = max(progress.due_s, found.created_s)
    place = f"{base_url}/v1/subscriptions/{found.key.id}/stac"
    latest = sorted(progress.published, key=lambda each: (each.time_s, each.folder), reverse=True)
    return SubscriptionView(
        name=found.key.id,
        state=_state(found, progress),
        reason=progress.problem or progress.waiting,
        collections=list(found.collections),
        input=dict(found.input),
        every=found.every_s,
        look_back=found.look_back_s,
        since=found.since_s,
        webhook=found.webhook,
        **{name: getattr(found, name) for name in _SAME},
        created_at=found.created_s,
        last_look_at=progress.looked_s,
        next_look_at=None if found.paused else due_s,
        seen_until=progress.cursor_s,
        jobs=progress.jobs,
        jobs_today=progress.jobs_today,
        last_look=SubscriptionCountsView.model_validate(progress.counts),
        notes=[SubscriptionNoteView.model_validate(note) for note in progress.notes[:most]],
        collection_url=f"{place}/collection.json",
        results=[_result(each, place) for each in latest[:most]],
    )


def _result(found: Published, place: str) -> SubscriptionResultView:
    change, (collection, _, item) = found.change or {}, found.item.partition("/")
    before = change.get("before")
    return SubscriptionResultView(
        item=item,
        collection=collection,
        time=found.time_s,
        job=found.job,
        url=f"{place}/items/{found.folder}/item.json",
        changed=change.get("holds"),
        compared_with=None if before is None else before.partition("/")[2],
        polygons=[PolygonView(**each) for each in change.get("polygons", ())],
        problem=change.get("problem"),
    )


def _state(found: Subscription, progress: Progress) -> State:
    if found.paused:
        return "paused"
    return "failing" if progress.problem else "waiting" if progress.waiting else "active"
