"""The keeper: what time, webhooks and buckets ask for. Several may run; one is active, by a lease.

Each duty is a loop of its own, so that a slow one delays no other. None keeps anything in memory that it could not
lose: a keeper may die at any moment.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType

import structlog

from penstock.config import Settings
from penstock.errors import PenstockError, RedisUnavailable
from penstock.log import configure
from penstock.queue import HintSender
from penstock.storage import journal, queues, records
from penstock.storage.base import ObjectStore
from penstock.storage.guard import GuardedClient
from penstock.storage.journal import Journal
from penstock.storage.manifests import delete_objects
from penstock.storage.objects import open_store
from penstock.workers.drops import open_drops
from penstock.workers.recover import recover_if_emptied
from penstock.workers.tidy import tidy
from penstock.workers.webhooks import Deliverer

#: How long a dead keeper's place stays taken.
LEASE_S = 10.0
LEAD_EVERY_S = 2.0
SWEEP_EVERY_S = 1.0
RECOVER_EVERY_S = 2.0
RESERVATIONS_EVERY_S = 10.0
HINTS_EVERY_S = 2.0
DELIVER_EVERY_S = 0.5
RETIRE_EVERY_S = 60.0
TIDY_EVERY_S = 3600.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to do again and again while this keeper is the active one."""

    name: str
    every_s: float
    act: Callable[[], object]


class Keeper:
    """Runs the duties, each in its own thread."""

    def __init__(self, store: records.Runs, duties: list[Duty]) -> None:
        self._store = store
        self._duties = duties
        self._who = uuid.uuid4().hex
        self._active = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        """Keep until `end` is called."""
        loops = [threading.Thread(target=self._loop, args=(duty,), name=duty.name) for duty in self._duties]
        for loop in loops:
            loop.start()
        while not self._ended.is_set():
            self._lead()
            self._ended.wait(LEAD_EVERY_S)
        for loop in loops:
            loop.join()
        self._step_down()

    def end(self) -> None:
        """Make `run` return."""
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
        while not self._ended.wait(duty.every_s):
            if not self._active.is_set():
                continue
            try:
                duty.act()
            except PenstockError as error:
                log.warning("duty.postponed", duty=duty.name, code=error.code)
            except Exception:  # a duty that failed once must be tried again, not die with its thread
                log.exception("duty.failed", duty=duty.name)


def sweep(store: records.Runs) -> None:
    """Move the jobs that time moves, in Redis alone: a slow object store delays no lost lease."""
    _report(store.run(records.sweep()))


def end_due(store: records.Runs, objects: ObjectStore) -> None:
    """Bring about the ends that time asks for, for jobs that end by an outcome in the object store."""
    _report(Journal(store, objects).run(journal.sweep()))


def settle_reservations(store: records.Runs, objects: ObjectStore) -> None:
    """Confirm what was reserved and then left alone, or forget it."""
    desk = Journal(store, objects)
    for key in store.run(records.reservations(journal.RESERVATION_S)):
        confirmed = desk.run(journal.settle_reservation(key))
        log.info("reservation.settled", job=str(key), confirmed=confirmed)


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


def _report(swept: records.Swept) -> None:
    moved = {name: count for name, count in asdict(swept).items() if count and name != "proposals"}
    if moved:
        log.info("keeper.swept", **moved)


def main(settings: Settings) -> int:
    """Run a keeper until SIGTERM or SIGINT; return the exit code."""
    configure(settings.log_level)
    store = records.JobStore.open(settings.redis_address)
    objects = open_store(settings.store_url, settings)
    guard = GuardedClient(settings)
    deliverer = Deliverer(store, objects, guard, base_url=settings.base_url)
    hints = HintSender(settings.redis_address)
    duties = [
        Duty("sweep", SWEEP_EVERY_S, lambda: sweep(store)),
        Duty("end", SWEEP_EVERY_S, lambda: end_due(store, objects)),
        Duty("reservations", RESERVATIONS_EVERY_S, lambda: settle_reservations(store, objects)),
        Duty("recover", RECOVER_EVERY_S, lambda: recover_if_emptied(store, objects)),
        Duty("hints", HINTS_EVERY_S, lambda: top_up_hints(store, hints)),
        Duty("deliver", DELIVER_EVERY_S, deliverer.deliver_due),
        Duty("retire", RETIRE_EVERY_S, lambda: retire(store, objects)),
        Duty("tidy", TIDY_EVERY_S, lambda: tidy(store, objects, settings)),
        *(Duty(f"drop-{d.rule.name}", settings.drop_poll_s, d.step) for d in open_drops(settings, store, objects)),
    ]
    keeper = Keeper(store, duties)

    def end(_signal: int, _frame: FrameType | None) -> None:
        keeper.end()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    log.info("keeper.started", duties=[duty.name for duty in duties])
    keeper.run()
    deliverer.close()
    store.close()
    return 0
