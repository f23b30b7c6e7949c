"""The key ring: a cache of API keys in front of the object store, refreshed every few seconds.

A revocation takes effect in every process within `FRESH_S`, without messages between processes. While the object store
does not answer, a cached key stays valid for `STALE_S`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from penstock.api_keys import KeyRecord, admits, is_signed, parse
from penstock.errors import ObjectStoreUnavailable
from penstock.storage.journal.api_keys import read_key
from penstock.storage.objects.base import ObjectStore

#: Seconds until a cached key is read again: the longest that a revoked key still works.
FRESH_S = 5.0
#: Seconds a cached key stays valid while the object store does not answer.
STALE_S = 60.0
#: Seconds until the next look-up after a failed one, and the time limit of a look-up.
RETRY_S, TIMEOUT_S = 1.0, 3.0

log = structlog.get_logger(__name__)


@dataclass
class _CachedKey:
    """The cached look-up of one key id; `record` is None for an unknown key."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    record: KeyRecord | None = None
    #: Monotonic times.
    refresh_at_s: float = -math.inf
    valid_until_s: float = -math.inf


class KeyRing:
    """Finds the record of an API key. Texts without this service's signature never cause a look-up in the store."""

    def __init__(
        self,
        objects: ObjectStore,
        secret: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._secret = secret
        self._clock = clock
        self._now = now
        self._cache: defaultdict[str, _CachedKey] = defaultdict(_CachedKey)

    async def find(self, text: str) -> KeyRecord | None:
        """Return the record of a valid key, None for any other text.

        Raises `ObjectStoreUnavailable` where the key is not cached and the store does not answer.
        """
        given = parse(text)
        if given is None or not is_signed(self._secret, given):
            return None
        record = await self._record(given.id)
        if admits(self._secret, record, given, at=self._now()):
            return record
        log.info("key.refused", key=given.id, state=record.state(at=self._now()) if record else "unknown")
        return None

    async def _record(self, key_id: str) -> KeyRecord | None:
        cached = self._cache[key_id]
        async with cached.lock:
            if self._clock() >= cached.refresh_at_s:
                await self._look_up(key_id, cached)
        if self._clock() >= cached.valid_until_s:
            raise ObjectStoreUnavailable("the API key cannot be looked up", retry_after_s=RETRY_S)
        return cached.record

    async def _look_up(self, key_id: str, cached: _CachedKey) -> None:
        begun_s = self._clock()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                cached.record = await asyncio.to_thread(read_key, self._objects, key_id)
        except (ObjectStoreUnavailable, TimeoutError) as error:
            log.warning("key.lookup_failed", key=key_id, error=type(error).__name__)
            cached.refresh_at_s = self._clock() + RETRY_S
        else:
            cached.refresh_at_s, cached.valid_until_s = begun_s + FRESH_S, begun_s + STALE_S
