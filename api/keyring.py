"""The API keys, as this process knows them: looked up in the object store, and again every few seconds.

So a revocation works everywhere within `FRESH_S`, without a word between processes. While the object store does not
answer, what is known of a key counts for `STALE_S`.
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
from penstock.storage.api_keys import read_key
from penstock.storage.base import ObjectStore

#: A revoked key may still be answered for so long.
FRESH_S = 5.0
#: The same while the object store does not answer.
STALE_S = 60.0
#: When it is asked again then, and how long it is waited for.
RETRY_S, PATIENCE_S = 1.0, 3.0

log = structlog.get_logger(__name__)


@dataclass
class _Known:
    """What is known of one id: a record, or that there is none."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    record: KeyRecord | None = None
    #: Times of the monotonic clock.
    look_again_s: float = -math.inf
    counts_until_s: float = -math.inf


class KeyRing:
    """Tells whose a key is. Only what the service signed is looked up: nobody else's questions reach the store."""

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
        self._known: defaultdict[str, _Known] = defaultdict(_Known)

    async def find(self, text: str) -> KeyRecord | None:
        """Return the record of a key that is valid at this moment, None for any other.

        Raises `ObjectStoreUnavailable` where nothing is known of it and the store does not answer.
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
        known = self._known[key_id]
        async with known.lock:
            if self._clock() >= known.look_again_s:
                await self._look_up(key_id, known)
        if self._clock() >= known.counts_until_s:
            raise ObjectStoreUnavailable("the API key cannot be looked up", retry_after_s=RETRY_S)
        return known.record

    async def _look_up(self, key_id: str, known: _Known) -> None:
        asked_s = self._clock()
        try:
            async with asyncio.timeout(PATIENCE_S):
                known.record = await asyncio.to_thread(read_key, self._objects, key_id)
        except (ObjectStoreUnavailable, TimeoutError) as error:
            log.warning("key.unanswered", key=key_id, error=type(error).__name__)
            known.look_again_s = self._clock() + RETRY_S
        else:
            known.look_again_s, known.counts_until_s = asked_s + FRESH_S, asked_s + STALE_S
