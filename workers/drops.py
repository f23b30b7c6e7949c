"""Bucket drop-in: an object that lands under a rule's prefix becomes one job, its result lands beside a marker.

The listing is the truth and the markers are the memory, so that a pass needs none of its own: for every object
without a marker of its version the job is submitted, awaited or published, whichever comes next.

    scenes/a.tif            the object           scenes/a.tif.json     its parameters, if it has any
    maps/a.tif/classes.tif  an artifact          maps/a.tif.done.json  the marker, last (or maps/a.tif.error.json)
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from penstock.config import DropRule, Settings
from penstock.errors import (
    ErrorReport,
    IdempotencyMismatch,
    InvalidInput,
    JobGone,
    ObjectNotFound,
    PenstockError,
    UnknownJob,
)
from penstock.jobs import TERMINAL, Job, JobKey, State, Submission
from penstock.models import CatalogueEntry
from penstock.storage import journal, records
from penstock.storage.base import ObjectInfo, ObjectStore
from penstock.storage.journal import Journal
from penstock.storage.local import LocalStore
from penstock.storage.media import safe_name, upload_key
from penstock.storage.objects import open_store

DONE, ERROR = ".done.json", ".error.json"
MAX_SIDECAR_BYTES = 100_000
MAX_MARKER_BYTES = 100_000_000
#: Of the ids: UUIDv5 of tenant, bucket, key and version.
NAMESPACE = uuid.UUID("6b1f6d5e-7c7a-5d6c-9d0e-3f1f3c1f9a52")

log = structlog.get_logger(__name__)


def drop_id(tenant: str, bucket: str, found: ObjectInfo) -> str:
    """Return the id of the job that an object version becomes. Pure; `found` comes from a HEAD."""
    version = found.version_id or f"{found.etag}\n{found.modified_s:.6f}"
    return str(uuid.uuid5(NAMESPACE, "\n".join((tenant, bucket, found.key, version))))


def wanted(rule: DropRule, key: str) -> bool:
    """Return whether an object under this key is a scene of the rule, not a folder, sidecar or result."""
    return (
        key.startswith(rule.prefix)
        and key.lower().endswith(tuple(suffix.lower() for suffix in rule.suffixes))
        and not key.endswith("/")
        and not key.startswith(rule.output_prefix)
    )


def result_key(rule: DropRule, key: str) -> str:
    """Return where an object's results go, without an end: `maps/a.tif`."""
    return rule.output_prefix + key.removeprefix(rule.prefix)


