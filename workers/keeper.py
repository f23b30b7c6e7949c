"""The keeper: what time, webhooks and buckets ask for. Several may run; one is active, by a lease.

Each duty is a loop of its own, so that a slow one delays no other. None keeps anything in memory that it could not
lose: a keeper may die at any moment.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog

from penstock.config import Settings
from penstock.drop_rules import require_own_outputs
from penstock.errors import PenstockError, RedisUnavailable
from penstock.log import configure
from penstock.queue import HintSender
from penstock.signals import LOOK_EVERY_S, Signals
from penstock.storage import endpoint_changes, endpoints, journal, queues, records
from penstock.storage.base import ObjectStore
from penstock.storage.guard import GuardedClient
from penstock.storage.journal import Journal
from penstock.storage.manifests import delete_objects
from penstock.storage.objects import open_store
from penstock.storage.sqs import open_queue
from penstock.workers.completion import Completion, retire_batches
from penstock.workers.drop_watch import QueueSource, Watch
from penstock.workers.drops import open_drops
from penstock.workers.expansion import Expansion
from penstock.workers.recover import recover_if_emptied
from penstock.workers.tidy import tidy
from penstock.workers.webhooks import Deliverer

#: How long a dead keeper's place stays taken.
LEASE_S = 10.0
LEAD_EVERY_S = 2.0
SWEEP_EVERY_S = 1.0
RECOVER_EVERY_S = 2.0
RESERVATIONS_EVERY_S = 10.0
ENDPOINTS_EVERY_S = 10.0
HINTS_EVERY_S = 2.0
DELIVER_EVERY_S = 0.5
RETIRE_EVERY_S = 60.0
TIDY_EVERY_S = 3600.0
#: Of webhook endpoints, that are settled in one go.
CHANGES = 500
BATCHES_EVERY_S = 1.0
DROPS_EVERY_S = 0.5
QUEUE_AGAIN_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to do again and again, while this keeper is the active one."""

    name: str
    every_s: float
    act: Callable[[], object]
    #: Also while another keeper is active. For what any number may do at once, so that a dead keeper's place, which
    #: stays taken for `LEASE_S`, holds no lost job up.
    always: bool = False
    #: It waits for something to happen elsewhere, at once again; `every_s` is its pause after an error, and at the end
    #: it is left alone.
    waits: bool = False


class Keeper:
    """Runs the duties, each in its own thread."""

    def __init__(self, store: records.Runs, duties: list[Duty]) -> None:
        self._store = store
        self._duties = duties
        self._who = uuid.uuid4().hex
        self._active = threading.Event()
        self._ended = threading.Event()

    def run(self, *, asked: Callable[[], bool] = lambda: False) -> None:
        """Keep until `end` is called, or until somebody `asked` for the end."""
        loops = [
            threading.Thread(target=self._loop, args=(duty,), name=duty.name, daemon=duty.waits)
            for duty in self._duties
        ]
        for loop in loops:
            loop.start()
        lead_at = 0.0
        while not (asked() or self._ended.is_set()):
            if time.monotonic() >= lead_at:
                lead_at = time.monotonic() + LEAD_EVERY_S
                self._lead()
            self._ended.wait(LOOK_EVERY_S)
        self._ended.set()
        for loop in loops:
            if not loop.daemon:
                loop.join()
        self._step_down()

    def end(self) -> None:
        """Make `run` return. Not for signal handlers: it takes a lock."""
        self._ended.set()

    def _lead(self) -> None:
        try:
            leading = self._store.run(records.lead(self._who, LEASE_S))
        except RedisUnavailable:
            leading = False
        if leading != self._active.is_set():
            log.info("keeper.active" if leading else "keeper.standby")
        if leading:
            self._active.set()
        else:
            self._active.clear()

    def _step_down(self) -> None:
        try:
            self._store.run(records.step_down(self._who))
        except RedisUnavailable:
            log.warning("keeper.lease_left")  # it ends by itself

    def _loop(self, duty: Duty) -> None:
        pause_s = duty.every_s
        while not self._ended.wait(pause_s):
            pause_s = duty.every_s
            if not (duty.always or self._active.is_set()):
                continue
            try:
                duty.act()
                pause_s = 0 if duty.waits else duty.every_s
            except PenstockError as error:
                log.warning("duty.postponed", duty=duty.name, code=error.code, detail=error.detail)
            except Exception:  # a duty that failed once must be tried again, not die with its thread
                log.exception("duty.failed", duty=duty.name)


