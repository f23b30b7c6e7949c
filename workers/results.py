"""The result cache, for models with `cache = true`: what a job asks for that another job of its tenant had.

It keeps no results. Redis remembers for a while which job had one, and that job's record and artifacts are the result:
they are copied. A job that is deleted takes its result along, and what does not work out is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import structlog

from penstock import __version__
from penstock.errors import InputError, JobGone, ObjectNotFound, ObjectStoreUnavailable, RedisUnavailable, UnknownJob
from penstock.framed import digest
from penstock.jobs import Claim, Job, JobKey, State
from penstock.models import media_references
from penstock.processors.base import Result
from penstock.processors.registry import GROUP
from penstock.storage import journal, results
from penstock.storage.journal import Journal
from penstock.storage.media import LocalMedia
from penstock.workers.artifacts import Finished
from penstock.workers.engine.base import Check
from penstock.workers.processing import Processed
from penstock.workers.serving import Serving

#: Bytes: no request, which is JSON, can hold the same.
_MEDIUM = b"medium"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Results:
    """Finds results of earlier jobs. Nothing that goes wrong here is raised, but for what `check` raises."""

    journal: Journal
    #: How long a job's result may be found, at most: as long as the job is kept.
    kept_s: float

    def find(self, tenant: str, mark: str, folder: Path, *, check: Check) -> Processed | None:
        """Return the result that a job of the tenant had, its artifacts copied into a new folder; None without one."""
        try:
            key = self.journal.store.run(results.recall(tenant, mark))
            job = None if key is None else self.journal.run(journal.read(key))
            if job is None or job.state is not State.SUCCEEDED:
                return None
            files = self._copies(job, folder, check)
        except (UnknownJob, JobGone, ObjectNotFound):
            return None  # it was deleted, or its time is over
        except (RedisUnavailable, ObjectStoreUnavailable, InputError, OSError) as error:
            log.warning("result.not_found", error=type(error).__name__)
            return None
        if files is None:
            return None
        log.info("result.found", of=job.key.id)
        return Processed(Result(job.text, job.data), files)

    def remember(self, key: JobKey, mark: str) -> None:
        """Note that a job's result, which is visible, is that of the mark."""
        try:
            self.journal.store.run(results.remember(key, mark, kept_s=self.kept_s))
        except RedisUnavailable:
            log.warning("result.not_remembered")

    def _copies(self, job: Job, folder: Path, check: Check) -> dict[str, Finished] | None:
        """Return copies of a job's artifacts by name; None if one is not what the job's record says."""
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


def mark_of(claim: Claim, serving: Serving, media: Mapping[str, LocalMedia], *, check: Check) -> str:
    """Return the digest of all that a job's result depends on: 64 hexadecimal digits.

    The tenant; the software's version and the processor's; the model's record with its revision and options; the
    request; and of each medium what it is called and its bytes. An upload's id is not in it, nor is an address's query.
    """
    model, asked = serving.model, dict(claim.submission.input)
    hashes: dict[str, str] = {}
    for reference, file in media.items():
        check()
        hashes[reference] = sha256_of(file.path)
    places = media_references(serving.schema, asked)
    named = {place: [_MEDIUM, _called(reference), hashes[reference]] for place, reference in places}
    software = [__version__, _version_of(model.processor)]
    return digest("result", claim.key.tenant, software, model.model_dump(mode="json"), _named(asked, named)).hex()


def sha256_of(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _named(value: Any, media: Mapping[str, Any], place: str = "") -> Any:
    """Return a request with what stands at the places of its media references replaced."""
    if place in media:
        return media[place]
    if isinstance(value, Mapping):
        return {name: _named(inner, media, f"{place}/{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner, media, f"{place}/{number}") for number, inner in enumerate(value)]
    return value


def _called(reference: str) -> str:
    """Return what a processor can see of a reference and may tell in its result, without what differs each time."""
    scheme, host, path, _, _ = urlsplit(reference)
    return path if scheme == "media" else urlunsplit((scheme, host, path, "", ""))


def _version_of(processor: str) -> str:
    found = {point.dist.version for point in entry_points(group=GROUP, name=processor) if point.dist is not None}
    return " ".join(sorted(found))
