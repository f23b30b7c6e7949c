"""Jobs of models that no worker has: what a worker would write about them is written here, into a service's stores."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from penstock.config import Settings
from penstock.jobs import Artifact, Claim, JobKey, State, Submission
from penstock.models import CatalogueEntry, Output, limited
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, records
from penstock.storage.redis.records import Outcome, QueueLimits
from penstock.storage.redis.scripts import JobStore
from penstock.up.valkey import recorded_url
from penstock.views import View
from tests.support.claims import claim_one

QUEUE = "made"
MODEL = CatalogueEntry(
    name="made",
    title="A model of the tests",
    revision="1",
    queue=QUEUE,
    input_schema={
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "maxLength": 9000, "description": "The text to continue."},
            "image": {"type": "string", "format": "media", "description": "An image."},
            "steps": {"type": "integer", "minimum": 1, "maximum": 50, "default": 4},
            "style": {"enum": ["plain", "rich"]},
            "upright": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "box": {"type": "object", "properties": {"left": {"type": "number"}}, "additionalProperties": False},
            "stops": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["prompt"],
        "additionalProperties": False,
    },
    outputs=(Output(name="text", media_type="text/plain", description="The text."),),
    views=(
        View("boxes", "/objects"),
        View("passages", "/segments"),
        View("labels", "/images/*/labels", "image"),
        View("vectors", "/embeddings"),
    ),
    execution_timeout_s=600,
    queue_ttl_s=3600,
    max_attempts=3,
)


def of_processor(name: str) -> CatalogueEntry:
    """Return a model, of the same name, with the request and the views of a shipped processor."""
    (found,) = entry_points(group="penstock.io_processors", name=name)
    processor = found.load()
    return MODEL.model_copy(
        update={
            "name": name, "title": name, "processor": name, "views": processor.views,
            "input_schema": limited(processor.request.model_json_schema(), MODEL.limits),
        }
    )  # fmt: skip


@dataclass(frozen=True)
class MadeJobs:
    """Writes jobs of `MODEL` for a tenant."""

    settings: Settings
    jobs: JobStore
    objects: ObjectStore
    tenant: str

    @property
    def journal(self) -> Journal:
        """The journal of both stores."""
        return Journal(self.jobs, self.objects)

    def submit(self, metadata: Mapping[str, str] | None = None, **given: Any) -> JobKey:
        """Submit a job with this input."""
        wanted = self._wanted(given, metadata or {}, QUEUE)
        self.journal.run(journal.submit(wanted, QueueLimits.of(self.settings)))
        return wanted.key

    def submit_many(self, count: int, metadata: Mapping[str, str]) -> None:
        """Submit jobs that nobody claims, without manifests in the object store."""
        limits = QueueLimits(10**6, 10**6, self.settings.retention_s, self.settings.max_crashes)
        for _ in range(count):
            self.jobs.run(records.submit(self._wanted({}, metadata, "unclaimed"), limits))

    def upload(self, path: Path) -> str:
        """Store a file as an upload of the tenant, and return its reference."""
        upload_id = str(uuid.uuid4())
        self.objects.put_file(f"tenants/{self.tenant}/uploads/{upload_id}/{path.name}", path, content_type="x/y")
        return f"media://{upload_id}/{path.name}"

    def publish(self, *entries: CatalogueEntry) -> None:
        """Publish models beside `MODEL`."""
        self.jobs.run(catalogues.publish([MODEL, *entries], worker="made", queues=[QUEUE], alive_s=3600))

    def claim(self, model: str = MODEL.name) -> Claim:
        """Lease the next job of a model."""
        return claim_one(self.jobs, QUEUE, lease_s=60, max_tenant_running=99, worker="made", models=[model])

    def artifact(self, claim: Claim, name: str, data: bytes, content_type: str) -> Artifact:
        """Store an artifact."""
        key = claim.prefix + name
        self.objects.put_bytes(key, data, content_type=content_type)
        return Artifact(name, content_type, len(data), hashlib.sha256(data).hexdigest(), key)

    def succeed(self, claim: Claim, *artifacts: Artifact, text: str | None = None, data: Any = None) -> None:
        """End an attempt well."""
        outcome = Outcome(State.SUCCEEDED, text=text, data=data, artifacts=artifacts, metrics={"inference_ms": 5.0})
        assert self.journal.run(journal.complete(claim, outcome)).answer == "ok"

    def die(self) -> JobKey:
        """Have the next job's workers die until it is a dead letter."""
        for _ in range(self.settings.max_crashes):
            claim = self.claim()
            self.jobs.client.zadd("penstock:leases", {str(claim.key): 0})
            self.journal.run(journal.sweep())
        return claim.key

    def _wanted(self, given: Mapping[str, Any], metadata: Mapping[str, str], queue: str) -> Submission:
        key = JobKey(self.tenant, str(uuid.uuid4()))
        return Submission(
            key, MODEL.name, queue, {"prompt": "hello", **given}, uuid.uuid4().hex, metadata=metadata, max_attempts=3
        )


@contextmanager
def making(data: Path, *, tenant: str = "default", **store: Any) -> Iterator[MadeJobs]:
    """Publish `MODEL` in the service of a data folder, and write its jobs; `store` are the settings of its store."""
    address = recorded_url(data / "valkey")
    assert address is not None
    settings = Settings(data=data, redis_url=address, **store)
    jobs = JobStore.open(address)
    try:
        made = MadeJobs(settings, jobs, open_store(settings.store_url, settings), tenant)
        made.publish()
        yield made
    finally:
        jobs.close()
