"""Batches becoming jobs: line after line, a window at a time, as far as there is room.

A line's job has an id made from the batch and the line's number, so that a window which was interrupted is begun again
without doubles; how far the lines had their turn is stored after each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import structlog

from penstock.batches import Batch, BatchKey, Cursor, Invalid, Line, lines_of
from penstock.config import Settings
from penstock.documents import fingerprint, parse_json, validated
from penstock.errors import (
    BatchClosed,
    BatchGone,
    InvalidRequest,
    JobGone,
    ObjectStoreUnavailable,
    PayloadTooLarge,
    PenstockError,
    RedisUnavailable,
    UnknownBatch,
    UnknownJob,
)
from penstock.jobs import Submission
from penstock.models import CatalogueEntry
from penstock.queue import HintSender
from penstock.reports import Issue
from penstock.requests import LineRequest
from penstock.storage import batch_journal, batch_manifests, batches, catalogues, journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.records import QueueLimits
from penstock.storage.references import check_reference, references
from penstock.storage.submissions import Origin, check_input, check_tensors, check_webhook, servable, submission_to
from penstock.workers.outcome_files import custom_id_of

#: Lines of a window, and their bytes together: what a keeper holds in memory.
WINDOW_LINES, WINDOW_BYTES = 256, 8_000_000
#: Lines that become jobs at a time: each waits for the object store, not for us.
CONCURRENCY = 16
#: What batches may take of the limits of a queue and of a tenant: the rest is for jobs that come alone.
SHARE = 0.5
#: How long one step goes on before the duty looks at its orders again.
STEP_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a line's turn: it is a job in a queue, or why it cannot be one."""

    line: Line
    queue: str | None = None
    invalid: Invalid | None = None


