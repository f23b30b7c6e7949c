"""Bucket drop-in: an object under a rule's prefix becomes one job, whose results are written beside a marker file.

Every event, every end of a job and every listing leads to a check of the object. The check submits the object's job,
waits for its end, or publishes its result. The markers and the jobs are the only durable state: the fields of `Drop`
are caches and the latest problems. The listing is the source of truth: it finds objects whose events were lost.

    scenes/a.tif            the object           scenes/a.tif.json     its parameters, if it has any
    maps/a.tif/classes.tif  an artifact          maps/a.tif.done.json  the marker, last (or maps/a.tif.error.json)
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from hashlib import sha256

import structlog

from penstock.config import Settings
from penstock.config_tables import DropRule
from penstock.errors import (
    IdempotencyMismatch,
    InvalidInput,
    InvalidRequest,
    JobGone,
    MediaTooLarge,
    ObjectNotFound,
    PenstockError,
    UnknownJob,
)
from penstock.intake.drop_inputs import all_fitted
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.jobs import TERMINAL, Job, JobKey, State, Submission
from penstock.models import CatalogueEntry, find, known_names
from penstock.storage.drop_rules import DONE, ERROR, listed_every_s, owner, place, watched_folder
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.promotions import model_for
from penstock.storage.journal.stored_models import StoredModels, merged
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.objects.local import MAX_PART_BYTES, LocalStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, drop_events, records
from penstock.storage.spool import own_folder
from penstock.workers.keeper import drop_markers
from penstock.workers.keeper.drop_markers import Marker, Markers, drop_id, result_key
from penstock.workers.keeper.drop_parameters import object_input
from penstock.workers.keeper.drop_problems import (
    ObjectErrors,
    SkippedFiles,
    common_failure,
    failures_of,
    ignored_keys,
    misfit,
)

__all__ = ["CheckResult", "Drop", "drop_id", "open_drops", "result_key"]

#: Age in seconds of the stored models by which an object may be refused.
REFUSED_S = 1.0
#: Objects of one rule checked at once: a check waits for the stores most of the time.
CONCURRENCY = 8
#: Objects of one kind that are shown, at most: those that disappeared, failed or are ignored.
MAX_SHOWN = 20
_LOCK_COUNT = 64

log = structlog.get_logger(__name__)


class CheckResult(StrEnum):
    """The result of a check of an object."""

    #: The object's job was submitted.
    SUBMITTED = "submitted"
    #: The object's job has not ended, or the object is a file whose job the next listings submit.
    WAITING = "waiting"
    #: The result was written to the bucket, with the marker.
    PUBLISHED = "published"
    #: The object has its marker, or its job was deleted: nothing is left to do.
    OVER = "over"
    #: The object does not exist.
    MISSING = "missing"
    #: The object's job cannot be submitted yet.
    POSTPONED = "postponed"


#: Results after which a listing still counts the object as waiting: a later check must find its marker.
CHECK_AGAIN = frozenset({CheckResult.SUBMITTED, CheckResult.WAITING, CheckResult.PUBLISHED, CheckResult.POSTPONED})


@dataclass
class Drop:
    """One rule's watch over its bucket. Safe to call from several threads."""

    rule: DropRule
    bucket: ObjectStore
    settings: Settings
    store: records.Runs
    objects: ObjectStore
    #: Receives the names that listings skip; None: skipped names are not collected.
    skipped_files: SkippedFiles | None = None
    #: Sizes and times in the last listing: an unchanged file is complete (local folders have no atomic put).
    _listed_before: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    #: Results of HEAD requests, by (key, etag, modified) as listed: one request for each version.
    _heads: dict[tuple[str, str, float], ObjectInfo] = field(default_factory=dict)
    #: Latest error of each object whose last check failed.
    errors_by_key: ObjectErrors = field(default_factory=ObjectErrors)
    #: Latest objects that had disappeared when their jobs ended.
    _disappeared: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_SHOWN))
    #: The service's rules with the suffixes of their models, of the latest listing or batch of events.
    rules: tuple[DropRule, ...] = ()
    #: Last logged problem of the rule's model.
    _model_problem: str | None = None
    #: Last logged problem of the rule's folder.
    _folder_problem: str | None = None
    #: Time of the next listing, by the monotonic clock; None = at once.
    _list_at: float | None = None
    #: Locks, picked by the hash of an object's key: one thread at a time checks an object.
    _locks: Sequence[threading.Lock] = field(default_factory=lambda: [threading.Lock() for _ in range(_LOCK_COUNT)])

    @cached_property
    def markers(self) -> Markers:
        """The markers in the bucket."""
        return Markers(self.bucket)

    @property
    def every_s(self) -> float:
        """Seconds between two listings of the bucket."""
        return listed_every_s(self.rule, self.settings)

    @property
    def local(self) -> bool:
        """True if the bucket is a folder."""
        return isinstance(self.bucket, LocalStore)

    def step_when_due(self) -> None:
        """List if it is time: at once in a new keeper, which may have missed events, and again after an error."""
        if self._list_at is None or time.monotonic() >= self._list_at:
            begun = time.monotonic()
            self.step()
            self._list_at = begun + self.every_s

    def step(self) -> int:
        """List once and check every object without a marker; return how many of them must be checked again."""
        begun = time.monotonic()
        try:
            catalogue = self._catalogue()
            self._model(catalogue)
            self._fit_rules(catalogue)
            every = list(self.bucket.list(self.rule.prefix))
            listed = [info for info in every if self.wants(info.key)]
            settled = self._settled(listed)
            markers = {info.key: info for info in self.bucket.list(self.rule.output_prefix)}
        except PenstockError as error:
            self._note(drop_events.Pass(0, 0, 0, time.monotonic() - begun, problem=error.detail))
            raise
        skipped = () if self.skipped_files is None else self.skipped_files.take()
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix=f"drop-{self.rule.name}") as pool:
            outcomes = Counter(pool.map(lambda info: self._check_listed(info, markers), settled))
        self._forget_all_but(listed, markers)
        waiting = sum(count for each, count in outcomes.items() if each in CHECK_AGAIN)
        self._note(self._pass(every, listed, markers, waiting + len(listed) - len(settled), skipped, begun))
        if submitted := outcomes[CheckResult.SUBMITTED]:
            self.store.run(drop_events.count(drop_events.LISTING, {drop_events.SUBMITTED: submitted}))
        return waiting

    def _pass(
        self,
        every: Sequence[ObjectInfo],
        listed: Sequence[ObjectInfo],
        markers: Mapping[str, ObjectInfo],
        waiting: int,
        skipped: tuple[str, ...],
        begun: float,
    ) -> drop_events.Pass:
        """Return what a listing found."""
        rule, keys = self.fitted_rule, {info.key for info in listed}
        ignored = ignored_keys(self.rules, rule, [info.key for info in every], keys)
        found = ((key, self.markers.listed(result_key(rule, key), markers).get(ERROR)) for key in sorted(keys))
        failures = failures_of(found)
        return drop_events.Pass(
            found=len(listed),
            waiting=waiting,
            failed=sum(key.endswith(ERROR) for key in markers),
            took_s=time.monotonic() - begun,
            problem=self._problem() or common_failure(failures, len(listed)),
            passed_over=skipped,
            gone=tuple(sorted(set(self._disappeared.copy()) - keys)),
            takes=rule.suffixes or (),
            ignored=len(ignored),
            ignored_files=tuple(ignored[:MAX_SHOWN]),
            failures=dict(list(failures.items())[:MAX_SHOWN]),
        )

    def check(self, key: str) -> CheckResult:
        """Check one object. For a file, only listings submit its job: they compare its size and time."""
        try:
            info = self.bucket.head(key)
        except ObjectNotFound:
            return CheckResult.MISSING
        result = self._check(info, submit=not self.local)
        self.errors_by_key.clear(key)
        return result

    def check_after_end(self, key: str) -> CheckResult:
        """Check an object whose job has ended; log an object that disappeared before its result was published."""
        result = self.check(key)
        if result is CheckResult.MISSING and not self.markers.read(result_key(self.rule, key)):
            log.warning(
                "drop.disappeared", rule=self.rule.name, key=key, detail="it disappeared before its result came"
            )
            self._disappeared.append(key)
        return result

    def _problem(self) -> str | None:
        """Return the problem of the rule or of some of its objects; None if there is none."""
        return self._find_folder_problem() or self._model_problem or self.errors_by_key.summary()

    def _find_folder_problem(self) -> str | None:
        folder = watched_folder(self.rule)
        problem = None if folder is None or folder.is_dir() else f"there is no folder {folder}"
        if problem and not self._folder_problem:
            log.error("drop.no_folder", rule=self.rule.name, detail=problem)
        self._folder_problem = problem
        return problem

    def wants(self, key: str) -> bool:
        """Return True if the object belongs to this rule and to no other."""
        match = self._owner(key)
        return match is not None and match.name == self.rule.name

    def _owner(self, key: str) -> DropRule | None:
        found = owner(self.rules or self.settings.drops or (self.rule,), place(self.rule, key))
        return None if found is None else found[0]

    @property
    def fitted_rule(self) -> DropRule:
        """The rule with the suffixes of its model, as far as the model is known."""
        return next((rule for rule in self.rules if rule.name == self.rule.name), self.rule)

    def fit_rules(self) -> tuple[DropRule, ...]:
        """Read the models of all rules; return the rules with the suffixes of their models."""
        return self._fit_rules(self._catalogue())

    def _fit_rules(self, catalogue: Mapping[str, CatalogueEntry]) -> tuple[DropRule, ...]:
        self.rules = all_fitted(self.settings.drops or (self.rule,), catalogue)
        return self.rules

    def _note(self, listing: drop_events.Pass) -> None:
        self.store.run(drop_events.note_details(self.rule.name, listing))
        self.store.run(drop_events.note_pass(self.rule.name, listing))

    def _forget_all_but(self, listed: list[ObjectInfo], markers: Mapping[str, ObjectInfo]) -> None:
        versions = {(info.key, info.etag, info.modified_s) for info in listed}
        self._heads = {version: head for version, head in self._heads.items() if version in versions}
        self.errors_by_key.keep_only({info.key for info in listed})
        self.markers.keep_only(markers.values())

    def _settled(self, listed: list[ObjectInfo]) -> list[ObjectInfo]:
        now = {info.key: (info.size_bytes, info.modified_s) for info in listed}
        before, self._listed_before = self._listed_before, now
        return [info for info in listed if before.get(info.key) == now[info.key]] if self.local else listed

    def _check_listed(self, info: ObjectInfo, markers: Mapping[str, ObjectInfo]) -> CheckResult:
        try:
            head = self._head(info)
            if head is None:
                return CheckResult.MISSING
            found, version = self.markers.listed(result_key(self.rule, info.key), markers), self._version(head)
            ended = any(marker.ends(version) for marker in found.values())
            result = CheckResult.OVER if ended else self._check(head)
        except Exception as error:  # even an unexpected error of one object must not affect the others
            self.errors_by_key.note(info.key, error)
            return CheckResult.POSTPONED
        self.errors_by_key.clear(info.key)
        return result

    def _head(self, info: ObjectInfo) -> ObjectInfo | None:
        version = (info.key, info.etag, info.modified_s)
        if version not in self._heads:
            try:
                self._heads[version] = self.bucket.head(info.key)
            except ObjectNotFound:
                return None
        return self._heads[version]

    def _version(self, head: ObjectInfo) -> str:
        return drop_id(self.rule.tenant, self.rule.bucket, head)

    def _check(self, head: ObjectInfo, *, submit: bool = True) -> CheckResult:
        version, result = self._version(head), result_key(self.rule, head.key)
        self._require_name(result)
        with self._locks[hash(head.key) % _LOCK_COUNT]:
            markers = self.markers.read(result)
            run = drop_markers.VersionRun(self.rule.tenant, version, drop_markers.retries_of(version, markers.values()))
            job, deleted = self._job(run.key)
            if job is not None and job.state not in TERMINAL:
                return CheckResult.WAITING
            if any(marker.ends(version) for marker in markers.values()):
                return CheckResult.OVER
            if deleted:
                log.warning("drop.job_deleted", key=head.key, job=run.key.id)
                return CheckResult.OVER
            if job is not None:
                self._publish(head, run, job, markers)
                return CheckResult.PUBLISHED
            return self._submit(run, head, markers) if submit else CheckResult.WAITING

    def _require_name(self, result: str) -> None:
        """Raise `InvalidRequest` if the object's name is too long for any result file, even for its error."""
        excess = len((result.rpartition("/")[2] + ERROR).encode()) - MAX_PART_BYTES
        if self.local and excess > 0:
            raise InvalidRequest(f"its name is {excess} bytes too long for its result files: rename the object")

    def _job(self, key: JobKey) -> tuple[Job | None, bool]:
        """Return the object's job or None, and True if the job was deleted."""
        try:
            return Journal(self.store, self.objects).run(journal.read(key)), False
        except UnknownJob:
            return None, False
        except JobGone:
            return None, True

    def _submit(self, run: drop_markers.VersionRun, info: ObjectInfo, markers: Mapping[str, Marker]) -> CheckResult:
        entry = self._model(self._catalogue(), run.key.id)
        if entry is None:
            return CheckResult.POSTPONED
        try:
            submission = self._valid_submission(run.key, info, entry)
        except (InvalidInput, MediaTooLarge) as error:  # permanent until the object is replaced
            result = result_key(self.rule, info.key)
            self.markers.withdraw(result, markers)
            self.markers.put(result, ERROR, run.marker("failed", error=error.report().to_json()))
            return CheckResult.PUBLISHED
        limits = records.QueueLimits.of(self.settings)
        with suppress(IdempotencyMismatch):  # another keeper submitted it first, with an older configuration
            Journal(self.store, self.objects).run(journal.submit(submission, limits))
            log.info("drop.submitted", key=info.key, job=run.key.id)
        return CheckResult.SUBMITTED

    def _valid_submission(self, key: JobKey, info: ObjectInfo, entry: CatalogueEntry) -> Submission:
        """Return the submission of an object; `InvalidInput` where the latest entry of the model refuses it too."""
        try:
            return self._submission(key, info, entry)
        except InvalidInput:
            self.models.read(fresh_s=REFUSED_S)
            latest = self._model(self._catalogue(), key.id)
            if latest is None or latest == entry:
                raise
            return self._submission(key, info, latest)

    @cached_property
    def models(self) -> StoredModels:
        """The models in the object store."""
        return StoredModels(self.objects)

    def _catalogue(self) -> Mapping[str, CatalogueEntry]:
        return merged(self.store.run(catalogues.known()), self.models.read())

    def _model(self, catalogue: Mapping[str, CatalogueEntry], job: str | None = None) -> CatalogueEntry | None:
        """Return the rule's model, for one job where several share it.

        None while the model is not known, or where it does not fit the rule; a problem is logged once.
        """
        entry = find(catalogue, self.rule.model if job is None else model_for(catalogue, self.rule.model, job))
        problem = misfit(self.rule, entry)
        if catalogue and entry is None:
            problem = f"there is no model {self.rule.model!r}; known models: {known_names(catalogue)}"
        if problem and problem not in (self._model_problem, *catalogues.PASSING):
            log.error("drop.unfit_rule" if entry else "drop.unknown_model", rule=self.rule.name, detail=problem)
        self._model_problem = problem
        return None if problem else entry

    def _submission(self, key: JobKey, info: ObjectInfo, entry: CatalogueEntry) -> Submission:
        reference = partial(self._reference, key, info.key)
        document = object_input(self.bucket, self.rule, info, entry.input_schema, reference)
        canonical = json.dumps([self.rule.model, document], sort_keys=True)
        return Submission(
            key=key,
            model=entry.name,
            queue=entry.queue,
            input=document,
            fingerprint=sha256(canonical.encode()).hexdigest(),
            metadata={"drop": self.rule.name, "source": self._source(info)},
            queue_ttl_s=entry.queue_ttl_s,
            execution_timeout_s=entry.execution_timeout_s,
            max_attempts=entry.max_attempts,
            drop=drop_events.dropped_as(place(self.rule, info.key)),
            media_bytes=info.size_bytes or None,
        )

    def _source(self, info: ObjectInfo) -> str:
        """Return the object's name for the tenant: for files the key, since the folder is the operator's secret."""
        return info.key if isinstance(self.bucket, LocalStore) else self.bucket.uri(info.key)

    def _reference(self, key: JobKey, beside: str, info: ObjectInfo) -> str:
        """Return an object as a media reference: in S3 by its etag, files as a copy. `beside`: the job's object."""
        if (match := self._owner(info.key)) is not None and match.tenant != self.rule.tenant:
            raise InvalidInput(f"{beside} names {info.key}, which a rule of another tenant takes")
        if not isinstance(self.bucket, LocalStore):
            return f"{self.bucket.uri(info.key)}#etag={info.etag}"
        name, limit_bytes = safe_name(info.key), self.settings.max_upload_bytes
        upload = drop_markers.upload_id(key, beside, info.key)
        if info.size_bytes > limit_bytes:
            raise MediaTooLarge(f"{info.key} has {info.size_bytes} bytes; max_upload_bytes allows {limit_bytes}")
        with own_folder(self.settings.spool_dir) as folder:
            copy = folder / "media"
            self.bucket.get_file(info.key, copy, limit_bytes=limit_bytes, etag=info.etag)
            self.objects.put_file(upload_key(key.tenant, upload, name), copy, content_type="application/octet-stream")
        return f"media://{upload}/{name}"

    def _publish(self, info: ObjectInfo, run: drop_markers.VersionRun, job: Job, markers: Mapping[str, Marker]) -> None:
        """Replace an older version's artifacts, and write the marker last."""
        job = Journal(self.store, self.objects).run(journal.whole(job))
        result, end = result_key(self.rule, info.key), DONE if job.state is State.SUCCEEDED else ERROR
        places = {artifact.name: f"{result}/{artifact.name}" for artifact in job.artifacts}
        self.markers.withdraw(result, markers)
        if isinstance(self.bucket, LocalStore):  # first: a file in the way would fail every listing after the copying
            for key in (*places.values(), result + end):
                self.bucket.require_way(key)
        for artifact in job.artifacts:
            with own_folder(self.settings.spool_dir) as folder:
                copy = folder / "artifact"
                self.objects.get_file(artifact.key, copy, limit_bytes=artifact.size_bytes)
                self.bucket.put_file(places[artifact.name], copy, content_type=artifact.content_type)
        self.markers.put(result, end, run.marker_of(job))
        if end == DONE and ERROR in markers:  # a retry succeeded
            self.bucket.delete(result + ERROR)
        log.info("drop.published", key=info.key, job=job.key.id, state=job.state.value)


def open_drops(settings: Settings, store: records.Runs, objects: ObjectStore) -> list[Drop]:
    """Open every rule's bucket."""
    return [_open(rule, settings, store, objects) for rule in settings.drops]


def _open(rule: DropRule, settings: Settings, store: records.Runs, objects: ObjectStore) -> Drop:
    skipped = SkippedFiles(rule)
    bucket = open_store(rule.bucket, settings, passed_over=skipped)
    return Drop(rule, bucket, settings, store, objects, skipped)
