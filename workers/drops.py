"""Bucket drop-in: an object that lands under a rule's prefix becomes one job, its result lands beside a marker.

Whoever hears of an object, by an event, by the end of its job or by listing the bucket, has it looked at, and the look
does what comes next: submit its job, wait, or publish the result. The markers are the memory, so that it needs none of
its own, and the listing is the truth: it finds what no event told of.

    scenes/a.tif            the object           scenes/a.tif.json     its parameters, if it has any
    maps/a.tif/classes.tif  an artifact          maps/a.tif.done.json  the marker, last (or maps/a.tif.error.json)
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

import structlog

from penstock.config import DropRule, Settings
from penstock.drop_rules import DONE, ERROR, listed_every_s, owner, place, wanted, watched_folder
from penstock.errors import (
    Canceled,
    IdempotencyMismatch,
    InvalidInput,
    InvalidRequest,
    JobGone,
    MediaTooLarge,
    ObjectNotFound,
    PenstockError,
    UnknownJob,
)
from penstock.jobs import TERMINAL, Job, JobKey, State, Submission
from penstock.models import CatalogueEntry, find, known_names
from penstock.reports import ErrorReport
from penstock.storage import catalogues, drop_events, journal, records
from penstock.storage.base import ObjectInfo, ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.local import MAX_PART_BYTES, LocalStore
from penstock.storage.media import safe_name, upload_key
from penstock.storage.objects import open_store
from penstock.storage.spool import own_folder
from penstock.workers.drop_parameters import parameters_beside
from penstock.workers.drop_troubles import PassedOver, Troubles

__all__ = ["Drop", "Next", "drop_id", "open_drops", "result_key", "wanted"]

MAX_MARKER_BYTES = 100_000_000
#: Of the ids: UUIDv5 of tenant, bucket, key and version.
NAMESPACE = uuid.UUID("6b1f6d5e-7c7a-5d6c-9d0e-3f1f3c1f9a52")
#: Objects of one rule that are looked at at a time: a look waits for the stores most of the time.
AT_A_TIME = 8
#: Objects that left before their results, which are shown.
MAX_GONE = 20
_LOCKS = 64

log = structlog.get_logger(__name__)


class Next(StrEnum):
    """What came next for an object."""

    #: Its job was made.
    SUBMITTED = "submitted"
    #: Its job is not over.
    WAITING = "waiting"
    #: Its result was put into the bucket, with the marker.
    PUBLISHED = "published"
    #: Nothing: it has its marker.
    OVER = "over"
    #: There is no such object.
    MISSING = "missing"
    #: Its job cannot be made yet.
    POSTPONED = "postponed"


#: After these the object has no result yet.
UNFINISHED = frozenset({Next.SUBMITTED, Next.WAITING, Next.PUBLISHED, Next.POSTPONED})


def drop_id(tenant: str, bucket: str, found: ObjectInfo) -> str:
    """Return the id of the job that an object version becomes. Pure; `found` comes from a HEAD."""
    version = found.version_id or f"{found.etag}\n{found.modified_s:.6f}"
    return str(uuid.uuid5(NAMESPACE, "\n".join((tenant, bucket, found.key, version))))


def result_key(rule: DropRule, key: str) -> str:
    """Return where an object's results go, without an end: `maps/a.tif`."""
    return rule.output_prefix + key.removeprefix(rule.prefix)


