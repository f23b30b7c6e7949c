"""The services that routes use: settings, stores, admission control, and the hint sender."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import structlog
from fastapi import Depends, Request

from penstock.api.admission.concurrency import ConcurrencyLimit, RecentRefusals
from penstock.api.admission.rate_limit import Pace, RateLimit
from penstock.api.isolation import Isolation
from penstock.api.keyring import KeyRing
from penstock.api.model_catalogue import ModelCatalogue
from penstock.api.schemas.jobs import JobView, UriOf, job_view
from penstock.config import Settings
from penstock.errors import ObjectStoreUnavailable
from penstock.jobs import Job
from penstock.storage.journal import journal
from penstock.storage.journal.environments import Environments
from penstock.storage.journal.journal import AsyncJournal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.records import AsyncJobStore, QueueLimits

#: Unsent hints. Further hints are dropped; the keeper sends its own.
MAX_WAITING_HINTS = 1000
#: Seconds for which the answer about a job waits for the description of its environment.
MAX_ENVIRONMENT_S = 2.0

log = structlog.get_logger(__name__)


class Hints:
    """Sends hints in a background thread, so that no request waits for the broker."""

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send = send
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hints")
        #: Queues whose hint is not being sent yet: it serves all jobs submitted until then.
        self._waiting: set[str] = set()

    def send(self, queue: str) -> None:
        """Schedule a hint, unless one is; drop it when too many are unsent. Call from the event loop only."""
        if queue not in self._waiting and len(self._waiting) < MAX_WAITING_HINTS:
            self._waiting.add(queue)
            self._pool.submit(self._send_one, queue)

    def close(self) -> None:
        """Drop unsent hints and wait for the hint in progress."""
        self._pool.shutdown(cancel_futures=True)

    def _send_one(self, queue: str) -> None:
        self._waiting.discard(queue)  # before it looks for a hint that waits
        try:
            self._send(queue)
        except Exception as error:  # a lost hint costs latency, never a job
            log.warning("hint.lost", queue=queue, error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one app."""

    settings: Settings
    jobs: AsyncJobStore
    objects: ObjectStore
    hints: Hints
    #: Limits concurrent submissions.
    concurrency: ConcurrencyLimit
    #: Limits batches whose requests are being stored.
    batch_concurrency: ConcurrencyLimit
    #: Remembers tenants at their job limit.
    refusals: RecentRefusals
    #: Limits each tenant's submissions per second.
    rate_limit: RateLimit
    #: Limits the bytes per second of each tenant's large bodies.
    pace: Pace
    #: Validates large requests outside of this process.
    isolation: Isolation
    #: Reads files of batches outside of this process; a file takes longer than a request.
    file_isolation: Isolation
    #: Knows the models of living workers and of the object store.
    models: ModelCatalogue
    #: None in open mode.
    keys: KeyRing | None = None
    #: Knows what computed results.
    environments: Environments = field(default_factory=Environments)

    @property
    def limits(self) -> QueueLimits:
        """The limits that the job store enforces on submissions."""
        return QueueLimits.of(self.settings)

    @property
    def journal(self) -> AsyncJournal:
        """The journal: operations that involve both stores, such as submit, cancel and read."""
        return AsyncJournal(self.jobs, self.objects)

    @property
    def store_is_local(self) -> bool:
        """True where objects are local files that the API serves itself."""
        address = self.settings.object_store  # `store_url` would look at the file system for each answer
        return address is None or urlsplit(address).scheme == "file"

    def file(self, key: str) -> Path:
        """Return the path of an object in the local store."""
        return Path(unquote(urlsplit(self.objects.uri(key)).path))

    @property
    def uri(self) -> UriOf:
        """The function that returns an object's public URI; None for the local store, whose paths are private."""
        return None if self.store_is_local else self.objects.uri

    def view(
        self, job: Job, *, provenance: Mapping[str, Any] | None = None, followers: list[str] | None = None
    ) -> JobView:
        """Return the public view of a job, with its provenance and followers where these are given."""
        base_url = self.settings.base_url
        return job_view(job, base_url=base_url, uri=self.uri, provenance=provenance, followers=followers)

    async def whole(self, job: Job) -> Job:
        """Return a job with its text and data, which may be in the object store; `JobGone` where they were deleted."""
        return await self.journal.run(journal.whole(job))

    async def provenance(self, job: Job) -> dict[str, Any] | None:
        """Return the provenance of a job's result; None for a job without one.

        The description of its environment is missing where the object store does not answer soon, or has none.
        """
        if not job.provenance:
            return None
        found: dict[str, Any] = json.loads(job.provenance)
        name = found.get("environment")
        return found if name is None else {**await self._environment(job.key.tenant, name), **found}

    async def _environment(self, tenant: str, name: str) -> Mapping[str, Any]:
        if (known := self.environments.known(tenant, name)) is not None:
            return known
        reading = asyncio.to_thread(self.environments.read, self.objects, tenant, name)
        try:
            return await asyncio.wait_for(reading, MAX_ENVIRONMENT_S) or {}
        except (ObjectStoreUnavailable, TimeoutError):
            return {}


async def _services(request: Request) -> Services:
    found = request.app.state.services
    assert isinstance(found, Services)  # noqa: S101  (create_app put it there)
    return found


Api = Annotated[Services, Depends(_services)]
