"""Expansion of batches: outcomes lines into jobs, one window of lines after the other, as far as the limits allow.

A job's id is made from the batch and the line's number, so an interrupted window is repeated without duplicates.
The position is stored after each window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from typing import Any

import structlog

from penstock.batches import Batch, BatchKey, Cursor, Invalid, Line, lines_of
from penstock.config import Settings
from penstock.errors import (
    BatchClosed,
    BatchGone,
    InvalidRequest,
    Issue,
    JobGone,
    JobStoreError,
    ObjectStoreUnavailable,
    PayloadTooLarge,
    PenstockError,
    StorageQuotaExceeded,
    UnknownBatch,
    UnknownJob,
)
from penstock.formats import RUNS
from penstock.intake.inline_media import with_stored_media
from penstock.intake.references import check_reference, total_bytes
from penstock.intake.submissions import Origin, check_webhook, examine, refuse_tensors, servable, submission_to
from penstock.jobs import JobKey, Submission
from penstock.json_body import fingerprint, parse_json, validated
from penstock.models import CatalogueEntry, media_by_range
from penstock.requests import LineRequest
from penstock.storage.hints import HintSender
from penstock.storage.journal import batch_journal, batch_manifests, journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.stored_models import StoredModels, merged
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import batches, catalogues, records
from penstock.storage.redis.records import QueueLimits
from penstock.storage.redis.usage import keep_upload
from penstock.workers.keeper.batch_files import custom_id_of

#: Lines of a window, and bytes of all of them, at most: the keeper holds one window in memory.
WINDOW_LINES, WINDOW_BYTES = 256, 8_000_000
#: Lines submitted at once: each waits for the object store most of the time.
CONCURRENCY = 16
#: Share of a queue's and a tenant's limits that batches may use: the rest is for single jobs.
SHARE = 0.5
#: Seconds of one step, at most; then the keeper checks whether it must stop.
STEP_S = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineExpansion:
    """The outcome of expanding a line: its job's queue, or why the line cannot be a job."""

    line: Line
    queue: str | None = None
    invalid: Invalid | None = None


