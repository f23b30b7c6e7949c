"""Completion of batches: stops the jobs of canceled or expired batches, and writes the result files."""

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
    UnknownBatch,
    UnknownJob,
)
from penstock.formats import RUNS
from penstock.jobs import TERMINAL, JobKey
from penstock.storage.journal import batch_journal, batch_manifests, journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import batches, records
from penstock.storage.spool import own_folder
from penstock.workers.keeper.batch_files import (
    CONTENT_TYPE,
    ERRORS,
    RESULTS,
    OutcomeFile,
    custom_id_of,
    error_row,
    job_row,
    result_row,
)

#: Members read or stopped at once: the keeper holds so many in memory.
WINDOW = 64
CONCURRENCY = 16

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """The verdict of a line, and its row in the result files."""

    verdict: Verdict
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """Ends the batches whose members have all ended, or must end."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore

    def step(self) -> None:
        """Advance each open batch once."""
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="complete") as pool:
            for key in self.store.run(batches.open_batches()):
                try:
                    self.advance(key, pool)
                except (UnknownBatch, BatchGone):
                    continue  # the expansion removes the batch
                except PenstockError as error:  # an error of one batch must not affect the others
                    log.warning("batch.postponed", batch=str(key), code=error.code)

    def advance(self, key: BatchKey, pool: ThreadPoolExecutor) -> None:
        """Do the next step towards the end of a batch, if one is due."""
        batch = self._journal.run(batch_journal.read(key))
        if batch.manifest.version > RUNS:
            return  # a newer keeper completes it
        if batch.end is not None:
            self.store.run(batches.end(key, batch.end))
        elif not batch.reserved and (batch.closing or batch.expanded):
            self.store.run(batches.close(key))
            if batch.closing:
                self._stop(batch, pool)
            if not self.store.run(batches.read(key)).live:
                self._finish(batch, pool)

    @property
    def _journal(self) -> Journal:
        return Journal(self.store, self.objects)

    def _stop(self, batch: Batch, pool: ThreadPoolExecutor) -> None:
        """Request the end of every member; running members end when their workers see the request."""
        flow = journal.cancel if batch.cancel_requested else journal.expire

        def stop(member: JobKey) -> None:
            with suppress(UnknownJob, JobGone):
                self._journal.run(flow(member))

        cursor = "0"
        while True:
            cursor, members = self.store.run(batches.live(batch.key, cursor))
            list(pool.map(stop, members))
            if cursor == "0":
                return

    def _finish(self, batch: Batch, pool: ThreadPoolExecutor) -> None:
        """Write the result files and end the batch; do nothing if a member turns out not to have ended."""
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
        if self._journal.run(batch_journal.finish(batch.key, ended)) != ended:
            self.objects.delete_prefix(prefix)  # another keeper ended the batch first
        log.info("batch.ended", batch=str(batch.key), status=status.value)

    def _write(
        self, batch: Batch, pool: ThreadPoolExecutor, results: OutcomeFile, errors: OutcomeFile
    ) -> Counts | None:
        counted = Counter[Verdict]()
        reader = OutcomeReader(self, batch, batch_manifests.invalid_parts(self.objects, batch.key))
        chunks = self.objects.read(batch.manifest.lines_key)
        limit_bytes = self.settings.body_limit_bytes(batch.key.tenant)
        for window in _windows(lines_of(chunks, limit_bytes=limit_bytes), WINDOW):
            for outcome in pool.map(reader.finder(window), window):
                if outcome is None:
                    return None
                counted[outcome.verdict] += 1
                (results if outcome.verdict is Verdict.SUCCEEDED else errors).write(outcome.row)
        by_name = {verdict.value: count for verdict, count in counted.items()}
        return Counts(sum(counted.values()), **by_name)


@dataclass(frozen=True)
class OutcomeReader:
    """Reads the verdicts of a batch's lines."""

    completion: Completion
    batch: Batch
    #: The ranges of lines, first and last, whose invalid lines are stored together.
    invalid_ranges: Sequence[tuple[int, int]]

    def finder(self, window: list[Line]) -> Callable[[Line], LineOutcome | None]:
        """Return a function that finds a line's verdict in a window; None for a line whose job has not ended."""
        invalid = self._invalid(window[0].number, window[-1].number)
        return lambda line: self._find(line, invalid.get(line.number))

    def _find(self, line: Line, invalid: Invalid | None) -> LineOutcome | None:
        key = self.batch.key.member(line.number)
        try:
            both_stores = Journal(self.completion.store, self.completion.objects)
            job = both_stores.run(journal.whole(both_stores.run(journal.read(key))))
        except JobGone:
            error = Canceled("the job was deleted").report()
            row = error_row(line, Verdict.CANCELED, error, custom_id=custom_id_of(line), job_id=key.id)
            return LineOutcome(Verdict.CANCELED, row)
        except UnknownJob:
            return self._without_job(line, invalid)
        if job.state not in TERMINAL:
            return None
        verdict = Verdict(job.state.value)
        if verdict is Verdict.SUCCEEDED:
            return LineOutcome(verdict, result_row(line, job, self.completion.settings.base_url))
        return LineOutcome(verdict, job_row(line, job, verdict))

    def _without_job(self, line: Line, invalid: Invalid | None) -> LineOutcome:
        if invalid is not None:
            verdict, error = Verdict.INVALID, invalid.error
        elif line.number <= self.batch.cursor.line:  # the job was deleted, and Redis no longer knows it
            verdict, error = Verdict.CANCELED, Canceled("the job was deleted or lost").report()
        elif self.batch.cancel_requested:
            verdict, error = Verdict.CANCELED, Canceled("the batch was canceled before this line became a job").report()
        else:
            verdict = Verdict.EXPIRED
            error = QueueExpired("the batch's time was over before this line became a job").report()
        return LineOutcome(verdict, error_row(line, verdict, error, custom_id=custom_id_of(line), job_id=None))

    def _invalid(self, first: int, last: int) -> dict[int, Invalid]:
        objects, key = self.completion.objects, self.batch.key
        found = (
            row
            for begin, end in self.invalid_ranges
            if begin <= last and end >= first
            for row in batch_manifests.read_invalid(objects, key, begin, end)
        )
        return {row.line: row for row in found}


def _windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    iterator = iter(lines)
    while window := list(islice(iterator, size)):
        yield window
