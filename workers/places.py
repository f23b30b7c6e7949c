"""The places of a worker: its slots, and further places for jobs whose media are fetched from the web.

A job with media on the web is claimed into a slot as any other. While it fetches, it lends the slot (`beside`), so that
a slow server holds no slot: another job is claimed into it. Afterwards the job takes the next slot that comes free,
before any job is claimed. Without one it waits, which costs it nothing of its execution timeout.

These jobs are bounded in two ways (`Limits.full`); a claim passes over jobs beyond the bounds, which stay in the queue
for other workers.

- How many fetch at once: `slots` and `fetch_slots` together. Of one tenant and from one host fewer, so that neither a
  tenant whose servers drip nor a slow host keeps others from fetching.
- How many will want a slot soon. A worker must not collect jobs that an idle worker could run, so a job that fetches
  counts as if it had its slot, and only jobs without media on the web may use the slot meanwhile. After `SLOW_S` the
  fetch counts as slow, and no longer keeps others from fetching. For `TROUBLE_S` after a fetch that failed or was slow,
  those of its tenant count as slow at once: else a tenant whose servers fail each time before `SLOW_S` would keep all
  others from fetching.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.errors import FetchFailed
from penstock.jobs import Claim, JobKey
from penstock.storage.redis.fetch_hosts import Full

#: Seconds after which a fetch is slow: most media are fetched in a few seconds.
SLOW_S = 5.0
#: Seconds in which a tenant's fetches count as slow, after one that failed or was slow.
TROUBLE_S = 600.0
#: Seconds of one wait for a slot: a job that waits notices its cancel, and a slot that waits for jobs the job.
WAIT_S = 0.5

_Name: TypeAlias = tuple[JobKey, int]


@dataclass(frozen=True, slots=True)
class JobFetch:
    """A claimed job that may fetch media from the web."""

    tenant: str
    hosts: tuple[str, ...]
    #: Monotonic time at which it lent its slot; None while it has the slot.
    lent_s: float | None = None
    #: True for a fetch that counts as slow at once.
    in_trouble: bool = False

    def is_slow(self, at: float) -> bool:
        """Return True for a fetch that keeps no other from fetching, `at` by the monotonic clock."""
        return self.lent_s is not None and (self.in_trouble or at - self.lent_s >= SLOW_S)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a worker's fetches."""

    slots: int
    #: Fetches at once, beyond one for each slot; at most a quarter of them are one tenant's, half from one host.
    further: int

    def full(self, fetches: Collection[JobFetch], running: int, *, at: float) -> Full:
        """Return the limits that are reached, of `running` jobs with these fetches, `at` by the monotonic clock.

        A worker without fetches is never full: its free slot is the limit.
        """
        if not fetches:
            return Full()
        slow = sum(each.is_slow(at) for each in fetches)
        tenants = Counter(each.tenant for each in fetches)
        hosts = Counter(host for each in fetches for host in set(each.hosts))
        return Full(
            all=running - slow >= self.slots or len(fetches) >= self.slots + self.further,
            tenants=frozenset(name for name, n in tenants.items() if n >= self.slots + self.further // 4),
            hosts=frozenset(name for name, n in hosts.items() if n >= self.slots + self.further // 2),
        )


class Places:
    """The slots of a worker, and the jobs that fetch beside them. Safe to share between threads."""

    def __init__(self, slots: int, fetch_slots: int) -> None:
        self._limits = Limits(slots, fetch_slots)
        self._free = threading.BoundedSemaphore(slots)
        self._lock = threading.Lock()
        self._fetches: dict[_Name, JobFetch] = {}
        #: Tenants whose fetch failed or was slow, with the monotonic time until which that counts.
        self._trouble: dict[str, float] = {}
        #: Jobs that lent their slot and did not get it back.
        self._without: set[_Name] = set()
        #: Number of jobs that wait for a slot, with their media fetched.
        self._waiting = 0

    def take(self, timeout_s: float = 0.0) -> bool:
        """Take a free slot; return False if there is none in time."""
        return self._free.acquire(timeout=timeout_s)

    def give_back(self) -> None:
        """Give a slot back."""
        self._free.release()

    @property
    def awaited(self) -> bool:
        """True while a job that has fetched its media waits for a slot: then nothing may be claimed."""
        return self._waiting > 0

    def full(self, running: int, *, at: float) -> Full:
        """Return the limits that the fetches of `running` jobs have reached, `at` by the monotonic clock."""
        with self._lock:
            return self._limits.full(self._fetches.values(), running, at=at)

    def claimed(self, claim: Claim) -> None:
        """Count a job that was claimed into a slot."""
        if claim.fetch_hosts:
            with self._lock:
                self._fetches[_name(claim)] = JobFetch(claim.key.tenant, claim.fetch_hosts)

    def ended(self, claim: Claim) -> bool:
        """Forget a job that has ended; return False if it has no slot any more."""
        with self._lock:
            self._fetches.pop(_name(claim), None)
            if _name(claim) not in self._without:
                return True
            self._without.discard(_name(claim))
            return False

    @contextmanager
    def beside(
        self, claim: Claim, check: Callable[[], None], waits: Callable[[bool], object], *, on_the_web: bool
    ) -> Iterator[None]:
        """Lend a job's slot while the block fetches its media, if some are `on_the_web`; then take a slot again.

        `check` is called while the job waits; its error ends the wait. `waits` is called with True when the wait
        begins, and with False when it ends. After an error the job needs no slot to end: it has one if one was free.
        """
        if not (on_the_web and self._lend(claim)):
            yield
            self._settle(claim)
            return
        try:
            yield
        except BaseException as error:
            self._fetched(claim, failed=isinstance(error, FetchFailed))
            if self._free.acquire(blocking=False):
                self._taken(claim)
            raise
        self._fetched(claim, failed=False)
        if not self._free.acquire(blocking=False):
            self._wait(check, waits)
        self._taken(claim)

    def _lend(self, claim: Claim) -> bool:
        with self._lock:
            fetch = self._fetches.get(_name(claim))
            if fetch is None:  # it was not claimed into a slot of these
                return False
            now = time.monotonic()
            in_trouble = self._trouble.get(fetch.tenant, now) > now
            self._fetches[_name(claim)] = replace(fetch, lent_s=now, in_trouble=in_trouble)
            self._without.add(_name(claim))
        self._free.release()
        return True

    def _fetched(self, claim: Claim, *, failed: bool) -> None:
        """Note a tenant whose fetch failed or was slow."""
        with self._lock:
            fetch, now = self._fetches[_name(claim)], time.monotonic()
            if failed or now - (fetch.lent_s or now) >= SLOW_S:
                others = {tenant: until for tenant, until in self._trouble.items() if until > now}
                self._trouble = others | {fetch.tenant: now + TROUBLE_S}

    def _wait(self, check: Callable[[], None], waits: Callable[[bool], object]) -> None:
        with self._lock:
            self._waiting += 1
        waits(True)
        try:
            while not self._free.acquire(timeout=WAIT_S):
                check()
        finally:
            with self._lock:
                self._waiting -= 1
            waits(False)

    def _taken(self, claim: Claim) -> None:
        with self._lock:
            self._without.discard(_name(claim))
        self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        """Count a job no longer as one that fetches: its media are here."""
        with self._lock:
            self._fetches.pop(_name(claim), None)


def _name(claim: Claim) -> _Name:
    return claim.key, claim.fence
