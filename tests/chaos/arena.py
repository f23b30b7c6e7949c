"""One run: everything set up, jobs submitted and watched, faults in between, and the checker at the end."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from penstock.api_keys import Scope, new_key
from penstock.config import Settings
from penstock.config_tables import S3
from penstock.storage.journal.api_keys import put_key
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.workers.heartbeat import BEAT_S
from tests.chaos import waits
from tests.chaos.checker import PATIENCE_S, check
from tests.chaos.clients import Client, join_all, submit_all, watch_until_over
from tests.chaos.crowd import submit_from_a_crowd
from tests.chaos.history import History, Wanted
from tests.chaos.leftovers import collect
from tests.chaos.processes import Death, Fleet
from tests.chaos.proxy import Mode, Proxy
from tests.chaos.receiver import Receiver
from tests.chaos.waits import Event, Recovery, Span
from tests.support.ceph import Ceph
from tests.support.sentinels import Watched, watched_pair
from tests.support.valkey import ValkeyProcess, start_valkey

#: Leases are short so that recovery takes seconds: the product's default is 30 s.
LEASE_S = 3.0
#: A keeper that dies in its recovery leaves a place that stays taken for 10 s, and it may die a dozen times.
RECOVERED_S = 180.0
#: Webhooks may be on their way this long when all jobs are over: the lease of a try whose end was lost, and the next.
SENT_S = 90.0


class PromiseBroken(AssertionError):
    """The checker found violations."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The line that a scenario reports."""

    scenario: str
    seed: int
    jobs: int
    seconds: float
    counts: Mapping[str, object]

    def __str__(self) -> str:
        counts = " ".join(f"{name}={value}" for name, value in self.counts.items())
        promise = "lost=0 doubled=0 changed=0"  # or the checker had raised
        return f"{self.scenario}: seed={self.seed} jobs={self.jobs} {promise} {counts} ({self.seconds:.0f} s)"


