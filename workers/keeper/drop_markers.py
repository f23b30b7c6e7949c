"""The markers beside the results of dropped objects: read, written, withdrawn, and marked for a retry.

A marker is durable state: the id of the job that it is the end of, the first id of the object's version, and the number
of retries that somebody asked for. Each retry of a version is another job.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.config_tables import DropRule
from penstock.errors import Canceled, ErrorReport, ObjectNotFound
from penstock.intake.local_media import safe_name
from penstock.jobs import Job, JobKey, State
from penstock.storage.drop_rules import DONE, ERROR
from penstock.storage.objects.base import ObjectInfo, ObjectStore

MAX_MARKER_BYTES = 100_000_000
#: Namespace of the job ids: UUIDv5 of tenant, bucket, key and version.
NAMESPACE = uuid.UUID("6b1f6d5e-7c7a-5d6c-9d0e-3f1f3c1f9a52")
#: Status of an error marker whose object gets another job.
RETRY = "retry"
#: Characters of a failure's reason that are kept.
_MAX_REASON_CHARS = 500


def drop_id(tenant: str, bucket: str, info: ObjectInfo) -> str:
    """Return the first job id of an object version. Pure; `info` comes from a HEAD request."""
    version = info.version_id or f"{info.etag}\n{info.modified_s:.6f}"
    return str(uuid.uuid5(NAMESPACE, "\n".join((tenant, bucket, info.key, version))))


def result_key(rule: DropRule, key: str) -> str:
    """Return the prefix of an object's results: `maps/a.tif`."""
    return rule.output_prefix + key.removeprefix(rule.prefix)


def upload_id(job: JobKey, document: str, key: str) -> str:
    """Return the id of the upload for a copy of an object of a job, whose own object is `document`. Pure.

    Files of one name in several folders stay apart, and so do files whose names are changed for the upload.
    """
    folder, _, name = key.rpartition("/")
    kept = safe_name(name) == name
    if key == document or (kept and folder == document.rpartition("/")[0]):
        return job.id
    return str(uuid.uuid5(NAMESPACE, f"{job.id}\n{folder if kept else key}"))


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker's contents; all empty if it cannot be read."""

    id: str = ""
    #: First job id of the object's version.
    version: str = ""
    retries: int = 0
    status: str = ""
    #: Reason of the failure.
    reason: str = ""
    artifacts: tuple[str, ...] = ()

    def ends(self, version: str) -> bool:
        """Return True if the object version needs no further job."""
        return self.version == version and self.status != RETRY


def read_marker(data: bytes) -> Marker:
    """Return a marker, which may be of somebody else's making."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Marker()
    if not isinstance(found, dict):
        return Marker()
    own, error, retries = str(found.get("id", "")), found.get("error"), found.get("retries")
    artifacts = found.get("artifacts")
    return Marker(
        id=own,
        version=str(found.get("version", own)),
        retries=retries if isinstance(retries, int) else 0,
        status=str(found.get("status", "")),
        reason=_reason(error) if isinstance(error, dict) else "",
        artifacts=tuple(
            str(each["name"])
            for each in (artifacts if isinstance(artifacts, list) else ())
            if isinstance(each, dict) and "name" in each
        ),
    )


def _reason(error: Mapping[str, Any]) -> str:
    """Return an error as one line, with the places in the input."""
    issues = error.get("errors")
    places = [each for each in (issues if isinstance(issues, list) else ()) if isinstance(each, dict)]
    listed = "; ".join(f"{each.get('pointer', '')} {each.get('detail', '')}".strip() for each in places)
    detail = str(error.get("detail") or error.get("title") or error.get("code") or "")
    return (f"{detail}: {listed}" if listed and listed not in detail else detail)[:_MAX_REASON_CHARS]


def retries_of(version: str, markers: Iterable[Marker]) -> int:
    """Return the number of retries of an object version that its markers ask for."""
    return max((marker.retries for marker in markers if marker.version == version), default=0)


@dataclass(frozen=True, slots=True)
class VersionRun:
    """One job of an object version: the first one, or that of a retry."""

    tenant: str
    version: str
    retries: int

    @property
    def key(self) -> JobKey:
        """The key of the job."""
        again = str(uuid.uuid5(NAMESPACE, f"{self.version}\n{self.retries}"))
        return JobKey(self.tenant, again if self.retries else self.version)

    def marker(self, status: str, **others: Any) -> dict[str, Any]:
        """Return the JSON of the run's marker."""
        again = {"version": self.version, "retries": self.retries} if self.retries else {}
        return {"id": self.key.id, **again, "status": status, **others}

    def marker_of(self, job: Job) -> dict[str, Any]:
        """Return the JSON of the marker of the run's job, which has ended."""
        error: ErrorReport | None = job.error
        if error is None and job.state is State.CANCELED:
            error = Canceled("the job was canceled: put the object there again to run it").report()
        artifacts = [{"name": a.name, "size_bytes": a.size_bytes, "sha256": a.sha256} for a in job.artifacts]
        report = error.to_json() if error else None
        return self.marker(job.state.value, artifacts=artifacts, text=job.text, data=job.data, error=report)