@dataclass(frozen=True)
class Expansion:
    """Submits the lines of all open batches as jobs."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    hints: HintSender

    @cached_property
    def models(self) -> StoredModels:
        """The models in the object store."""
        return StoredModels(self.objects)

    def step(self) -> None:
        """Expand one window of each open batch in turn, until no batch can continue or the step is over."""
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
        except PenstockError as error:  # an error of one batch must not affect the others
            log.warning("batch.postponed", batch=str(key), code=error.code)
            return False

    def advance(self, key: BatchKey, pool: ThreadPoolExecutor) -> bool:
        """Expand one window of a batch; return False if the batch cannot continue or is expanded."""
        both_stores = Journal(self.store, self.objects)
        try:
            batch = both_stores.run(batch_journal.read(key))
        except BatchGone:
            return False
        except UnknownBatch:  # both stores have nothing but its name
            self.store.run(batches.forget(key, purged=False))
            return False
        if batch.manifest.version > RUNS:
            return False  # a newer keeper expands it
        if batch.reserved:
            if batch.at_s - batch.manifest.created_us / 1e6 > batch_journal.RESERVATION_S:
                both_stores.run(batch_journal.settle_reservation(batch))
            return False
        if batch.end is not None or batch.closing or batch.expanded:
            return False
        return self._window(batch, pool)

    def _window(self, batch: Batch, pool: ThreadPoolExecutor) -> bool:
        window = read_window(self.objects, batch, self.settings.body_limit_bytes(batch.key.tenant))
        catalogue = merged(self.store.run(catalogues.known()), self.models.read(fresh_s=0))
        jobs = WindowSubmission(self, batch, catalogue, threading.Event())
        outcomes = [
            outcome for outcome in takewhile(lambda found: found is not None, pool.map(jobs.submit, window)) if outcome
        ]
        for queue in {outcome.queue for outcome in outcomes if outcome.queue is not None}:
            self.hints.send(queue)
        if outcomes:
            self._store_position(batch, outcomes)
        elif not window:
            raise PenstockError(f"the lines of batch {batch.key} end too early")
        return len(outcomes) == len(window)

    def _store_position(self, batch: Batch, outcomes: Sequence[LineExpansion]) -> None:
        """Store the position of the batch; before that, the invalid lines."""
        key, before, last = batch.key, batch.cursor, outcomes[-1].line
        invalid = [outcome.invalid for outcome in outcomes if outcome.invalid is not None]
        if invalid:
            batch_manifests.put_invalid(self.objects, key, before.line + 1, last.number, invalid)
        cursor = Cursor(last.number, last.end, before.requests + len(outcomes), before.invalid + len(invalid))
        batch_manifests.put_cursor(self.objects, key, cursor)
        self.store.run(batches.move_on(key, cursor))
        log.info("batch.expanded", batch=str(key), requests=cursor.requests, invalid=cursor.invalid)


def read_window(objects: ObjectStore, batch: Batch, limit_bytes: int) -> list[Line]:
    """Return the next lines to expand."""
    window, size_bytes = [], 0
    chunks = objects.read(batch.manifest.lines_key, start=batch.cursor.offset)
    for line in lines_of(chunks, limit_bytes=limit_bytes, after=batch.cursor):
        window.append(line)
        size_bytes += len(line.data or b"")
        if len(window) >= WINDOW_LINES or size_bytes >= WINDOW_BYTES:
            break
    return window


@dataclass(frozen=True)
class WindowSubmission:
    """Submits the lines of a window, several at once. After the first line without room, the later lines wait."""

    expansion: Expansion
    batch: Batch
    catalogue: Mapping[str, CatalogueEntry]
    full: threading.Event

    def submit(self, line: Line) -> LineExpansion | None:
        """Submit a line as a job, or return why it cannot be one; None while there is no room."""
        if self.full.is_set():
            return None
        try:
            submission = self._submission(line)
            Journal(self.expansion.store, self.expansion.objects).run(journal.submit(submission, self._limits()))
        except JobGone:  # the line was a job, which was deleted
            return LineExpansion(line)
        except (JobStoreError, ObjectStoreUnavailable):
            self.full.set()
            raise
        except PenstockError as error:
            return self._rejected(line, error)
        return LineExpansion(line, queue=submission.queue)

    def _rejected(self, line: Line, error: PenstockError) -> LineExpansion | None:
        if error.retryable or isinstance(error, BatchClosed):
            if not self.full.is_set():
                log.debug("batch.waiting", batch=str(self.batch.key), line=line.number, code=error.code)
            self.full.set()
            return None
        if self._was_submitted(line):
            return LineExpansion(line)
        return LineExpansion(line, invalid=Invalid(line.number, error.report(), custom_id_of(line)))

    def _was_submitted(self, line: Line) -> bool:
        """Return True if an interrupted window submitted the line: since then, its media or model may be gone."""
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
        key = manifest.key.member(line.number)
        entry = servable(wanted.model, self.catalogue, key.id)
        wanted = wanted.model_copy(update={"input": self._with_stored_media(entry, key, wanted.input)})
        found = examine(entry, wanted.input)
        refuse_tensors(found.tensors, tenant=manifest.key.tenant, settings=settings)
        check_webhook(wanted, settings)
        by_range = media_by_range(entry.input_schema, wanted.input)
        check = partial(check_reference, self.expansion.objects, settings, manifest.key.tenant, entry)
        sizes = {reference: check(place, reference, by_range=reference in by_range) for place, reference in found.media}
        origin = Origin(manifest.traceparent)
        submission = submission_to(entry, key, wanted, fingerprint=fingerprint(document), origin=origin)
        submission = replace(submission, media_bytes=total_bytes(sizes.values()))
        return replace(
            submission,
            queue_ttl_s=min(submission.queue_ttl_s, manifest.deadline_s - self.batch.at_s),
            batch_id=manifest.key.id,
            batch_line=line.number,
            custom_id=wanted.custom_id,
        )

    def _with_stored_media(self, entry: CatalogueEntry, key: JobKey, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a line's input with uploads in the place of inline media."""
        settings, store = self.expansion.settings, self.expansion.store
        limit = settings.kept_limit_bytes(key.tenant)

        def require_room(upload_id: str, size_bytes: int) -> None:
            kept = None if limit is None else store.run(keep_upload(key.tenant, upload_id, size_bytes, limit))
            if kept is not None:
                raise StorageQuotaExceeded(f"the tenant keeps {kept} of {limit} bytes, and the medium has {size_bytes}")

        return with_stored_media(
            entry, key, value, settings=settings, objects=self.expansion.objects, require_room=require_room
        )

    def _document(self, line: Line) -> dict[str, Any]:
        """Return a line's request, completed with the batch's model and priority."""
        if line.data is None:
            limit_bytes = self.expansion.settings.body_limit_bytes(self.batch.key.tenant)
            raise PayloadTooLarge(f"the line is too long; {limit_bytes} bytes are allowed")
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
            # A member is kept for as long as the result files that name it, whenever the batch ends.
            retention_s=limits.retention_s + batch.manifest.deadline_s - batch.at_s,
        )
