"""Sources of object events: events submitted to the API, SQS queues, and the ends of the objects' jobs.

An event only makes the keeper check its object (`drops.Drop.check`). Each event is counted by its outcome.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.config_tables import WEBHOOK
from penstock.errors import EventQueueUnavailable, RequestError
from penstock.object_events import ObjectEvent, is_stale, read_message
from penstock.storage.drop_rules import ObjectPlace, owner
from penstock.storage.redis import drop_events, records
from penstock.storage.redis.drop_events import (
    DUPLICATE,
    FOREIGN,
    HTTP,
    IGNORED,
    MISSING,
    POSTPONED,
    SQS,
    SUBMITTED,
    UNREADABLE,
    Leased,
)
from penstock.storage.sqs import EventQueue, Message
from penstock.workers.keeper.drops import CONCURRENCY, CheckResult, Drop

#: Events claimed at once, of each kind.
LEASED_AT_ONCE = 100
#: Seconds after which a postponed event is left to the next listing.
GIVE_UP_S = 600.0
#: Keys whose last event's sequencer is remembered.
LATEST = 100_000

_OUTCOMES = {
    CheckResult.SUBMITTED: SUBMITTED,
    CheckResult.WAITING: DUPLICATE,
    CheckResult.PUBLISHED: DUPLICATE,
    CheckResult.OVER: DUPLICATE,
    CheckResult.MISSING: MISSING,
    CheckResult.POSTPONED: POSTPONED,
}

log = structlog.get_logger(__name__)


class DropWatch:
    """Checks the objects that events name, several at once."""

    def __init__(self, drops: Sequence[Drop], store: records.Runs) -> None:
        self._drops = {drop.rule.name: drop for drop in drops}
        self._rules = tuple(drop.rule for drop in drops)
        self._store = store
        self._pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="drop-check")
        self._latest: OrderedDict[ObjectPlace, str] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def queue_urls(self) -> tuple[str, ...]:
        """The SQS queues of the rules, each once."""
        return tuple(dict.fromkeys(rule.queue_url for rule in self._rules if rule.queue_url))

    def check_waiting(self) -> None:
        """Check all objects whose events wait in Redis."""
        while leased := self._store.run(drop_events.lease(LEASED_AT_ONCE)):
            self._fit_rules()
            outcomes = list(self._pool.map(self._check_leased, leased))
            settled = [
                each
                for each, outcome in zip(leased, outcomes, strict=True)
                if outcome != POSTPONED or each.age_s >= GIVE_UP_S
            ]
            if settled:
                self._store.run(drop_events.done(settled))
            self.count(HTTP, (o for each, o in zip(leased, outcomes, strict=True) if each.kind == "events"))

    def check_events(self, events: Sequence[ObjectEvent], source: str) -> list[str]:
        """Check the objects of events from a rule's source; return the outcome of each event."""
        if not events:
            return []
        self._fit_rules()
        return list(self._pool.map(lambda event: self._check_event(event, source), events))

    def _fit_rules(self) -> None:
        """Read which suffixes the rules' models take, once for all rules."""
        drops = list(self._drops.values())
        self._rules = drops[0].fit_rules() if drops else ()
        for drop in drops:
            drop.rules = self._rules

    def count(self, source: str, outcomes: Iterable[str]) -> None:
        """Count events by outcome."""
        counted = Counter(outcomes)
        if counted:
            self._store.run(drop_events.count(source, counted))

    def note_queue(self, url: str, problem: str | None) -> None:
        """Store the error that prevents reading an SQS queue, or None if there is none."""
        self._store.run(drop_events.note_queue(url, problem))

    def close(self) -> None:
        """Wait for the checks that have begun."""
        self._pool.shutdown(cancel_futures=True)

    def _check_leased(self, leased: Leased) -> str:
        try:
            return (
                self._check_event(leased.event, WEBHOOK) if leased.kind == "events" else self._after_end(leased.event)
            )
        except (ValueError, TypeError):  # written by another version
            log.warning("drop.unreadable", object=leased.object)
            return UNREADABLE

    def _check_event(self, event: ObjectEvent, source: str) -> str:
        where = ObjectPlace(event.bucket, event.key)
        found = owner(self._rules, where)
        if found is None or found[0].events != source:
            return FOREIGN
        with self._lock:
            if is_stale(event.sequencer, self._latest.get(where)):
                return DUPLICATE
        rule, key = found
        drop = self._drops[rule.name]
        outcome = self._check(drop, key, drop.check)
        if outcome != POSTPONED and event.sequencer is not None:
            self._remember(where, event.sequencer)
        return outcome

    def _after_end(self, event: ObjectEvent) -> str:
        found = owner(self._rules, ObjectPlace(event.bucket, event.key))
        if found is None:
            return FOREIGN
        drop = self._drops[found[0].name]
        return self._check(drop, found[1], drop.check_after_end)

    def _check(self, drop: Drop, key: str, check: Callable[[str], CheckResult]) -> str:
        try:
            return _OUTCOMES[check(key)]
        except Exception as error:  # even an unexpected error of one object must not affect the others
            drop.errors_by_key.note(key, error)
            return POSTPONED

    def _remember(self, where: ObjectPlace, sequencer: str) -> None:
        with self._lock:
            if not is_stale(sequencer, self._latest.get(where)):
                self._latest[where] = sequencer
                self._latest.move_to_end(where)
            if len(self._latest) > LATEST:
                self._latest.popitem(last=False)


class QueueReader:
    """Reads events from an SQS queue. A message is deleted when none of its objects is postponed."""

    def __init__(self, queue: EventQueue, watch: DropWatch) -> None:
        self._queue = queue
        self._watch = watch
        #: True when the queue's last error is known to be cleared.
        self._cleared = False

    def step(self) -> bool:
        """Receive and handle the waiting messages, or wait for one. An error is stored as the rules' problem.

        Return True if messages were deleted: more may wait.
        """
        try:
            deleted = self.handle(self._queue.receive())
        except EventQueueUnavailable as error:
            self._cleared = False
            self._watch.note_queue(self._queue.url, error.detail)
            raise
        if not self._cleared:
            self._watch.note_queue(self._queue.url, None)
            self._cleared = True
        return deleted > 0

    def handle(self, messages: Sequence[Message]) -> int:
        """Check the objects of messages and delete the handled messages; the others are delivered again.

        Return the number of deleted messages.
        """
        read = [self._read(message) for message in messages]
        outcomes = iter(self._watch.check_events([event for events in read for event in events], self._queue.url))
        found = [[next(outcomes) for _ in events] for events in read]
        self._watch.count(SQS, (outcome for each in found for outcome in each))
        return self._queue.delete([m for m, each in zip(messages, found, strict=True) if POSTPONED not in each])

    def _read(self, message: Message) -> tuple[ObjectEvent, ...]:
        try:
            body = read_message(message.body)
        except RequestError as error:
            # Without the body: it may hold the confirmation token of a subscription.
            log.error("drop.unreadable_message", queue=self._queue.url, message=message.id, why=error.detail)  # noqa: TRY400
            self._watch.count(SQS, [UNREADABLE])
            return ()
        if body.unreadable:
            log.error("drop.unreadable_records", queue=self._queue.url, message=message.id, records=body.unreadable)
        self._watch.count(SQS, [IGNORED] * body.ignored + [UNREADABLE] * body.unreadable)
        return body.events
