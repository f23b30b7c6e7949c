"""Drop rules: those of the service's settings, and the results of the keeper's last listings."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from penstock.api.errors import problems
from penstock.api.schemas.jobs import Outgoing
from penstock.api.services import Api
from penstock.config import Settings
from penstock.config_tables import DropRule
from penstock.storage.drop_rules import listed_every_s
from penstock.storage.redis.drop_events import Pass, Passes, passes, problem_with

router = APIRouter(prefix="/v1/drops", tags=["queues"], responses=problems(503))


class ListingView(Outgoing):
    """A listing of a rule's objects."""

    found: int = Field(description="Objects of the rule.")
    waiting: int = Field(description="Objects without a result yet.")
    failed: int = Field(description="Error markers.")
    took_s: float
    age_s: float = Field(description="Seconds since the listing.")
    takes: tuple[str, ...] = Field(description="Endings of the names of the rule's files; empty: not known yet.")
    ignored: int = Field(description="Files under the prefix without these endings, or with a product's metadata.")
    ignored_files: tuple[str, ...] = Field(description="The first of the ignored files.")
    passed_over: tuple[str, ...] = Field(description="The first names that were skipped, because they are no keys.")
    gone: tuple[str, ...] = Field(description="The latest objects that were missing when their jobs ended.")
    problem: str | None = Field(description="The reason for which the listing failed or is incomplete.")
    failures: dict[str, str] = Field(description="The first failed objects, by key, with the reasons.")


class DropRuleView(Outgoing):
    """A drop rule and its last listing; null before the first."""

    name: str
    bucket: str
    prefix: str
    model: str
    tenant: str
    #: Source of events; null: the bucket is only listed.
    events: str | None
    problem: str | None
    last_pass: ListingView | None


class DropList(Outgoing):
    """The drop rules of the service."""

    rules: list[DropRuleView]
    events_waiting: int


@router.get("")
async def list_drops(api: Api) -> DropList:
    """List the drop rules of the service's settings with the numbers of the keeper's last listings."""
    return drop_list(api.settings, await api.jobs.run(passes()))


def drop_list(settings: Settings, found: Passes) -> DropList:
    """Return the drop rules of settings with their last listings."""
    views = [
        _view(rule, found.rules.get(rule.name), problem_with(found, rule.name, rule.queue_url, every_s))
        for rule in settings.drops
        for every_s in (listed_every_s(rule, settings),)
    ]
    return DropList(rules=views, events_waiting=found.events_waiting)


def _view(rule: DropRule, last: Pass | None, problem: str | None) -> DropRuleView:
    listing = None if last is None else ListingView.model_validate(last, from_attributes=True)
    return DropRuleView(
        name=rule.name, bucket=rule.bucket, prefix=rule.prefix, model=rule.model, tenant=rule.tenant,
        events=rule.events, problem=problem, last_pass=listing,
    )  # fmt: skip
