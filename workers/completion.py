"""Batches ending: what a cancel or the end of their time stops, and the files that say what each line came to."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog

from penstock.batches import Batch, BatchEnd, BatchKey, Counts, Invalid, Line, Verdict, final_status, lines_of
from penstock.config import Settings
from penstock.errors import (
    BatchGone,
    Canceled,
    JobGone,
    PenstockError,
    QueueExpired,
    StateConflict,
    UnknownBatch,
    UnknownJob,
)
from penstock.jobs import TERMINAL, JobKey
from penstock.storage import batch_journal, batch_manifests, batches, journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.manifests import delete_objects
from penstock.storage.spool import own_folder
from penstock.workers.outcome_files import (
    CONTENT_TYPE,
    ERRORS,
    RESULTS,
    OutcomeFile,
    custom_id_of,
    error_row,
    job_row,
    result_row,
)

#: Members that are looked at, or stopped, at a time: what a keeper holds of them in memory.
WINDOW = 64
CONCURRENCY = 16

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a line came to, and the row that says so."""

    verdict: Verdict
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """Ends the batches whose members are all over, or are to be."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore

    def step(self) -> None:
        """Look at each open batch once."""
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="complete") as pool:
            for key in self.store.run(batches.open_batches()):
                try:
                    self.advance(key, pool)
                except (UnknownBatch, BatchGone):
                    continue  # the expansion forgets it
                except PenstockError as error:  # one batch's trouble is not its neighbours'
                    log.warning("batch.postponed", batch=str(key), code=error.code)

    def advance(self, key: BatchKey, pool: ThreadPoolExecutor) -> None:
        """Do what comes next for the end of a batch, if it is time."""
        batch = self._desk.run(batch_journal.read(key))
        if batch.end is not None:
            self.store.run(batches.end(key, batch.end))
        elif not batch.reserved and (batch.closing or batch.expanded):
            self.store.run(batches.close(key))
            if batch.closing:
                self._stop(batch, pool)
            if not self.store.run(batches.read(key)).live:
                self._finish(batch, pool)

    @property
    def _desk(self) -> Journal:
        return Journal(self.store, self.objects)

    def _stop(self, batch: Batch, pool: ThreadPoolExecutor) -> None:
        """Ask for the end of every member; running ones end when their workers see it."""
        flow = journal.cancel if batch.cancel_requested else journal.expire

        def stop(member: JobKey) -> None:
            with suppress(UnknownJob, JobGone):
                self._desk.run(flow(member))

        cursor = "0"
        while True:
            cursor, members = self.store.run(batches.live(batch.key, cursor))
            list(pool.map(stop, members))
            if cursor == "0":
                return

    def _finish(self, batch: Batch, pool: ThreadPoolExecutor) -> None:
        """Write what each line came to, and end the batch; nothing where a member turns out not to be over."""
        prefix = f"{batch.key.prefix}ends/{uuid.uuid4().hex}/"
        with own_folder(self.settings.spool_dir) as folder:
            with OutcomeFile(folder, RESULTS) as results, OutcomeFile(folder, ERRORS) as errors:
                found = self._write(batch, pool, results, errors)
            if found is None:
                return
            for file in (results, errors):
                self.objects.put_file(prefix + file.path.name, file.path, content_type=CONTENT_TYPE)
        now_s = self.store.run(batches.clock()) / 1e6
        status = final_status(
            found, cancel_requested=batch.cancel_requested, overdue=batch.at_s >= batch.manifest.deadline_s
        )
        ended = BatchEnd(status, found, now_s, (results.artifact(prefix), errors.artifact(prefix)))
        if self._desk.run(batch_journal.finish(batch.key, ended)) != ended:
            self.objects.delete_prefix(prefix)  # another keeper was first
        log.info("batch.ended", batch=str(batch.key), status=status.value)

    def _write(
        self, batch: Batch, pool: ThreadPoolExecutor, results: OutcomeFile, errors: OutcomeFile
    ) -> Counts | None:
        counted = Counter[Verdict]()
        reading = Reading(self, batch, batch_manifests.invalid_parts(self.objects, batch.key))
        chunks = self.objects.read(batch.manifest.lines_key)
        limit_bytes = self.settings.body_limit_bytes(batch.key.tenant)
        for window in _windows(lines_of(chunks, limit_bytes=limit_bytes), WINDOW):
            for finding in pool.map(reading.finder(window), window):
                if finding is None:
                    return None
                counted[finding.verdict] += 1
                (results if finding.verdict is Verdict.SUCCEEDED else errors).write(finding.row)
        by_name = {verdict.value: count for verdict, count in counted.items()}
        return Counts(sum(counted.values()), **by_name)


@dataclass(frozen=True)
class Reading:
    """Reads what lines came to."""

    completion: Completion
    batch: Batch
    #: The ranges of lines for which it is stored why some of them are no jobs.
    parts: Sequence[tuple[int, int]]

    def finder(self, window: list[Line]) -> Callable[[Line], Finding | None]:
        """Return what finds out about the lines of a window: None for one whose job is not over."""
        invalid = self._invalid(window[0].number, window[-1].number)
        return lambda line: self._find(line, invalid.get(line.number))

    def _find(self, line: Line, invalid: Invalid | None) -> Finding | None:
        key = self.batch.key.member(line.number)
        try:
            job = Journal(self.completion.store, self.completion.objects).run(journal.read(key))
        except JobGone:
            error = Canceled("the job was deleted").report()
            row = error_row(line, Verdict.CANCELED, error, custom_id=custom_id_of(line), job_id=key.id)
            return Finding(Verdict.CANCELED, row)
        except UnknownJob:
            return self._without_job(line, invalid)
        if job.state not in TERMINAL:
            return None
        verdict = Verdict(job.state.value)
        if verdict is Verdict.SUCCEEDED:
            return Finding(verdict, result_row(line, job, self.completion.settings.base_url))
        return Finding(verdict, job_row(line, job, verdict))

    def _without_job(self, line: Line, invalid: Invalid | None) -> Finding:
        if invalid is not None:
            verdict, error = Verdict.INVALID, invalid.error
        elif line.number <= self.batch.cursor.line:  # deleted, and Redis has forgotten that
            verdict, error = Verdict.CANCELED, Canceled("the job was deleted, or lost").report()
        elif self.batch.cancel_requested:
            verdict, error = Verdict.CANCELED, Canceled("the batch was canceled before this was a job").report()
        else:
            verdict = Verdict.EXPIRED
            error = QueueExpired("the time of the batch was over before this was a job").report()
        return Finding(verdict, error_row(line, verdict, error, custom_id=custom_id_of(line), job_id=None))

    def _invalid(self, first: int, last: int) -> dict[int, Invalid]:
        objects, key = self.completion.objects, self.batch.key
        found = (
            row
            for begin, end in self.parts
            if begin <= last and end >= first
            for row in batch_manifests.read_invalid(objects, key, begin, end)
        )
        return {row.line: row for row in found}


def retire_batches(store: records.Runs, objects: ObjectStore) -> None:
    """Delete what batches left behind that were deleted or whose retention is over: their jobs, then they.

    Not while an emptied Redis learns of its jobs again: it would not know all members.
    """
    if not store.run(records.alive()):
        return
    for key in store.run(batches.retired()):
        if _without_members(store, objects, key):
            batch_manifests.delete_objects(objects, key)
            store.run(batches.forget(key, purged=True))
            log.info("batch.purged", batch=str(key))


def _without_members(store: records.Runs, objects: ObjectStore, key: BatchKey) -> bool:
    """Delete a batch's jobs; False where one cannot be deleted yet."""
    while members := store.run(batches.members(key)):
        for member in members:
            try:
                delete_objects(objects, member)
                store.run(records.delete(member))
            except (StateConflict, UnknownJob):
                return False
    return True


def _windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    iterator = iter(lines)
    while window := list(islice(iterator, size)):
        yield window