@dataclass
class Arena:
    """A running service with everything around it. Scenarios use these parts."""

    fleet: Fleet
    valkey: ValkeyProcess | Watched
    redis: Proxy
    #: The way to the S3 server; to nobody where the store is a folder.
    s3: Proxy
    #: The store itself, not through the proxy.
    objects: ObjectStore
    receiver: Receiver
    history: History
    draws: random.Random
    patience_s: float
    #: An API key of each tenant, where the service asks for one.
    keys: Mapping[str, str] = field(default_factory=dict)
    counts: dict[str, object] = field(default_factory=dict)
    #: Wall-clock times at which something was killed or stopped from outside.
    struck: list[float] = field(default_factory=list)
    #: Times in which the folder of the object store was away.
    store_away: list[Span] = field(default_factory=list)
    _clients: list[threading.Thread] = field(default_factory=list)
    _watcher: threading.Thread | None = None
    _finishing: threading.Event = field(default_factory=threading.Event)

    def submit(self, jobs: Sequence[Wanted], *, threads: int = 4, **options: Any) -> None:
        """Let clients begin to submit jobs, and one to look at all of them again and again."""
        until = time.monotonic() + self.patience_s
        options = {"key": self.fleet.key, **options}
        self._clients += submit_all(self.fleet.url, self.history, jobs, threads=threads, until=until, **options)
        self._look_until(until)

    def submit_from_a_crowd(self, jobs: Sequence[Wanted], *, clients: int) -> None:
        """As `submit`, from many clients, which have a process of their own."""
        until = time.monotonic() + self.patience_s
        self._clients.append(submit_from_a_crowd(self.fleet.url, self.history, jobs, clients=clients, until=until))
        self._look_until(until)

    def cancel(self, ids: Sequence[str]) -> threading.Thread:
        """Let a client cancel jobs, in a random order, each once it was accepted or soon after."""
        until = time.monotonic() + self.patience_s
        order = self.draws.sample(ids, len(ids))

        def work() -> None:
            client = Client(self.fleet.url, self.history, key=self.fleet.key)
            for job_id in order:
                while job_id not in self.history.accepted and time.monotonic() < until:
                    threading.Event().wait(0.02)  # a client of another process' jobs: nothing tells it
                client.cancel(job_id, until=until)
            client.close()

        thread = threading.Thread(target=work, name="canceling")
        thread.start()
        return thread

    def finish(self) -> None:
        """Wait until all jobs are accepted, over, and their webhooks delivered, or the time is up.

        And for the end of a keeper's recovery, and of the webhooks that Redis lost the end of and that are sent again:
        what is left before that is not what will be left.
        """
        self._finishing.set()
        # Clients of a scenario's own may have submitted jobs, at which nobody looks yet.
        watcher = self._watcher or self._start_watcher(time.monotonic() + self.patience_s)
        watcher.join()
        self._watcher = None
        join_all(self._clients)
        self.until(self._recovered, within_s=RECOVERED_S)
        with suppress(TimeoutError):  # the verdict tells of what is left
            self.until(self._sent, within_s=SENT_S)

    def _sent(self) -> bool:
        with suppress(RedisError), Redis.from_url(self.valkey.url) as client:
            if not client.exists("penstock:outbox"):
                return True
        self.hurry_webhooks(waiting_over_s=20)
        return False

    def _recovered(self) -> bool:
        with suppress(RedisError), Redis.from_url(self.valkey.url) as client:
            return bool(client.exists("penstock:alive"))
        return False

    def _look_until(self, until: float) -> None:
        """Let a client look at all jobs again and again, if none does."""
        if self._watcher is None:
            self._finishing.clear()
            self._watcher = self._start_watcher(until)

    def _start_watcher(self, until: float) -> threading.Thread:
        watcher = threading.Thread(target=self._watch, args=(until,), name="watcher")
        watcher.start()
        return watcher

    def _watch(self, until: float) -> None:
        key = self.fleet.key
        watch_until_over(self.fleet.url, self.history, until=until, over=self._accepted_and_told, key=key)

    def repeat(self, act: Callable[[], None], *, every_s: tuple[float, float], enough: Callable[[], bool]) -> None:
        """Do something at random intervals until it was enough or the jobs are over."""
        give_up = time.monotonic() + self.patience_s
        while not enough() and time.monotonic() < give_up:
            if self.history.all_over.wait(self.draws.uniform(*every_s)):
                return
            act()

    def until(self, condition: Callable[[], object], *, within_s: float = 30.0) -> None:
        """Return when a condition in another process holds; fail when it never does."""
        ends = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > ends:
                raise TimeoutError(f"{condition} never held within {within_s} s")
            threading.Event().wait(0.02)  # another process: there is nothing to wait on

    def deaths(self) -> list[Death]:
        """Return every death of a kept process so far."""
        return [death for each in (*self.fleet.kept, *self.fleet.came) for death in each.deaths]

    def running(self) -> int:
        """Return how many jobs hold a lease at the moment."""
        with Redis.from_url(self.valkey.url) as client:
            return int(client.zcard("penstock:leases"))

    def attempts(self) -> list[int]:
        """Return the attempt of every job's record."""
        with Redis.from_url(self.valkey.url, decode_responses=True) as client:
            keys = client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash")
            return [int(client.hget(key, "attempt") or 0) for key in keys]

    def past_attempts(self) -> dict[str, str]:
        """Return the ended attempts of each job that had more than one, as Redis keeps them, by the job's key."""
        with Redis.from_url(self.valkey.url, decode_responses=True) as client:
            keys = client.scan_iter("penstock:tenant:*:job:*", count=1000, _type="hash")
            found = {key: client.hmget(key, "attempt", "attempts", "error") for key in keys}
            return {key: f"{past} {error}" for key, (attempt, past, error) in found.items() if int(attempt or 0) > 1}

    def starts(self) -> list[int]:
        """Return how many times each job was started."""
        with Redis.from_url(self.valkey.url, decode_responses=True) as client:
            streams = client.scan_iter("penstock:tenant:*:job:*:events", count=1000)
            return [sum(row["type"] == "job.started" for _, row in client.xrange(key)) for key in streams]

    def recoveries(self) -> list[Recovery]:
        """Return how each job that lost its worker came back."""
        return [recovery for events in self._events() for recovery in waits.recoveries(events)]

    def queued_late_s(self) -> list[float]:
        """Return, for each lost lease, the seconds until its job was queued in which somebody could sweep."""
        sweeping, away = self.fleet.sweeping(), self.away()
        return [waits.late_s(each, sweeping, away) for each in self.recoveries()]

    def away(self) -> list[Span]:
        """Return the times in which Redis or the object store did not answer."""
        found = [*self.valkey.downs, *self.redis.away(), *self.s3.away()]
        return [*(Span(begin_s, end_s) for begin_s, end_s in found), *self.store_away]

    def free_slots(self) -> list[Span]:
        """Return the times in which some live worker had a free slot; one for each worker, they may overlap."""
        taken = waits.busy(self._events())
        slots = self.fleet.settings.slots
        lives = self.fleet.lives()
        return [span for worker, spans in lives.items() for span in waits.free(spans, taken.get(worker, ()), slots)]

    def _events(self) -> list[list[Event]]:
        with Redis.from_url(self.valkey.url, decode_responses=True) as client:
            streams = client.scan_iter("penstock:tenant:*:job:*:events", count=1000)
            return [waits.events_of(client.xrange(key)) for key in streams]

    def recoveries_s(self) -> list[float]:
        """Return, for each job that lost a worker, the seconds from the strike before to its next start."""
        strikes = sorted([death.at_s for death in self.deaths()] + self.struck)
        with Redis.from_url(self.valkey.url, decode_responses=True) as client:
            found: list[float] = []
            for key in client.scan_iter("penstock:tenant:*:job:*:events", count=1000):
                rows = [(int(i.partition("-")[0]) / 1000, row) for i, row in client.xrange(key)]
                found += _recoveries(rows, strikes, self.fleet.settings.lease_s - BEAT_S)
        return found

    def hurry_webhooks(self, *, waiting_over_s: float = 0) -> None:
        """Make waiting webhooks due that have longer to go than this: the schedule goes over three days.

        And let no receiver rest that long.
        """
        with suppress(RedisError), Redis.from_url(self.valkey.url, decode_responses=True) as client:
            latest = (time.time() + waiting_over_s) * 1e6
            for key in client.scan_iter("penstock:tenant:*:receiver:*:health", count=1000):
                if float(client.hget(key, "open_us") or 0) > latest:
                    client.delete(key)
            for key in client.scan_iter("penstock:tenant:*:receivers", count=1000):
                for name in client.zrangebyscore(key, latest, "+inf"):
                    client.zadd(key, {name: 0}, xx=True)
            for name in client.zrangebyscore("penstock:outbox", (time.time() + waiting_over_s) * 1e6, "+inf"):
                client.zadd("penstock:outbox", {name: 0}, xx=True)

    def _accepted_and_told(self) -> bool:
        if not self._finishing.is_set() or any(client.is_alive() for client in self._clients):
            return False
        self.hurry_webhooks(waiting_over_s=20)
        hooked = sum(job.webhook is not None for job in self.history.wanted.values())
        told = {hook.id for hook in list(self.receiver.got) if hook.answered == 200}
        return len(told) >= hooked

    def verdict(self, *, api_patience_s: float = PATIENCE_S) -> None:
        """Raise `PromiseBroken` with every violation, if there is one."""
        left = collect(self.fleet.settings, self.objects, self.valkey.url)
        violations = check(self.history, list(self.receiver.got), left, patience_s=api_patience_s)
        violations += waits.violations(self.recoveries(), self.fleet.sweeping(), self.free_slots(), self.away())
        if violations:
            shown = "\n".join(violations[:20])
            raise PromiseBroken(f"{len(violations)} violations:\n{shown}")


