"""The models as the API knows them: those of living workers, and a cache of those in the object store.

A request for a model that a living worker publishes never waits for the object store. Other requests read it once per
`FRESH_S`, and at most once per `MISS_S` for a model that is not known, however many requests there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from penstock.errors import ObjectStoreUnavailable, PenstockError
from penstock.models import CatalogueEntry, find
from penstock.storage.journal.stored_models import FRESH_S, StoredModels, merged
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import catalogues
from penstock.storage.redis.catalogues import Known
from penstock.storage.redis.records import AsyncJobStore

#: Seconds between two listings for models that are not known.
MISS_S = 1.0
#: Seconds for which a reading of Redis serves further submissions.
RECENT_S = 0.25
#: Seconds that a request waits for a listing, and seconds until the next one after a failure.
TIMEOUT_S, RETRY_S = 3.0, 5.0

log = structlog.get_logger(__name__)


class ModelCatalogue:
    """Reads the models by name. For the event loop only."""

    def __init__(
        self, jobs: AsyncJobStore, objects: ObjectStore, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs = jobs
        self._stored = StoredModels(objects, clock=clock)
        self._clock = clock
        self._again_at_s = float("-inf")
        self._reading: asyncio.Task[bool] | None = None
        #: The models of the latest answer from Redis that sufficed for its request, and the end of its use.
        self._recent: Mapping[str, CatalogueEntry] = {}
        self._recent_known = Known({}, frozenset())
        self._recent_until_s = float("-inf")

    def recent(self, name: str) -> Mapping[str, CatalogueEntry] | None:
        """Return the models as of `RECENT_S` ago at most; None without them, or where no living worker has this one.

        They suffice to accept a job. A refusal needs the current ones: see `read`.
        """
        is_recent = self._clock() < self._recent_until_s and _is_served(name, self._recent_known)
        return self._recent if is_recent else None

    async def read(self, *names: str) -> dict[str, CatalogueEntry]:
        """Return the models by name; with `names`, an answer that is sufficient to find these models or aliases.

        Raises `JobStoreError`, and `ObjectStoreUnavailable` where a name is not known and the stored models cannot be
        read.
        """
        asked_s = self._clock()
        known = await self._jobs.run(catalogues.known())
        if names and all(_is_served(name, known) for name in names):
            found = merged(known, self._stored.latest)
            self._recent, self._recent_known, self._recent_until_s = found, known, asked_s + RECENT_S
            return found
        found = merged(known, self._stored.latest)
        is_read = await self._refresh(FRESH_S if _has(found, *names) else MISS_S)
        found = merged(known, self._stored.latest)
        if not (is_read or _has(found, *names)):
            raise ObjectStoreUnavailable("the stored models cannot be read", retry_after_s=RETRY_S)
        return found

    async def latest(self) -> dict[str, CatalogueEntry]:
        """Return the models by name without waiting for the object store, which is read for later calls."""
        known = await self._jobs.run(catalogues.known())
        if self._stored.age_s >= FRESH_S and self._clock() >= self._again_at_s:
            self._begin(FRESH_S)
        return merged(known, self._stored.latest)

    def _begin(self, fresh_s: float) -> asyncio.Task[bool]:
        """Begin to read the object store, unless it is being read; return the task."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(fresh_s))
        return self._reading

    async def _refresh(self, fresh_s: float) -> bool:
        """Read the object store if the cache is older than `fresh_s`; return False if that failed or takes long."""
        if self._stored.age_s < fresh_s:
            return True
        if self._clock() < self._again_at_s:
            return False
        reading = self._begin(fresh_s)
        done, _ = await asyncio.wait({reading}, timeout=TIMEOUT_S)
        is_read = bool(done) and reading.result()
        if not is_read:
            self._again_at_s = self._clock() + RETRY_S
        return is_read

    async def _read(self, fresh_s: float) -> bool:
        try:
            await asyncio.to_thread(self._stored.read, fresh_s=fresh_s)
        except PenstockError as error:
            log.warning("stored_models.unread", code=error.code, detail=error.detail)
            return False
        return True


def _is_served(name: str, known: Known) -> bool:
    """Return True for a model whose entry in Redis is a living worker's and says more than that it is being checked."""
    entry = find(known.entries, name)
    return entry is not None and catalogues.is_settled(entry.name, known)


def _has(found: dict[str, CatalogueEntry], *names: str) -> bool:
    return all(find(found, name) is not None for name in names)
