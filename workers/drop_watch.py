"""Whoever tells of dropped objects: the events that the API took in, SQS queues, and the ends of their jobs.

An event causes a look at its object (`drops.Drop.look`) and nothing more. Each is counted by what became of it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.config import WEBHOOK
from penstock.drop_rules import Place, owner
from penstock.errors import EventQueueUnavailable, RequestError
from penstock.object_events import ObjectEvent, is_stale, read_message
from penstock.storage import drop_events, records
from penstock.storage.drop_events import (
    DUPLICATE,
    FOREIGN,
    HTTP,
    IGNORED,
    MISSING,
    POSTPONED,
    SQS,
    SUBMITTED,
    UNREADABLE,
    Lent,
)
from penstock.storage.sqs import EventQueue, Message
from penstock.workers.drops import AT_A_TIME, Drop, Next

#: Borrowed at a time, of each kind.
LENT = 100
#: After this an event that could not be dealt with is left to the listing.
GIVE_UP_S = 600.0
#: Of as many keys it is known how new the last event was.
LATEST = 100_000

_OUTCOMES = {
    Next.SUBMITTED: SUBMITTED,
    Next.WAITING: DUPLICATE,
    Next.PUBLISHED: DUPLICATE,
    Next.OVER: DUPLICATE,
    Next.MISSING: MISSING,
    Next.POSTPONED: POSTPONED,
}

log = structlog.get_logger(__name__)


class Watch:
    """Looks at the objects that somebody told of, several at a time."""

    def __init__(self, drops: Sequence[Drop], store: records.Runs) -> None:
        self._drops = {drop.rule.name: drop for drop in drops}
        self._rules = tuple(drop.rule for drop in drops)
        self._store = store
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="drop-look")
        self._latest: OrderedDict[Place, str] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def queue_urls(self) -> tuple[str, ...]:
        """The SQS queues that rules name, each once."""
        return tuple(dict.fromkeys(rule.queue_url for rule in self._rules if rule.queue_url))

    def attend(self) -> None:
        """Look at all objects that wait in Redis for it."""
        while lent := self._store.run(drop_events.take(LENT)):
            outcomes = list(self._pool.map(self._look_at_lent, lent))
            settled = [
                each
                for each, outcome in zip(lent, outcomes, strict=True)
                if outcome != POSTPONED or each.age_s >= GIVE_UP_S
            ]
            if settled:
                self._store.run(drop_events.done(settled))
            self.count(HTTP, (o for each, o in zip(lent, outcomes, strict=True) if each.kind == "events"))

    def hear(self, events: Sequence[ObjectEvent], source: str) -> list[str]:
        """Look at the objects of events that came from a rule's source; return what became of each."""
        return list(self._pool.map(lambda event: self._hear_one(event, source), events))

    def count(self, source: str, outcomes: Iterable[str]) -> None:
        """Count events by what became of them."""
        counted = Counter(outcomes)
        if counted:
            self._store.run(drop_events.count(source, counted))

    def note_queue(self, url: str, problem: str | None) -> None:
        """Tell what keeps an SQS queue from being heard; None where nothing does."""
        self._store.run(drop_events.note_queue(url, problem))

    def close(self) -> None:
        """Wait for the looks that have begun."""
        self._pool.shutdown(cancel_futures=True)

    def _look_at_lent(self, lent: Lent) -> str:
        try:
            return self._hear_one(lent.event, WEBHOOK) if lent.kind == "events" else self._after_end(lent.event)
        except (ValueError, TypeError):  # written by another version
            log.warning("drop.unreadable", object=lent.object)
            return UNREADABLE

    def _hear_one(self, event: ObjectEvent, source: str) -> str:
        where = Place(event.bucket, event.key)
        found = owner(self._rules, where)
        if found is None or found[0].events != source:
            return FOREIGN
        with self._lock:
            if is_stale(event.sequencer, self._latest.get(where)):
                return DUPLICATE
        rule, key = found
        drop = self._drops[rule.name]
        outcome = self._look(drop, key, drop.look)
        if outcome != POSTPONED and event.sequencer is not None:
            self._remember(where, event.sequencer)
        return outcome

    def _after_end(self, event: ObjectEvent) -> str:
        found = owner(self._rules, Place(event.bucket, event.key))
        if found is None:
            return FOREIGN
        drop = self._drops[found[0].name]
        return self._look(drop, found[1], drop.look_after_end)

    def _look(self, drop: Drop, key: str, look: Callable[[str], Next]) -> str:
        try:
            return _OUTCOMES[look(key)]
        except Exception as error:  # one object's trouble, were it a fault of ours, is not its neighbours'
            drop.troubles.tell(key, error)
            return POSTPONED

    def _remember(self, where: Place, sequencer: str) -> None:
        with self._lock:
            if not is_stale(sequencer, self._latest.get(where)):
                self._latest[where] = sequencer
                self._latest.move_to_end(where)
            if len(self._latest) > LATEST:
                self._latest.popitem(last=False)


class QueueSource:
    """Hears events from an SQS queue. A message is deleted when its objects need it no more."""

    def __init__(self, queue: EventQueue, watch: Watch) -> None:
        self._queue = queue
        self._watch = watch
        #: Whether the rules' problem is known to be none.
        self._heard = False

    def step(self) -> None:
        """Receive what is there, or wait a while for it, and take it. What keeps it from that is the rules' problem."""
        try:
            if messages := self._queue.receive():
                self.take(messages)
        except EventQueueUnavailable as error:
            self._heard = False
            self._watch.note_queue(self._queue.url, error.detail)
            raise
        if not self._heard:
            self._watch.note_queue(self._queue.url, None)
            self._heard = True

    def take(self, messages: Sequence[Message]) -> None:
        """Look at what messages tell of, and delete those that are dealt with; the others come again."""
        read = [self._read(message) for message in messages]
        outcomes = iter(self._watch.hear([event for events in read for event in events], self._queue.url))
        found = [[next(outcomes) for _ in events] for events in read]
        self._watch.count(SQS, (outcome for each in found for outcome in each))
        self._queue.delete([m for m, each in zip(messages, found, strict=True) if POSTPONED not in each])

    def _read(self, message: Message) -> tuple[ObjectEvent, ...]:
        try:
            said = read_message(message.body)
        except RequestError as error:
            # Not the body: it may hold what confirms a subscription.
            log.error("drop.unreadable_message", queue=self._queue.url, message=message.id, why=error.detail)  # noqa: TRY400
            self._watch.count(SQS, [UNREADABLE])
            return ()
        if said.unreadable:
            log.error("drop.unreadable_records", queue=self._queue.url, message=message.id, records=said.unreadable)
        self._watch.count(SQS, [IGNORED] * said.ignored + [UNREADABLE] * said.unreadable)
        return said.events
