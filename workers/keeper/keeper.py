"""The keeper: periodic duties, webhooks, drops, batches, subscriptions. Several may run; a lease makes one active.

Each duty runs in its own thread, so that a slow duty delays no other. A keeper may die at any moment: no duty needs
its state in memory.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog

from penstock.config import Settings
from penstock.errors import JobStoreError, PenstockError, RecordTooNew
from penstock.formats import RUNS
from penstock.intake.guard import GuardedClient
from penstock.observation.log import configure
from penstock.observation.telemetry import open_spans
from penstock.signals import POLL_EVERY_S, Signals
from penstock.storage.drop_rules import require_own_outputs
from penstock.storage.hints import HintSender
from penstock.storage.journal import endpoint_changes, endpoints, journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.queue_modes import store_modes
from penstock.storage.journal.stored_models import StoredModels, store_checks
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_own_store
from penstock.storage.redis import catalogues, queues, records, upkeep
from penstock.storage.sqs import open_queue
from penstock.workers.keeper.batch_completion import Completion
from penstock.workers.keeper.batch_expansion import Expansion
from penstock.workers.keeper.drop_watch import DropWatch, QueueReader
from penstock.workers.keeper.drops import open_drops
from penstock.workers.keeper.job_traces import JobTraces
from penstock.workers.keeper.purge import retire, retire_batches
from penstock.workers.keeper.recovery import recover_if_lost
from penstock.workers.keeper.retention import delete_leftovers_when_due
from penstock.workers.keeper.subscription_polls import SubscriptionPolls
from penstock.workers.keeper.webhooks import Deliverer

#: Seconds that a dead keeper's lease lasts.
LEASE_S = 10.0
LEAD_EVERY_S = 2.0
SWEEP_EVERY_S = 1.0
RECOVER_EVERY_S = 2.0
RESERVATIONS_EVERY_S = 10.0
ENDPOINTS_EVERY_S = 10.0
HINTS_EVERY_S = 2.0
DELIVER_EVERY_S = 0.5
ANSWERED_EVERY_S = 2.0
RETIRE_EVERY_S = 10.0
#: Seconds between two checks if the hourly deletion of leftovers is due. Redis keeps its time, also over restarts.
TIDY_EVERY_S = 60.0
#: Webhook endpoints settled at once, at most.
CHANGES = 500
MODELS_EVERY_S = 5.0
BATCHES_EVERY_S = 1.0
DROPS_EVERY_S = 0.5
SPANS_EVERY_S = 1.0
SUBSCRIPTIONS_EVERY_S = 2.0
QUEUE_AGAIN_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """An action that is repeated while this keeper is the active one."""

    name: str
    every_s: float
    #: One bounded step. It is repeated at once while it returns True: more is due.
    act: Callable[[], object]
    #: Runs also while another keeper is active: for actions that any number of keepers may repeat. The lease of a dead
    #: keeper, which lasts `LEASE_S`, then delays no lost job.
    always: bool = False
    #: The action itself waits for an event, for example in a long poll. `every_s` then counts from the start of the
    #: action, after an error from its end. The keeper does not wait for such an action when it stops.
    waits: bool = False

    def pause_s(self, *, more: bool, took_s: float) -> float:
        """Return the seconds between the end of an action that took `took_s` and the next one."""
        if more:
            return 0.0
        return max(0.0, self.every_s - took_s) if self.waits else self.every_s


class Keeper:
    """Runs the duties, each in its own thread."""

    def __init__(self, store: records.Runs, duties: list[Duty]) -> None:
        self._store = store
        self._duties = duties
        self._who = uuid.uuid4().hex
        self._active = threading.Event()
        self._ended = threading.Event()

    def run(self, *, stop_requested: Callable[[], bool] = lambda: False) -> None:
        """Run the duties until `end` is called or `stop_requested` returns True."""
        loops = [
            threading.Thread(target=self._loop, args=(duty,), name=duty.name, daemon=duty.waits)
            for duty in self._duties
        ]
        for loop in loops:
            loop.start()
        lead_at = 0.0
        while not (stop_requested() or self._ended.is_set()):
            if time.monotonic() >= lead_at:
                lead_at = time.monotonic() + LEAD_EVERY_S
                self._lead()
            self._ended.wait(POLL_EVERY_S)
        self._ended.set()
        for loop in loops:
            if not loop.daemon:
                loop.join()
        self._step_down()

    def end(self) -> None:
        """Make `run` return. Not for signal handlers: `end` takes a lock."""
        self._ended.set()

    def _lead(self) -> None:
        try:
            leading = self._store.run(upkeep.lead(self._who, LEASE_S))
        except JobStoreError:
            leading = False
        if leading != self._active.is_set():
            log.info("keeper.active" if leading else "keeper.standby")
        if leading:
            self._active.set()
        else:
            self._active.clear()

    def _step_down(self) -> None:
        try:
            self._store.run(upkeep.step_down(self._who))
        except JobStoreError:
            log.warning("keeper.lease_not_released")  # the lease expires by itself

    def _loop(self, duty: Duty) -> None:
        pause_s = duty.every_s
        while not self._ended.wait(pause_s):
            pause_s = duty.every_s
            if not (duty.always or self._active.is_set()):
                continue
            try:
                begun_s = time.monotonic()
                more = duty.act() is True
                pause_s = duty.pause_s(more=more, took_s=time.monotonic() - begun_s)
            except PenstockError as error:
                log.warning("duty.postponed", duty=duty.name, code=error.code, detail=error.detail)
            except Exception:  # a failed duty must be tried again; its thread must not end
                log.exception("duty.failed", duty=duty.name)


def sweep(store: records.Runs, hints: HintSender) -> None:
    """Apply the state changes that are due, in Redis alone: a slow object store delays no lost lease."""
    _report(store.run(records.sweep()), hints)


def end_due(store: records.Runs, objects: ObjectStore, hints: HintSender) -> None:
    """End the jobs whose time is over and whose end needs an outcome in the object store."""
    _report(Journal(store, objects).run(journal.sweep()), hints)


def settle_reservations(store: records.Runs, objects: ObjectStore) -> None:
    """Confirm or drop reservations whose submission did not finish."""
    both_stores = Journal(store, objects)
    for key in store.run(upkeep.reservations(journal.RESERVATION_S)):
        try:
            confirmed = both_stores.run(journal.settle_reservation(key))
        except RecordTooNew:
            continue  # a newer keeper settles it
        log.info("reservation.settled", job=str(key), confirmed=confirmed)


def settle_endpoints(store: records.Runs, objects: ObjectStore, *, age_s: float = endpoint_changes.SETTLE_S) -> None:
    """Publish to Redis the webhook endpoints whose change began `age_s` ago and did not finish."""
    both_stores = Journal(store, objects)
    for key, nonce in store.run(endpoints.changing(age_s, CHANGES)):
        try:
            both_stores.run(endpoint_changes.settle(key, nonce))
        except RecordTooNew:
            continue  # a newer keeper settles it
        log.info("endpoint.settled", endpoint=str(key))


def store_models(store: records.Runs, objects: ObjectStore, cache: StoredModels) -> None:
    """Put the checks of living workers into the object store, where they outlive Redis and the workers."""
    known, gone = store.run(catalogues.known()), store.run(catalogues.left())
    stored = cache.read(fresh_s=0)
    if changed := store_checks(objects, known, gone, stored):
        log.info("models.stored", changed=changed)


def top_up_hints(store: records.JobStore, hints: HintSender) -> None:
    """Send a hint to every queue with waiting jobs."""
    for queue in store.run(queues.backlog()):
        hints.send(queue)


def report_newer(store: records.Runs) -> None:
    """Log the waiting jobs that only a newer release can run."""
    found = store.run(queues.newer())
    if found.jobs:
        log.warning("jobs.newer", jobs=found.jobs, version=found.version, runs=RUNS)


def _report(swept: records.Swept, hints: HintSender) -> None:
    for queue in swept.queues:
        hints.send(queue)
    moved = {name: count for name, count in asdict(swept).items() if count and isinstance(count, int)}
    if moved:
        log.info("keeper.swept", **moved)


def main(settings: Settings) -> int:
    """Run a keeper until SIGTERM or SIGINT; return the exit code."""
    configure(settings.log_level)
    store = records.JobStore.open(settings.redis_address)
    keep(settings, store, open_own_store(settings))
    store.close()
    return 0


def keep(settings: Settings, store: records.JobStore, objects: ObjectStore) -> None:
    """Run all duties on these stores until SIGTERM or SIGINT. Must be called from the main thread."""
    guard = GuardedClient(settings)
    spans = open_spans("keeper")
    deliverer = Deliverer(
        store, objects, guard, base_url=settings.base_url,
        output_bytes=settings.inline_output_bytes, spans=spans,
    )  # fmt: skip
    hints = HintSender(settings.redis_address)
    require_own_outputs(settings.drops)
    drops = open_drops(settings, store, objects)
    watch = DropWatch(drops, store)
    models = StoredModels(objects)
    polls = SubscriptionPolls(settings, store, objects, hints)
    duties = [
        Duty("sweep", SWEEP_EVERY_S, lambda: sweep(store, hints), always=True),
        Duty("end", SWEEP_EVERY_S, lambda: end_due(store, objects, hints), always=True),
        Duty("reservations", RESERVATIONS_EVERY_S, lambda: settle_reservations(store, objects)),
        Duty("endpoints", ENDPOINTS_EVERY_S, lambda: settle_endpoints(store, objects)),
        Duty("recover", RECOVER_EVERY_S, lambda: recover_if_lost(store, objects)),
        Duty("hints", HINTS_EVERY_S, lambda: top_up_hints(store, hints), always=True),
        Duty("deliver", DELIVER_EVERY_S, deliverer.deliver_due),
        Duty("answered", ANSWERED_EVERY_S, deliverer.write_answered, always=True),
        Duty("newer", TIDY_EVERY_S, lambda: report_newer(store)),
        Duty("retire", RETIRE_EVERY_S, lambda: retire(store, objects)),
        Duty("expand", BATCHES_EVERY_S, Expansion(settings, store, objects, hints).step),
        Duty("complete", BATCHES_EVERY_S, Completion(settings, store, objects).step),
        Duty("retire-batches", RETIRE_EVERY_S, lambda: retire_batches(store, objects)),
        Duty("models", MODELS_EVERY_S, lambda: store_models(store, objects, models)),
        Duty("modes", MODELS_EVERY_S, lambda: store_modes(store, objects)),
        Duty("retention", TIDY_EVERY_S, lambda: delete_leftovers_when_due(store, objects, settings)),
        Duty("subscriptions", SUBSCRIPTIONS_EVERY_S, polls.step),
        *([Duty("spans", SPANS_EVERY_S, JobTraces(store, spans).step)] if spans.wanted else []),
        *(Duty(f"drop-{drop.rule.name}", settings.drop_poll_s, drop.step_when_due) for drop in drops),
        *([Duty("drops", DROPS_EVERY_S, watch.check_waiting)] if drops else []),
        *(
            Duty("drop-queue", QUEUE_AGAIN_S, QueueReader(open_queue(url, settings), watch).step, waits=True)
            for url in watch.queue_urls
        ),
    ]
    with Signals() as signals:
        log.info("keeper.started", duties=[duty.name for duty in duties])
        Keeper(store, duties).run(stop_requested=signals.once)
        watch.close()
        polls.close()
        deliverer.close()
        spans.close()