@dataclass
class Markers:
    """The markers in a rule's bucket."""

    bucket: ObjectStore
    #: Markers by (key, etag) as listed: one request for each.
    _known: dict[tuple[str, str], Marker] = field(default_factory=dict)

    def listed(self, result: str, infos: Mapping[str, ObjectInfo]) -> dict[str, Marker]:
        """Return the listed markers of a result, by suffix."""
        present = {end: infos[result + end] for end in (DONE, ERROR) if result + end in infos}
        return {end: self._listed(info) for end, info in present.items()}

    def read(self, result: str) -> dict[str, Marker]:
        """Read the existing markers of a result; return them by suffix."""
        markers = {}
        for end in (DONE, ERROR):
            with suppress(ObjectNotFound):
                markers[end] = read_marker(self.bucket.get_bytes(result + end, limit_bytes=MAX_MARKER_BYTES))
        return markers

    def keep_only(self, infos: Iterable[ObjectInfo]) -> None:
        """Forget the markers that no longer exist."""
        existing = {(info.key, info.etag) for info in infos}
        self._known = {key: marker for key, marker in self._known.items() if key in existing}

    def put(self, result: str, end: str, marker: Mapping[str, Any]) -> None:
        """Write a marker, whose texts people read: other scripts are not escaped, only halves of characters are."""
        document = json.dumps(marker, indent=1, ensure_ascii=False).encode(errors="backslashreplace")
        self.bucket.put_bytes(result + end, document, content_type="application/json")

    def withdraw(self, result: str, markers: Mapping[str, Marker]) -> None:
        """Delete an older version's artifacts and markers, so that none is taken for the new object's.

        A marker for a retry stays: without it, an interrupted keeper would publish the job before the retry.
        """
        for end, marker in markers.items():
            for name in marker.artifacts:
                self.bucket.delete(f"{result}/{safe_name(name)}")
            if marker.status != RETRY:
                self.bucket.delete(result + end)

    def retry(self, result: str, version: str) -> bool:
        """Ask for another job for a failed object; return False if its result is no error of this version."""
        try:
            marker = read_marker(self.bucket.get_bytes(result + ERROR, limit_bytes=MAX_MARKER_BYTES))
        except ObjectNotFound:
            return False
        if not marker.id or marker.version != version or marker.status == RETRY:
            return False
        again = {"version": marker.version, "retries": marker.retries + 1}
        self.put(result, ERROR, {"id": marker.id, **again, "status": RETRY})
        return True

    def _listed(self, info: ObjectInfo) -> Marker:
        version = (info.key, info.etag)
        if version not in self._known:
            try:
                data = self.bucket.get_bytes(info.key, limit_bytes=MAX_MARKER_BYTES)
            except ObjectNotFound:
                return Marker()
            self._known[version] = read_marker(data)
        return self._known[version]