@dataclass(frozen=True)
class Expansion:
    """Makes jobs of the lines of all open batches."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    hints: HintSender

    def step(self) -> None:
        """Give each open batch one window after the other, until none gets on or the step is over."""
        ends, stuck = time.monotonic() + STEP_S, set[BatchKey]()
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="expand") as pool:
            while keys := [key for key in self.store.run(batches.open_batches()) if key not in stuck]:
                for key in keys:
                    if time.monotonic() >= ends:
                        return
                    if not self._advanced(key, pool):
                        stuck.add(key)

    def _advanced(self, key: BatchKey, pool: ThreadPoolExecutor) -> bool:
        try:
            return self.advance(key, pool)
        except PenstockError as error:  # one batch's trouble is not its neighbours'
            log.warning("batch.postponed", batch=str(key), code=error.code)
            return False

    def advance(self, key: BatchKey, pool: ThreadPoolExecutor) -> bool:
        """Give a batch one window; False where it got stuck or needs no more."""
        desk = Journal(self.store, self.objects)
        try:
            batch = desk.run(batch_journal.read(key))
        except BatchGone:
            return False
        except UnknownBatch:  # neither store has more of it than its name
            self.store.run(batches.forget(key, purged=False))
            return False
        if batch.reserved:
            if batch.at_s - batch.manifest.created_us / 1e6 > batch_journal.RESERVATION_S:
                desk.run(batch_journal.settle_reservation(batch))
            return False
        if batch.end is not None or batch.closing or batch.expanded:
            return False
        return self._window(batch, pool)

    def _window(self, batch: Batch, pool: ThreadPoolExecutor) -> bool:
        window = read_window(self.objects, batch, self.settings.body_limit_bytes(batch.key.tenant))
        catalogue = self.store.run(catalogues.catalogue())
        desk = Desk(self, batch, catalogue, threading.Event())
        turns = [turn for turn in takewhile(lambda turn: turn is not None, pool.map(desk.serve, window)) if turn]
        for queue in {turn.queue for turn in turns if turn.queue is not None}:
            self.hints.send(queue)
        if turns:
            self._note(batch, turns)
        elif not window:
            raise PenstockError(f"the lines of batch {batch.key} end too early")
        return len(turns) == len(window)

    def _note(self, batch: Batch, turns: Sequence[Turn]) -> None:
        """Store how far the lines had their turn; first why some cannot be jobs."""
        key, before, last = batch.key, batch.cursor, turns[-1].line
        invalid = [turn.invalid for turn in turns if turn.invalid is not None]
        if invalid:
            batch_manifests.put_invalid(self.objects, key, before.line + 1, last.number, invalid)
        cursor = Cursor(last.number, last.end, before.requests + len(turns), before.invalid + len(invalid))
        batch_manifests.put_cursor(self.objects, key, cursor)
        self.store.run(batches.move_on(key, cursor))
        log.info("batch.expanded", batch=str(key), requests=cursor.requests, invalid=cursor.invalid)


def read_window(objects: ObjectStore, batch: Batch, limit_bytes: int) -> list[Line]:
    """Return the lines whose turn is next."""
    window, size_bytes = [], 0
    chunks = objects.read(batch.manifest.lines_key, start=batch.cursor.offset)
    for line in lines_of(chunks, limit_bytes=limit_bytes, after=batch.cursor):
        window.append(line)
        size_bytes += len(line.data or b"")
        if len(window) >= WINDOW_LINES or size_bytes >= WINDOW_BYTES:
            break
    return window


@dataclass(frozen=True)
class Desk:
    """Where the lines of a window have their turn, several at a time. The first without room holds up those behind."""

    expansion: Expansion
    batch: Batch
    catalogue: Mapping[str, CatalogueEntry]
    full: threading.Event

    def serve(self, line: Line) -> Turn | None:
        """Make a line a job, or say why it cannot be one; None while there is no room."""
        if self.full.is_set():
            return None
        try:
            submission = self._submission(line)
            Journal(self.expansion.store, self.expansion.objects).run(journal.submit(submission, self._limits()))
        except JobGone:  # it was a job, and somebody deleted it
            return Turn(line)
        except (RedisUnavailable, ObjectStoreUnavailable):
            self.full.set()
            raise
        except PenstockError as error:
            return self._refused(line, error)
        return Turn(line, queue=submission.queue)

    def _refused(self, line: Line, error: PenstockError) -> Turn | None:
        if error.retryable or isinstance(error, BatchClosed):
            if not self.full.is_set():
                log.debug("batch.waits", batch=str(self.batch.key), line=line.number, code=error.code)
            self.full.set()
            return None
        if self._was_made(line):
            return Turn(line)
        return Turn(line, invalid=Invalid(line.number, error.report(), custom_id_of(line)))

    def _was_made(self, line: Line) -> bool:
        """Whether a turn that was interrupted made the job: what it named may be gone by now."""
        key = self.batch.key.member(line.number)
        try:
            job = Journal(self.expansion.store, self.expansion.objects).run(journal.read(key))
        except JobGone:
            return True
        except UnknownJob:
            return False
        return job.submission.batch_id == self.batch.key.id

    def _submission(self, line: Line) -> Submission:
        settings, manifest = self.expansion.settings, self.batch.manifest
        document = self._document(line)
        wanted = validated(LineRequest, document)
        entry = servable(wanted.model, self.catalogue)
        check_input(entry, wanted.input)
        check_tensors(entry.input_schema, wanted.input, tenant=manifest.key.tenant, settings=settings)
        check_webhook(wanted, settings)
        for place, reference in references(entry, wanted.input):
            check_reference(self.expansion.objects, settings, manifest.key.tenant, entry, place, reference)
        key, origin = manifest.key.member(line.number), Origin(manifest.traceparent)
        submission = submission_to(entry, key, wanted, fingerprint=fingerprint(document), origin=origin)
        return replace(
            submission,
            queue_ttl_s=min(submission.queue_ttl_s, manifest.deadline_s - self.batch.at_s),
            batch_id=manifest.key.id,
            batch_line=line.number,
            custom_id=wanted.custom_id,
        )

    def _document(self, line: Line) -> dict[str, Any]:
        """Return a line's request with what the batch says for those that say nothing."""
        if line.data is None:
            limit_bytes = self.expansion.settings.body_limit_bytes(self.batch.key.tenant)
            raise PayloadTooLarge(f"a line may hold {limit_bytes} bytes")
        document = parse_json(line.data)
        if not isinstance(document, dict):
            raise InvalidRequest(errors=[Issue("", "must be an object")])
        manifest = self.batch.manifest
        model = {} if manifest.model is None else {"model": manifest.model}
        return {**model, "priority": manifest.priority, **document}

    def _limits(self) -> QueueLimits:
        limits, batch = QueueLimits.of(self.expansion.settings), self.batch
        tenant = batch.key.tenant
        return replace(
            limits,
            max_queued=max(1, int(limits.max_queued * SHARE)),
            tenant_jobs={tenant: max(1, int(limits.jobs_of(tenant) * SHARE))},
            # A member is there for as long as the results that name it, whenever the batch ends.
            retention_s=limits.retention_s + batch.manifest.deadline_s - batch.at_s,
        )
