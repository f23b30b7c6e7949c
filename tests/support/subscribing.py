"""A keeper's subscriptions without a worker, for tests: jobs are submitted, and end as the test says."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from penstock.config import Settings
from penstock.errors import ObjectNotFound
from penstock.jobs import Claim, Job, JobKey, State
from penstock.models import LINKS, CatalogueEntry
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.subscription_progress import Progress, read_progress
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey, create_subscription
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import catalogues, listing
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.subscription_polls import SubscriptionPolls
from tests.support.claims import claim_up_to
from tests.support.service import ECHO
from tests.support.stac_api import StacApi

DAY_S = 86_400.0
KEY = SubscriptionKey("default", "lagoon")
#: A model that takes STAC items.
MAPPER = CatalogueEntry(
    **{
        **ECHO.model_dump(), "name": "mapper", "title": "Mapper", "aliases": (),
        "input_schema": {
            "type": "object",
            "properties": {
                "stac": {"type": "object", LINKS: True},
                "area": {"type": "object"},
                "outputs": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["stac"],
            "additionalProperties": False,
        },
    }
)  # fmt: skip


class Queues(SimpleQueue[str]):
    """The hints that were sent."""

    def send(self, queue: str) -> None:
        self.put(queue)


def subscription(api: StacApi, **changes: Any) -> Subscription:
    """Return a subscription to a test's catalogue, which began ten days ago."""
    now_s = time.time()
    usual: dict[str, Any] = {
        "key": KEY, "uid": "uid-1", "stac": api.url, "collections": ("scenes",), "model": "mapper", "every_s": 900.0,
        "look_back_s": 5 * DAY_S, "since_s": now_s - 10 * DAY_S, "created_s": now_s,
    }  # fmt: skip
    return Subscription(**{**usual, **changes})


@dataclass
class Subscribed:
    """A service's stores, a catalogue, and keepers with a clock of their own."""

    api: StacApi
    store: JobStore
    objects: ObjectStore
    folder: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    now_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.publish()

    def publish(self) -> None:
        """Publish the model as a worker does."""
        self.store.run(catalogues.publish([MAPPER], worker="w", queues=["default"], alive_s=600))

    @property
    def settings(self) -> Settings:
        options: dict[str, Any] = {"data": self.folder, "allowed_hosts": (f"127.0.0.1:{self.api.port}",)}
        return Settings(**(options | self.overrides))

    def create(self, **changes: Any) -> Subscription:
        """Create a subscription."""
        found, created = create_subscription(self.objects, subscription(self.api, **changes))
        assert created
        return found

    def keeper(self) -> SubscriptionPolls:
        """Return a keeper that has seen nothing."""
        hints: Any = Queues()
        return SubscriptionPolls(self.settings, self.store, self.objects, hints, lambda: self.now_s, lambda _: None)

    def look(self, keeper: SubscriptionPolls | None = None, *, after_s: float = 0) -> Progress:
        """Let time pass and a keeper take steps until nothing more is due; return the progress."""
        self.now_s += after_s
        keeper = keeper or self.keeper()
        found = None
        while found is None or found.due_s <= self.now_s:
            keeper.step()
            found = self.progress()
        return found

    def progress(self) -> Progress:
        found = read_progress(self.objects, KEY)
        assert found is not None
        return found

    def jobs(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        return list(reversed(self.store.run(listing.list_jobs("default", limit=200)).jobs))

    def items(self) -> list[str]:
        """Return the items of all jobs, in the order of their submission."""
        return [str(job.submission.metadata["item"]) for job in self.jobs()]

    def end(self, state: State = State.SUCCEEDED) -> list[JobKey]:
        """End all waiting jobs."""
        claims: list[Claim] = claim_up_to(self.store, 100, "default", models=["mapper"], max_tenant_running=200)
        for claim in claims:
            Journal(self.store, self.objects).run(journal.complete(claim, Outcome(state)))
        return [claim.key for claim in claims]

    def object_names(self, prefix: str) -> list[str]:
        with suppress(ObjectNotFound):
            return [info.key.removeprefix(prefix) for info in self.objects.list(prefix)]
        return []