@dataclass
class Drop:
    """One rule's watch over its bucket."""

    rule: DropRule
    bucket: ObjectStore
    settings: Settings
    store: records.Runs
    objects: ObjectStore
    #: Of the last listing: what did not change since is complete (local folders have no atomic put).
    _before: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    #: Ids by (key, etag, modified), so that an object is asked for once.
    _ids: dict[tuple[str, str, float], str] = field(default_factory=dict)
    #: Ids in markers, by (key, etag).
    _marked: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Whether it was said that nobody knows the rule's model.
    _told: bool = False

    def step(self) -> int:
        """List once and do what comes next for every object without a marker; return how many there are."""
        found = [info for info in self.bucket.list(self.rule.prefix) if wanted(self.rule, info.key)]
        settled = self._settled(found)
        markers = {info.key: info for info in self.bucket.list(self.rule.output_prefix)}
        waiting = 0
        for info in settled:
            try:
                waiting += self._advance(info, markers)
            except PenstockError as error:  # one object's trouble is not its neighbours'
                log.warning("drop.postponed", key=info.key, code=error.code, detail=error.detail)
        self._forget_all_but(found, markers)
        return waiting

    def _forget_all_but(self, found: list[ObjectInfo], markers: Mapping[str, ObjectInfo]) -> None:
        versions = {(info.key, info.etag, info.modified_s) for info in found}
        self._ids = {version: job_id for version, job_id in self._ids.items() if version in versions}
        marks = {(info.key, info.etag) for info in markers.values()}
        self._marked = {mark: job_id for mark, job_id in self._marked.items() if mark in marks}

    def _settled(self, found: list[ObjectInfo]) -> list[ObjectInfo]:
        now = {info.key: (info.size_bytes, info.modified_s) for info in found}
        before, self._before = self._before, now
        if not isinstance(self.bucket, LocalStore):
            return found
        return [info for info in found if before.get(info.key) == now[info.key]]

    def _advance(self, info: ObjectInfo, markers: Mapping[str, ObjectInfo]) -> int:
        job_id = self._id(info)
        if job_id is None or job_id in self._ids_in_markers(result_key(self.rule, info.key), markers):
            return 0
        key = JobKey(self.rule.tenant, job_id)
        try:
            job = Journal(self.store, self.objects).run(journal.read(key))
        except UnknownJob:
            self._submit(key, info)
            return 1
        except JobGone:
            log.warning("drop.gone", key=info.key, job=job_id)
            return 0
        if job.state in TERMINAL:
            self._publish(info, job)
        return 1

    def _id(self, info: ObjectInfo) -> str | None:
        version = (info.key, info.etag, info.modified_s)
        if version not in self._ids:
            try:
                self._ids[version] = drop_id(self.rule.tenant, self.rule.bucket, self.bucket.head(info.key))
            except ObjectNotFound:
                return None
        return self._ids[version]

    def _ids_in_markers(self, result: str, markers: Mapping[str, ObjectInfo]) -> set[str]:
        present = [markers[result + end] for end in (DONE, ERROR) if result + end in markers]
        return {self._marked_id(info) for info in present}

    def _marked_id(self, info: ObjectInfo) -> str:
        version = (info.key, info.etag)
        if version not in self._marked:
            try:
                marker = json.loads(self.bucket.get_bytes(info.key, limit_bytes=MAX_MARKER_BYTES))
                self._marked[version] = str(marker["id"])
            except (ValueError, KeyError, TypeError, ObjectNotFound):
                return ""
        return self._marked[version]

    def _submit(self, key: JobKey, info: ObjectInfo) -> None:
        entry = self._model()
        if entry is None:
            return
        try:
            parameters = self._parameters(info)
        except InvalidInput as error:
            result = result_key(self.rule, info.key)
            self._withdraw(result)
            self._mark(result, ERROR, {"id": key.id, "status": "failed", "error": error.report().to_json()})
            return
        submission = self._submission(key, info, entry, parameters)
        limits = records.QueueLimits.of(self.settings)
        with suppress(IdempotencyMismatch):  # another keeper was faster, with an older configuration
            Journal(self.store, self.objects).run(journal.submit(submission, limits))
            log.info("drop.submitted", key=info.key, job=key.id)

    def _model(self) -> CatalogueEntry | None:
        """Return the rule's model; None while no worker has it, which is told once."""
        catalogue = self.store.run(records.catalogue())
        entry = catalogue.get(self.rule.model)
        if catalogue and entry is None and not self._told:
            known = ", ".join(sorted(catalogue))
            detail = f"rule {self.rule.name!r} names the model {self.rule.model!r}; known models: {known}"
            log.error("drop.unknown_model", detail=detail)
        self._told = bool(catalogue) and entry is None
        return entry

    def _submission(
        self, key: JobKey, info: ObjectInfo, entry: CatalogueEntry, parameters: Mapping[str, Any]
    ) -> Submission:
        document = {**self.rule.input, **parameters, self.rule.field: self._reference(key, info)}
        canonical = json.dumps([self.rule.model, document], sort_keys=True)
        return Submission(
            key=key,
            model=self.rule.model,
            queue=entry.queue,
            input=document,
            fingerprint=sha256(canonical.encode()).hexdigest(),
            metadata={"drop": self.rule.name, "source": self.bucket.uri(info.key)},
            queue_ttl_s=entry.queue_ttl_s,
            execution_timeout_s=entry.execution_timeout_s,
            max_attempts=entry.max_attempts,
        )

    def _parameters(self, info: ObjectInfo) -> Mapping[str, Any]:
        try:
            text = self.bucket.get_bytes(info.key + ".json", limit_bytes=MAX_SIDECAR_BYTES)
        except ObjectNotFound:
            return {}
        try:
            parameters = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"{info.key}.json is not JSON") from error
        if not isinstance(parameters, dict):
            raise InvalidInput(f"{info.key}.json is not a JSON object")
        return parameters

    def _reference(self, key: JobKey, info: ObjectInfo) -> str:
        """Name the object as media: S3 objects by their etag, files by a copy that nobody changes any more."""
        if not isinstance(self.bucket, LocalStore):
            return f"{self.bucket.uri(info.key)}#etag={info.etag}"
        name = safe_name(info.key)
        with tempfile.TemporaryDirectory(dir=self.settings.spool_dir) as folder:
            copy = Path(folder) / "media"
            self.bucket.get_file(info.key, copy, limit_bytes=self.settings.max_upload_bytes, etag=info.etag)
            self.objects.put_file(upload_key(key.tenant, key.id, name), copy, content_type="application/octet-stream")
        return f"media://{key.id}/{name}"

    def _publish(self, info: ObjectInfo, job: Job) -> None:
        """Put the artifacts in the place of an older version's, and the marker last."""
        result = result_key(self.rule, info.key)
        self._withdraw(result)
        for artifact in job.artifacts:
            with tempfile.TemporaryDirectory(dir=self.settings.spool_dir) as folder:
                copy = Path(folder) / "artifact"
                self.objects.get_file(artifact.key, copy, limit_bytes=artifact.size_bytes)
                self.bucket.put_file(f"{result}/{artifact.name}", copy, content_type=artifact.content_type)
        self._mark(result, DONE if job.state is State.SUCCEEDED else ERROR, _marker(job))
        log.info("drop.published", key=info.key, job=job.key.id, state=job.state.value)

    def _withdraw(self, result: str) -> None:
        """Delete an older version's artifacts and markers: nobody shall take its map for the new object's."""
        for end in (DONE, ERROR):
            try:
                marker = json.loads(self.bucket.get_bytes(result + end, limit_bytes=MAX_MARKER_BYTES))
            except ObjectNotFound:
                continue
            except ValueError:
                marker = {}
            for artifact in marker.get("artifacts", ()):
                self.bucket.delete(f"{result}/{safe_name(artifact['name'])}")
            self.bucket.delete(result + end)

    def _mark(self, result: str, end: str, marker: Mapping[str, Any]) -> None:
        self.bucket.put_bytes(result + end, json.dumps(marker, indent=1).encode(), content_type="application/json")


def open_drops(settings: Settings, store: records.Runs, objects: ObjectStore) -> list[Drop]:
    """Open every rule's bucket."""
    settings.spool_dir.mkdir(parents=True, exist_ok=True)
    return [Drop(rule, open_store(rule.bucket, settings), settings, store, objects) for rule in settings.drops]


def _marker(job: Job) -> dict[str, Any]:
    error: ErrorReport | None = job.error
    return {
        "id": job.key.id,
        "status": job.state.value,
        "artifacts": [{"name": a.name, "size_bytes": a.size_bytes, "sha256": a.sha256} for a in job.artifacts],
        "data": job.data,
        "error": error.to_json() if error else None,
    }