@dataclass
class Drop:
    """One rule's watch over its bucket. May be called from several threads."""

    rule: DropRule
    bucket: ObjectStore
    settings: Settings
    store: records.Runs
    objects: ObjectStore
    #: What the bucket's listings meet that can be no object; None where they tell nobody.
    passed_over: PassedOver | None = None
    #: Of the last listing: what did not change since is complete (local folders have no atomic put).
    _before: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    #: What HEADs said, by (key, etag, modified) as listed, so that an object is asked for once.
    _heads: dict[tuple[str, str, float], ObjectInfo] = field(default_factory=dict)
    #: Ids in markers, by (key, etag).
    _marked: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Objects that could not be dealt with.
    troubles: Troubles = field(default_factory=Troubles)
    #: Objects that were not there any more when their jobs ended, the last ones.
    _gone: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_GONE))
    #: What was said last of the rule's model, which nobody knows, and of its folder, which is not there.
    _unknown: str | None = None
    _missing: str | None = None
    #: By the monotonic clock; None = at once.
    _list_at: float | None = None
    #: One object is looked at by one thread at a time.
    _locks: Sequence[threading.Lock] = field(default_factory=lambda: [threading.Lock() for _ in range(_LOCKS)])

    @property
    def every_s(self) -> float:
        """How often the bucket is listed."""
        return listed_every_s(self.rule, self.settings)

    @property
    def local(self) -> bool:
        """Whether the bucket is a folder."""
        return isinstance(self.bucket, LocalStore)

    def step_when_due(self) -> None:
        """List if it is time: at once in a new keeper, whose predecessor may have missed events; again if it failed."""
        if self._list_at is None or time.monotonic() >= self._list_at:
            begun = time.monotonic()
            self.step()
            self._list_at = begun + self.every_s

    def step(self) -> int:
        """List once and do what comes next for every object without a marker; return how many there are."""
        begun = time.monotonic()
        try:
            self._model()
            found = [info for info in self.bucket.list(self.rule.prefix) if self.wants(info.key)]
            settled = self._settled(found)
            markers = {info.key: info for info in self.bucket.list(self.rule.output_prefix)}
        except PenstockError as error:
            self._note(drop_events.Pass(0, 0, 0, time.monotonic() - begun, problem=error.detail))
            raise
        passed_over = () if self.passed_over is None else self.passed_over.take()
        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix=f"drop-{self.rule.name}") as pool:
            nexts = Counter(pool.map(lambda info: self._look_at_listed(info, markers), settled))
        self._forget_all_but(found, markers)
        waiting = sum(count for each, count in nexts.items() if each in UNFINISHED)
        failed = sum(key.endswith(ERROR) for key in markers)
        took_s, unsettled = time.monotonic() - begun, len(found) - len(settled)
        gone = tuple(sorted(set(self._gone.copy()) - {info.key for info in found}))
        seen = drop_events.Pass(len(found), waiting + unsettled, failed, took_s, self._problem(), passed_over, gone)
        self._note(seen)
        if nexts[Next.SUBMITTED]:
            self.store.run(drop_events.count(drop_events.LISTING, {drop_events.SUBMITTED: nexts[Next.SUBMITTED]}))
        return waiting

    def look(self, key: str) -> Next:
        """Do what comes next for one object; a file's job is made by listings alone, which see whether it is still."""
        try:
            info = self.bucket.head(key)
        except ObjectNotFound:
            return Next.MISSING
        found = self._look_at(info, submit=not self.local)
        self.troubles.over(key)
        return found

    def look_after_end(self, key: str) -> Next:
        """Look at an object whose job is over. Of one that left before its result was published it is told."""
        found = self.look(key)
        if found is Next.MISSING and not self._markers(result_key(self.rule, key)):
            log.warning("drop.gone", rule=self.rule.name, key=key, detail="it left before its result was published")
            self._gone.append(key)
        return found

    def _problem(self) -> str | None:
        """Return what keeps the rule, or some of its objects, from their results."""
        return self._no_folder() or self._unknown or self.troubles.sentence()

    def _no_folder(self) -> str | None:
        folder = watched_folder(self.rule)
        missing = None if folder is None or folder.is_dir() else f"there is no folder {folder}"
        if missing and not self._missing:
            log.error("drop.no_folder", rule=self.rule.name, detail=missing)
        self._missing = missing
        return missing

    def wants(self, key: str) -> bool:
        """Return whether an object is this rule's and no other's."""
        found = owner(self.settings.drops or (self.rule,), place(self.rule, key))
        return found is not None and found[0].name == self.rule.name

    def _note(self, found: drop_events.Pass) -> None:
        self.store.run(drop_events.note_pass(self.rule.name, found))

    def _forget_all_but(self, found: list[ObjectInfo], markers: Mapping[str, ObjectInfo]) -> None:
        versions = {(info.key, info.etag, info.modified_s) for info in found}
        self._heads = {version: head for version, head in self._heads.items() if version in versions}
        self.troubles.forget_all_but({info.key for info in found})
        marks = {(info.key, info.etag) for info in markers.values()}
        self._marked = {mark: job_id for mark, job_id in self._marked.items() if mark in marks}

    def _settled(self, found: list[ObjectInfo]) -> list[ObjectInfo]:
        now = {info.key: (info.size_bytes, info.modified_s) for info in found}
        before, self._before = self._before, now
        return [info for info in found if before.get(info.key) == now[info.key]] if self.local else found

    def _look_at_listed(self, info: ObjectInfo, markers: Mapping[str, ObjectInfo]) -> Next:
        try:
            head = self._head(info)
            if head is None:
                return Next.MISSING
            marked = self._ids_in_markers(result_key(self.rule, info.key), markers)
            found = Next.OVER if self._key(head).id in marked else self._look_at(head)
        except Exception as error:  # one object's trouble, were it a fault of ours, is not its neighbours'
            self.troubles.tell(info.key, error)
            return Next.POSTPONED
        self.troubles.over(info.key)
        return found

    def _head(self, info: ObjectInfo) -> ObjectInfo | None:
        version = (info.key, info.etag, info.modified_s)
        if version not in self._heads:
            try:
                self._heads[version] = self.bucket.head(info.key)
            except ObjectNotFound:
                return None
        return self._heads[version]

    def _ids_in_markers(self, result: str, markers: Mapping[str, ObjectInfo]) -> set[str]:
        present = [markers[result + end] for end in (DONE, ERROR) if result + end in markers]
        return {self._marked_id(info) for info in present}

    def _marked_id(self, info: ObjectInfo) -> str:
        version = (info.key, info.etag)
        if version not in self._marked:
            try:
                self._marked[version] = str(self._marker(info.key).get("id", ""))
            except ObjectNotFound:
                return ""
        return self._marked[version]

    def _key(self, head: ObjectInfo) -> JobKey:
        return JobKey(self.rule.tenant, drop_id(self.rule.tenant, self.rule.bucket, head))

    def _look_at(self, head: ObjectInfo, *, submit: bool = True) -> Next:
        key, result = self._key(head), result_key(self.rule, head.key)
        self._require_name(result)
        with self._locks[hash(head.key) % _LOCKS]:
            job, gone = self._job(key)
            if job is not None and job.state not in TERMINAL:
                return Next.WAITING
            markers = self._markers(result)
            if any(marker.get("id") == key.id for marker in markers.values()):
                return Next.OVER
            if gone:
                log.warning("drop.job_gone", key=head.key, job=key.id)
                return Next.OVER
            if job is not None:
                self._publish(head, job, markers)
                return Next.PUBLISHED
            return self._submit(key, head, markers) if submit else Next.WAITING

    def _require_name(self, result: str) -> None:
        """Raise `InvalidRequest` for an object of whose result, even of whose error, no file can tell."""
        longest = len((result.rpartition("/")[2] + ERROR).encode())
        if self.local and longest > MAX_PART_BYTES:
            raise InvalidRequest(f"its name is {longest - MAX_PART_BYTES} bytes too long for a result's: rename it")

    def _job(self, key: JobKey) -> tuple[Job | None, bool]:
        """Return the object's job, if it was made; and whether it is gone."""
        try:
            return Journal(self.store, self.objects).run(journal.read(key)), False
        except UnknownJob:
            return None, False
        except JobGone:
            return None, True

    def _markers(self, result: str) -> dict[str, dict[str, Any]]:
        """Return the markers that there are, by their ends."""
        found = {}
        for end in (DONE, ERROR):
            with suppress(ObjectNotFound):
                found[end] = self._marker(result + end)
        return found

    def _marker(self, key: str) -> dict[str, Any]:
        """Return a marker, empty where it is none that one can read."""
        try:
            marker = json.loads(self.bucket.get_bytes(key, limit_bytes=MAX_MARKER_BYTES))
        except (ValueError, RecursionError):
            return {}
        return marker if isinstance(marker, dict) else {}

    def _submit(self, key: JobKey, info: ObjectInfo, markers: Mapping[str, Mapping[str, Any]]) -> Next:
        entry = self._model()
        if entry is None:
            return Next.POSTPONED
        try:
            parameters = parameters_beside(self.bucket, self.rule, info.key)
            submission = self._submission(key, info, entry, parameters)
        except (InvalidInput, MediaTooLarge) as error:  # it stays so until somebody puts another object there
            result = result_key(self.rule, info.key)
            self._withdraw(result, markers)
            self._mark(result, ERROR, {"id": key.id, "status": "failed", "error": error.report().to_json()})
            return Next.PUBLISHED
        limits = records.QueueLimits.of(self.settings)
        with suppress(IdempotencyMismatch):  # another keeper was faster, with an older configuration
            Journal(self.store, self.objects).run(journal.submit(submission, limits))
            log.info("drop.submitted", key=info.key, job=key.id)
        return Next.SUBMITTED

    def _model(self) -> CatalogueEntry | None:
        """Return the rule's model; None while no worker has it, which is told once."""
        catalogue = self.store.run(catalogues.catalogue())
        entry = find(catalogue, self.rule.model)
        unknown = None
        if catalogue and entry is None:
            unknown = f"there is no model {self.rule.model!r}; known models: {known_names(catalogue)}"
            if unknown != self._unknown:
                log.error("drop.unknown_model", rule=self.rule.name, detail=unknown)
        self._unknown = unknown
        return entry

    def _submission(
        self, key: JobKey, info: ObjectInfo, entry: CatalogueEntry, parameters: Mapping[str, Any]
    ) -> Submission:
        document = {**self.rule.input, **parameters, self.rule.field: self._reference(key, info)}
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
        )

    def _source(self, info: ObjectInfo) -> str:
        """Name the object to the tenant; where a watched folder lies is the operator's business."""
        return info.key if isinstance(self.bucket, LocalStore) else self.bucket.uri(info.key)

    def _reference(self, key: JobKey, info: ObjectInfo) -> str:
        """Name the object as media: S3 objects by their etag, files by a copy that nobody changes any more."""
        if not isinstance(self.bucket, LocalStore):
            return f"{self.bucket.uri(info.key)}#etag={info.etag}"
        name, limit_bytes = safe_name(info.key), self.settings.max_upload_bytes
        if info.size_bytes > limit_bytes:
            raise MediaTooLarge(f"{info.key} has {info.size_bytes} bytes: max_upload_bytes allows {limit_bytes}")
        with own_folder(self.settings.spool_dir) as folder:
            copy = folder / "media"
            self.bucket.get_file(info.key, copy, limit_bytes=limit_bytes, etag=info.etag)
            self.objects.put_file(upload_key(key.tenant, key.id, name), copy, content_type="application/octet-stream")
        return f"media://{key.id}/{name}"

    def _publish(self, info: ObjectInfo, job: Job, markers: Mapping[str, Mapping[str, Any]]) -> None:
        """Put the artifacts in the place of an older version's, and the marker last."""
        result, end = result_key(self.rule, info.key), DONE if job.state is State.SUCCEEDED else ERROR
        places = {artifact.name: f"{result}/{artifact.name}" for artifact in job.artifacts}
        self._withdraw(result, markers)
        if isinstance(self.bucket, LocalStore):  # else each pass would copy artifacts until it meets what is in the way
            for key in (*places.values(), result + end):
                self.bucket.require_way(key)
        for artifact in job.artifacts:
            with own_folder(self.settings.spool_dir) as folder:
                copy = folder / "artifact"
                self.objects.get_file(artifact.key, copy, limit_bytes=artifact.size_bytes)
                self.bucket.put_file(places[artifact.name], copy, content_type=artifact.content_type)
        self._mark(result, end, _marker(job))
        log.info("drop.published", key=info.key, job=job.key.id, state=job.state.value)

    def _withdraw(self, result: str, markers: Mapping[str, Mapping[str, Any]]) -> None:
        """Delete an older version's artifacts and markers: nobody shall take its map for the new object's."""
        for end, marker in markers.items():
            for artifact in marker.get("artifacts", ()):
                self.bucket.delete(f"{result}/{safe_name(artifact['name'])}")
            self.bucket.delete(result + end)

    def _mark(self, result: str, end: str, marker: Mapping[str, Any]) -> None:
        self.bucket.put_bytes(result + end, json.dumps(marker, indent=1).encode(), content_type="application/json")


def open_drops(settings: Settings, store: records.Runs, objects: ObjectStore) -> list[Drop]:
    """Open every rule's bucket."""
    return [_open(rule, settings, store, objects) for rule in settings.drops]


def _open(rule: DropRule, settings: Settings, store: records.Runs, objects: ObjectStore) -> Drop:
    passed_over = PassedOver(rule)
    bucket = open_store(rule.bucket, settings, passed_over=passed_over)
    return Drop(rule, bucket, settings, store, objects, passed_over)


def _marker(job: Job) -> dict[str, Any]:
    error: ErrorReport | None = job.error
    if error is None and job.state is State.CANCELED:
        error = Canceled("the job was canceled: put the object there again to run it").report()
    return {
        "id": job.key.id,
        "status": job.state.value,
        "artifacts": [{"name": a.name, "size_bytes": a.size_bytes, "sha256": a.sha256} for a in job.artifacts],
        "data": job.data,
        "error": error.to_json() if error else None,
    }
