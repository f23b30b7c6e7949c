"""What the routes work with: settings, job store, object store, and the sender of hints."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import structlog
from fastapi import Depends, Request

from penstock.api.fullness import Fullness
from penstock.api.keyring import KeyRing
from penstock.api.rate_limit import RateLimit
from penstock.api.schemas import JobView, NameOf, job_view
from penstock.api.turns import Turns
from penstock.config import Settings
from penstock.jobs import Job
from penstock.storage.base import ObjectStore
from penstock.storage.journal import AsyncJournal
from penstock.storage.records import AsyncJobStore, QueueLimits

#: Hints that wait to be sent. Past this, the keeper's own hints do.
MAX_WAITING_HINTS = 1000

log = structlog.get_logger(__name__)


class Hints:
    """Sends hints one after the other beside the requests, so that no request ever waits for the broker."""

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send = send
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hints")
        self._waiting = 0

    def send(self, queue: str) -> None:
        """Have a hint sent soon; drop it when too many wait. Called from the event loop only."""
        if self._waiting < MAX_WAITING_HINTS:
            self._waiting += 1
            self._pool.submit(self._send_one, queue)

    def close(self) -> None:
        """Forget what was not sent yet and wait for the one that is."""
        self._pool.shutdown(cancel_futures=True)

    def _send_one(self, queue: str) -> None:
        self._waiting -= 1
        try:
            self._send(queue)
        except Exception as error:  # a lost hint costs latency, never a job
            log.warning("hint.lost", queue=queue, error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """The seams of the API: one value per app."""

    settings: Settings
    jobs: AsyncJobStore
    objects: ObjectStore
    hints: Hints
    #: Of submissions.
    turns: Turns
    #: Of batches whose requests are taken in.
    batch_turns: Turns
    #: Of tenants, as far as submissions have met it.
    fullness: Fullness
    #: Of each tenant's submissions.
    rate_limit: RateLimit
    #: None = open mode.
    keys: KeyRing | None = None

    @property
    def limits(self) -> QueueLimits:
        """What a submit may not exceed."""
        return QueueLimits.of(self.settings)

    @property
    def journal(self) -> AsyncJournal:
        """What both stores must agree on: submitting, canceling, and reading what only one of them may have."""
        return AsyncJournal(self.jobs, self.objects)

    @property
    def store_is_local(self) -> bool:
        """Whether the objects are files that this process serves itself."""
        return urlsplit(self.settings.store_url).scheme == "file"

    def file(self, key: str) -> Path:
        """Return where the local store keeps an object."""
        return Path(unquote(urlsplit(self.objects.uri(key)).path))

    @property
    def uri(self) -> NameOf:
        """How people and tools name an object; None where it is a file of this machine, whose place is its own."""
        return None if self.store_is_local else self.objects.uri

    def view(self, job: Job) -> JobView:
        """Return the job as the public sees it."""
        return job_view(job, base_url=self.settings.base_url, uri=self.uri)


async def _services(request: Request) -> Services:
    found = request.app.state.services
    assert isinstance(found, Services)  # noqa: S101  (create_app put it there)
    return found


Api = Annotated[Services, Depends(_services)]
