"""The result cache, for models with `cache = true`: reuses the result of an equal earlier job of the same tenant.

The cache stores no results. Redis keeps, for a while, which job had one; that job's record and artifacts are copied.
Deleting a job deletes its cached result. When copying fails, the result is computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog

from penstock import __version__
from penstock.catalogue.environments import digest_of
from penstock.errors import InputError, JobGone, JobStoreError, ObjectNotFound, ObjectStoreUnavailable, UnknownJob
from penstock.jobs import Claim, Job, JobKey, State
from penstock.models import media_references
from penstock.processors.base import Result
from penstock.storage.canonical_hash import digest
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.redis.fields import us
from penstock.storage.redis.scripts import Command, query
from penstock.workers.artifacts import Finished
from penstock.workers.engine.base import Check
from penstock.workers.job_media import sha256_of
from penstock.workers.processing import Processed
from penstock.workers.provenance import version_of
from penstock.workers.served_models import RunnableModel

#: Bytes, so that no request, which is JSON, can hold the same value.
_MEDIUM = b"medium"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ResultCache:
    """The results of earlier jobs. Only errors of `check` are raised; other errors count as a miss."""

    journal: Journal
    #: Seconds that a job's result can be found, at most: the retention of the job.
    kept_s: float

    def find(self, tenant: str, fingerprint: str, folder: Path, *, check: Check) -> Processed | None:
        """Return the result of an equal job of the tenant, its artifacts copied into a new folder; None if missing."""
        try:
            key = self.journal.store.run(recall(tenant, fingerprint))
            job = None if key is None else self.journal.run(journal.read(key))
            if job is None or job.state is not State.SUCCEEDED:
                return None
            job = self.journal.run(journal.whole(job))
            files = self._copies(job, folder, check)
        except (UnknownJob, JobGone, ObjectNotFound):
            return None  # the job was deleted, or its retention is over
        except (JobStoreError, ObjectStoreUnavailable, InputError, OSError) as error:
            log.warning("result.lookup_failed", error=type(error).__name__)
            return None
        if files is None:
            return None
        log.info("result.found", of=job.key.id)
        made_by = json.loads(job.provenance) if job.provenance else {}
        return Processed(Result(job.text, job.data), files, copied=(job.key.id, made_by))

    def store_result(self, key: JobKey, fingerprint: str) -> None:
        """Store that a job, whose result is visible, has the result of this fingerprint."""
        try:
            self.journal.store.run(remember(key, fingerprint, kept_s=self.kept_s))
        except JobStoreError:
            log.warning("result.not_stored")

    def _copies(self, job: Job, folder: Path, check: Check) -> dict[str, Finished] | None:
        """Return copies of a job's artifacts by name; None if a copy's hash differs from the job's record."""
        folder.mkdir(parents=True)
        files: dict[str, Finished] = {}
        for artifact in job.artifacts:
            check()
            path = folder / artifact.name
            self.journal.objects.get_file(artifact.key, path, limit_bytes=artifact.size_bytes)
            if sha256_of(path) != artifact.sha256:
                log.error("result.damaged", artifact=artifact.name, of=job.key.id)
                return None
            files[artifact.name] = Finished(path, artifact.content_type)
        return files


def remember(key: JobKey, digest: str, *, kept_s: float) -> Command[str]:
    """Store that a succeeded job has the result of this digest."""
    return Command(
        "add", {"op": "result", "tenant": key.tenant, "digest": digest, "id": key.id, "kept_us": us(kept_s)}, str
    )


def recall(tenant: str, digest: str) -> Command[JobKey | None]:
    """Return the tenant's latest job with the result of this digest; the job may be purged."""
    return query("result", lambda found: JobKey(tenant, found) if found else None, tenant=tenant, digest=digest)


def fingerprint_of(claim: Claim, runnable: RunnableModel, hashes: Mapping[str, str]) -> str:
    """Return the fingerprint of everything that a job's result depends on: 64 hexadecimal digits.

    Included are the tenant, the versions of Penstock and of the processor, the packages of the model's environment, its
    record with revision and options, the request, and each medium's name and bytes. Upload ids and query strings of
    addresses are not included. `hashes` are those of the media, by reference; one that is missing and may be has none.
    """
    model, request = runnable.model, dict(claim.submission.input)
    places = media_references(runnable.schema, request)
    named = {place: [_MEDIUM, _called(reference), hashes.get(reference)] for place, reference in places}
    software = [__version__, version_of(model.processor)]
    if model.environment is not None:
        software.append(str(digest_of(Path(model.environment))))
    return digest("result", claim.key.tenant, software, model.model_dump(mode="json"), _named(request, named)).hex()


def _named(value: Any, media: Mapping[str, Any], place: str = "") -> Any:
    """Return a request whose media references are replaced by the values of `media`, by place."""
    if place in media:
        return media[place]
    if isinstance(value, Mapping):
        return {name: _named(inner, media, f"{place}/{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner, media, f"{place}/{number}") for number, inner in enumerate(value)]
    return value


def _called(reference: str) -> str:
    """Return a reference's name as the processor sees it, without the parts that differ in each request."""
    scheme, host, path, _, _ = urlsplit(reference)
    return path if scheme == "media" else urlunsplit((scheme, host, path, "", ""))