def sweep(store: records.Runs, hints: HintSender) -> None:
    """Move the jobs that time moves, in Redis alone: a slow object store delays no lost lease."""
    _report(store.run(records.sweep()), hints)


def end_due(store: records.Runs, objects: ObjectStore, hints: HintSender) -> None:
    """Bring about the ends that time asks for, for jobs that end by an outcome in the object store."""
    _report(Journal(store, objects).run(journal.sweep()), hints)


def settle_reservations(store: records.Runs, objects: ObjectStore) -> None:
    """Confirm what was reserved and then left alone, or forget it."""
    desk = Journal(store, objects)
    for key in store.run(records.reservations(journal.RESERVATION_S)):
        confirmed = desk.run(journal.settle_reservation(key))
        log.info("reservation.settled", job=str(key), confirmed=confirmed)


def settle_endpoints(store: records.Runs, objects: ObjectStore, *, age_s: float = endpoint_changes.SETTLE_S) -> None:
    """Tell Redis of webhook endpoints whose change began so long ago and did not end."""
    desk = Journal(store, objects)
    for key, nonce in store.run(endpoints.changing(age_s, CHANGES)):
        desk.run(endpoint_changes.settle(key, nonce))
        log.info("endpoint.settled", endpoint=str(key))


def top_up_hints(store: records.JobStore, hints: HintSender) -> None:
    """Make sure that every queue with waiting jobs has a hint waiting too."""
    for queue in store.run(queues.backlog()):
        hints.send(queue)


def retire(store: records.Runs, objects: ObjectStore) -> None:
    """Delete what jobs left behind whose retention is over: objects first, then the record."""
    for key in store.run(records.retired()):
        delete_objects(objects, key)
        store.run(records.delete(key))
        log.info("job.purged", job=str(key))


def _report(swept: records.Swept, hints: HintSender) -> None:
    for queue in swept.queues:
        hints.send(queue)
    moved = {name: count for name, count in asdict(swept).items() if count and name not in ("queues", "proposals")}
    if moved:
        log.info("keeper.swept", **moved)


def main(settings: Settings) -> int:
    """Run a keeper until SIGTERM or SIGINT; return the exit code."""
    configure(settings.log_level)
    store = records.JobStore.open(settings.redis_address)
    keep(settings, store, open_store(settings.store_url, settings))
    store.close()
    return 0


def keep(settings: Settings, store: records.JobStore, objects: ObjectStore) -> None:
    """Do all duties on these stores until SIGTERM or SIGINT. To be called from the main thread."""
    guard = GuardedClient(settings)
    deliverer = Deliverer(store, objects, guard, base_url=settings.base_url)
    hints = HintSender(settings.redis_address)
    require_own_outputs(settings.drops)
    drops = open_drops(settings, store, objects)
    watch = Watch(drops, store)
    duties = [
        Duty("sweep", SWEEP_EVERY_S, lambda: sweep(store, hints), always=True),
        Duty("end", SWEEP_EVERY_S, lambda: end_due(store, objects, hints), always=True),
        Duty("reservations", RESERVATIONS_EVERY_S, lambda: settle_reservations(store, objects)),
        Duty("endpoints", ENDPOINTS_EVERY_S, lambda: settle_endpoints(store, objects)),
        Duty("recover", RECOVER_EVERY_S, lambda: recover_if_emptied(store, objects)),
        Duty("hints", HINTS_EVERY_S, lambda: top_up_hints(store, hints), always=True),
        Duty("deliver", DELIVER_EVERY_S, deliverer.deliver_due),
        Duty("retire", RETIRE_EVERY_S, lambda: retire(store, objects)),
        Duty("expand", BATCHES_EVERY_S, Expansion(settings, store, objects, hints).step),
        Duty("complete", BATCHES_EVERY_S, Completion(settings, store, objects).step),
        Duty("retire-batches", RETIRE_EVERY_S, lambda: retire_batches(store, objects)),
        Duty("tidy", TIDY_EVERY_S, lambda: tidy(store, objects, settings)),
        *(Duty(f"drop-{drop.rule.name}", settings.drop_poll_s, drop.step_when_due) for drop in drops),
        *([Duty("drops", DROPS_EVERY_S, watch.attend)] if drops else []),
        *(
            Duty("drop-queue", QUEUE_AGAIN_S, QueueSource(open_queue(url, settings), watch).step, waits=True)
            for url in watch.queue_urls
        ),
    ]
    with Signals() as signals:
        log.info("keeper.started", duties=[duty.name for duty in duties])
        Keeper(store, duties).run(asked=signals.once)
        watch.close()
        deliverer.close()