def _recoveries(
    rows: Sequence[tuple[float, Mapping[str, str]]], strikes: Sequence[float], silent_s: float
) -> Iterator[float]:
    """Yield the seconds from a strike to the job's next start: the last strike that explains a silence this long."""
    lost_at: float | None = None
    for at_s, row in rows:
        if row["type"] == "job.requeued" and json.loads(row["data"]).get("reason") == "lease_lost":
            lost_at = max((strike for strike in strikes if strike <= at_s - silent_s), default=None)
        elif row["type"] == "job.started" and lost_at is not None:
            yield at_s - lost_at
            lost_at = None


@contextmanager
def open_arena(
    folder: Path,
    *,
    seed: int,
    workers: int = 2,
    patience_s: float = 60,
    failpoints: Mapping[str, Any] | None = None,
    ceph: Ceph | None = None,
    proxied: bool = True,
    watched: bool = False,
    published: Callable[[ObjectStore], object] | None = None,
    tenants: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Arena]:
    """Set a service up and give it; leaving the block ends everything.

    `failpoints` maps a role (`api`, `worker`, `worker0`) to its failpoints; without `ceph` the object store is a
    folder. Not `proxied`, Redis is reached straight, for measuring. `watched`, Redis is a primary with a replica,
    reached through Sentinels. `published` puts models into the object store before the start. With `tenants`, the API
    asks for keys, and each of them has one.
    """
    with ExitStack() as stack:
        valkey: ValkeyProcess | Watched
        if watched:
            valkey = stack.enter_context(watched_pair(folder / "valkey"))
        else:
            valkey = start_valkey(folder / "valkey")
            stack.callback(valkey.stop)
        redis = stack.enter_context(Proxy(valkey.port))
        receiver = stack.enter_context(Receiver())
        options: dict[str, Any] = {
            "redis_url": f"redis://127.0.0.1:{redis.port}/0" if proxied else valkey.url,
            "allowed_hosts": (receiver.pair,),
            "lease_s": LEASE_S,
            "poll_s": 1.0,
            "drain_s": 0.3,
            "slots": 2,
            # A good job must survive what is done to its workers; poison has a scenario of its own.
            "max_crashes": 50,
            "max_tenant_jobs": 1_000_000,
        } | settings
        options |= {"redis_url": valkey.address} if isinstance(valkey, Watched) else {}
        options |= {"access": "keys"} if tenants else {}
        s3 = stack.enter_context(Proxy(ceph.port if ceph else 1))
        if ceph is not None:
            options |= {"object_store": f"s3://{ceph.bucket()}", "s3": _through(ceph.s3, s3.port)}
        fleet = Fleet(folder / "fleet", workers=workers, failpoints=failpoints or {}, **options)
        direct = fleet.settings.model_copy(update={"s3": ceph.s3}) if ceph else fleet.settings
        objects = open_store(direct.store_url, direct)
        if published is not None:
            published(objects)
        keys = {tenant: _key(objects, fleet.settings, tenant) for tenant in tenants}
        fleet.key = next(iter(keys.values()), None)
        stack.enter_context(fleet)
        yield Arena(fleet, valkey, redis, s3, objects, receiver, History(), random.Random(seed), patience_s, keys)


def _key(objects: ObjectStore, settings: Settings, tenant: str) -> str:
    record, text = new_key(
        settings.signing_secret, tenant=tenant, name=tenant, scopes=Scope, created_s=time.time(), expires_s=None
    )
    put_key(objects, record)
    return text


def _through(s3: S3, port: int) -> dict[str, Any]:
    secret = s3.secret_access_key.get_secret_value() if s3.secret_access_key else ""
    return s3.model_dump(exclude_none=True) | {
        "endpoint_url": f"http://127.0.0.1:{port}", "secret_access_key": secret,
    }  # fmt: skip


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share lies; 0 without values."""
    if len(values) < 2:
        return max(values, default=0.0)
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, int(share * 1000) - 1)]


__all__ = ["Arena", "Mode", "PromiseBroken", "Summary", "open_arena", "percentile"]
