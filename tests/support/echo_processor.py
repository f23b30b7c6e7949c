"""A small processor and a worker's parts around it, for tests that need a job to run and not what it computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.config import Settings
from penstock.errors import InvalidInput
from penstock.intake.guard import GuardedClient
from penstock.intake.media import upload_key
from penstock.jobs import JobKey, Submission, Webhook
from penstock.models import CatalogueEntry, MediaReference, Model
from penstock.processors.base import ArtifactSink, Media, Output, OutputSpec, Prepared, Prompt, Result
from penstock.processors.registry import Registry
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, records
from penstock.times import Time
from penstock.workers.claim_loop import Slots
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeState
from penstock.workers.engine.runners import Runners
from penstock.workers.heartbeat import Heartbeat
from penstock.workers.pipeline import Pipeline
from penstock.workers.places import Places
from penstock.workers.processing import InThread
from penstock.workers.scratch import ScratchFolders
from penstock.workers.served_models import ServedModels
from penstock.workers.store_waits import StoreWaits

LIMITS = records.QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3)


class EchoRequest(BaseModel):
    """A text file, its number of echoes, and switches: checkpoints, a pretended random part, a time of speech."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: MediaReference
    times: int = 1
    save: bool = False
    chance: bool = False
    when: Time | None = None


class Echo:
    """Sends the file's bytes through the engine `times` times and writes what comes back."""

    request = EchoRequest
    outputs = (OutputSpec("echo", "text/plain", "echo.txt: the text, again and again"),)

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: EchoRequest, media: Media) -> Prepared[dict[str, bytes] | None]:
        data = media.path(request.text).read_bytes()
        if data.startswith(b"bad"):
            raise InvalidInput("the text begins with `bad`")
        if data.startswith(b"bug"):
            raise ZeroDivisionError("a fault of the processor's own")
        prompt = Prompt({"bytes": np.frombuffer(data, np.uint8)})
        found = media.checkpoints("echo/") if request.save else {}
        saved = {name: path.read_bytes() for name, path in found.items()}
        left = request.times - len(saved)
        context, repeatable = saved if request.save else None, not request.chance
        return Prepared(iter([prompt] * left), left, left, context, "echoes", len(saved), repeatable=repeatable)

    def post_process(self, outputs: Iterator[Output], context: dict[str, bytes] | None, sink: ArtifactSink) -> Result:
        path, echoes = sink.path("echo.txt"), list((context or {}).values())
        for output in outputs:
            echoes.append(output.data["bytes"].tobytes())
            if context is not None:
                path.write_bytes(echoes[-1])
                sink.checkpoint(f"echo/{len(echoes)}", path)
        path.write_bytes(b"".join(echoes))
        sink.add("echo.txt", path, media_type="text/plain")
        return Result(text=path.read_text())


class Gate:
    """Holds the engine's steps until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.opened.set()
        self.passes = threading.Semaphore(0)

    def __call__(self, states: Sequence[FakeState]) -> None:  # noqa: ARG002
        if self.passes.acquire(blocking=False):
            return
        self.entered.set()
        assert self.opened.wait(30), "the test never opened the gate"

    def shut(self) -> None:
        self.entered.clear()
        self.opened.clear()


@dataclass(frozen=True)
class Bench:
    """A worker's parts on a real Valkey and a real folder."""

    settings: Settings
    store: records.JobStore
    objects: ObjectStore
    slots: Slots
    pipeline: Pipeline
    gate: Gate
    entry: CatalogueEntry

    def upload(self, text: str, name: str = "in.txt", upload_id: str = "up") -> str:
        key = upload_key("default", upload_id, name)
        self.objects.put_bytes(key, text.encode(), content_type="text/plain")
        return f"media://{upload_id}/{name}"

    def submit(self, job_id: str, input: dict[str, Any], webhook: Webhook | None = None, **changes: Any) -> JobKey:  # noqa: A002
        key = JobKey("default", job_id)
        fields: dict[str, Any] = {"model": "echo", "queue": "default", "fingerprint": "f"} | changes
        self.journal.run(journal.submit(Submission(key=key, input=input, webhook=webhook, **fields), self.limits))
        return key

    @property
    def journal(self) -> Journal:
        return Journal(self.store, self.objects)

    @property
    def limits(self) -> records.QueueLimits:
        return replace(LIMITS, durable=self.settings.durability == "manifest")

    def artifacts(self, key: JobKey) -> list[str]:
        """The objects of the job's attempts."""
        return self.keys(f"{key.prefix}attempts/")

    def scratch(self) -> list[Path]:
        """Return the paths in the scratch folder, but for empty base folders."""
        spool = self.settings.spool_dir
        return [path for path in spool.rglob("*") if path.parent != spool or not path.is_dir()]

    def keys(self, prefix: str) -> list[str]:
        return [info.key for info in self.objects.list(prefix)]


@contextmanager
def open_bench(redis_url: str, folder: Path, **changes: Any) -> Iterator[Bench]:
    """Open a worker's parts; nothing runs until `slots.work` is called."""
    fields: dict[str, Any] = {"data": folder, "redis_url": redis_url, "secret": "s", "lease_s": 30} | changes
    settings = Settings(**fields)
    store = records.JobStore.open(redis_url)
    objects = open_store(settings.store_url, settings)
    gate = Gate()
    record = {"name": "echo", "title": "Echo", "runner": "fake", "processor": "echo", "source": "-", "revision": "1"}
    model = Model(**record, options={"on_step": gate})
    processing = InThread(Registry().register("echo", Echo))
    entry, served = processing.entry(model), ServedModels()
    served.put(model, entry)
    store.run(catalogues.publish([entry], worker="w", queues=["default"], alive_s=600))
    engine, heartbeat = BatchingEngine(Runners.installed()), Heartbeat(store)
    spool = settings.spool_dir
    spool.mkdir(parents=True)
    waits, places = StoreWaits(objects, settings.store_wait_s), Places(settings.slots, settings.fetch_slots)
    pipeline = Pipeline(
        settings, store, objects, GuardedClient(settings), processing, engine, heartbeat, served,
        ScratchFolders(spool, shared=True), waits, places=places,
    )  # fmt: skip
    try:
        slots = Slots(settings, store, served, pipeline.run, store_away=waits.away, places=places)
        yield Bench(settings, store, objects, slots, pipeline, gate, entry)
    finally:
        gate.opened.set()
        engine.close()
        heartbeat.close()
        store.close()
