"""A worker as `penstock worker` assembles it: its processors in IO processes, bad ones among good ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.catalogue.records import Catalogue, WrongRecord
from penstock.config import Settings
from penstock.intake.media import upload_key
from penstock.jobs import Job, JobKey, State, Submission
from penstock.models import CatalogueEntry, Model
from penstock.observation.listening import RecentLines
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, records, workers
from penstock.storage.redis.catalogues import CHECKING
from penstock.storage.redis.changes import CHANNEL
from penstock.storage.redis.records import JobStore, QueueLimits
from penstock.workers.app import open_worker
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

LIMITS = QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3, durable=True)
#: The longest silence while a job is waited for.
WAIT_S = 40.0
PROBE = Model(
    name="probe", title="Probe", runner="fake", processor="probe", source=".", revision="1", max_batch=4,
    io_timeout_s=1,
)  # fmt: skip
MODELS = {
    "probe": PROBE,
    "patient": PROBE.model_copy(update={"name": "patient", "warm_up": False, "io_timeout_s": 60}),
    "cold": PROBE.model_copy(update={"name": "cold", "warm_up": False}),
    "broken": PROBE.model_copy(update={"name": "broken", "options": {"broken": True}}),
    "nowhere": PROBE.model_copy(update={"name": "nowhere", "source": "no/such/file"}),
    "unknown": PROBE.model_copy(update={"name": "unknown", "processor": "nobody"}),
}
WRONG = WrongRecord(PROBE.model_copy(update={"name": "wrong"}), "models.toml: model 'wrong': revision: is required")
CATALOGUE = Catalogue(MODELS, {"wrong": WRONG})


@dataclass(frozen=True)
class Client:
    """Submits jobs and waits for them."""

    store: JobStore
    objects: ObjectStore

    @property
    def journal(self) -> Journal:
        return Journal(self.store, self.objects)

    def submit(self, job_id: str, model: str = "probe", **input: Any) -> JobKey:  # noqa: A002
        key = JobKey("default", job_id)
        self.journal.run(journal.submit(Submission(key, model, "default", input, "f", max_attempts=1), LIMITS))
        return key

    def wait(self, key: JobKey) -> Job:
        with self.store.client.pubsub() as changes:
            changes.subscribe(CHANNEL)
            changes.get_message(timeout=WAIT_S)  # it is subscribed: no change goes by unheard from here on
            while not (job := self.store.run(records.read(key))).status.terminal:
                assert changes.get_message(timeout=WAIT_S), f"the job did not end: {job}"
        return job

    def entries(self) -> dict[str, CatalogueEntry]:
        return self.store.run(catalogues.catalogue())


@pytest.fixture
def client(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Client]:
    settings = Settings(data=tmp_path, redis_url=valkey.url, secret="s", slots=2, poll_s=0.05)
    store = JobStore.open(valkey.url)
    others = set(psutil.Process().children())
    pool = IOPool(3, ForkOptions(512 * 2**20, processors={"probe": "tests.support.probe_processor:Probe"}))
    with open_worker(settings, store, catalogue=CATALOGUE, processing=pool) as worker:
        yield Client(store, open_store(settings.store_url, settings))
        worker.slots.drain()
    store.close()
    assert set(psutil.Process().children()) <= others


def test_bad_jobs_fail_beside_good_ones(client: Client) -> None:
    bad = {
        "segfault": "processor_failed", "abort": "processor_failed", "leave": "processor_failed",
        "hang": "processor_failed", "hog": "processor_failed", "garbage": "processor_failed",
        "refuse": "invalid_input", "fail": "processor_failed", "claim_the_device": "processor_failed",
    }  # fmt: skip
    jobs = {}
    for deed in bad:
        for half in ("pre", "prompt", "post"):
            jobs[client.submit(f"{deed}-{half}", **{half: deed})] = bad[deed]
            jobs[client.submit(f"good-beside-{deed}-{half}", "cold", size=50_000)] = None
    for key, code in jobs.items():
        job = client.wait(key)
        assert (job.state, job.error and job.error.code) == (State.FAILED if code else State.SUCCEEDED, code), key
        assert code or job.text == "150000"


def test_a_killed_process_is_tried_again(client: Client) -> None:
    job = client.wait(client.submit("killed", pre="killed"))
    assert job.error is not None
    assert (job.error.code, job.error.retryable) == ("out_of_memory", True)


def test_a_cancel_ends_a_processor_that_hangs(client: Client, tmp_path: Path) -> None:
    def hangs() -> bool:
        with suppress(FileNotFoundError):  # other models' scratch folders go meanwhile
            return any(tmp_path.rglob("hanging"))
        return False

    key = client.submit("hangs", "patient", post="hang")
    wait_for(hangs, "it never began")
    client.journal.run(journal.cancel(key))
    assert client.wait(key).state is State.CANCELED


def test_media_artifacts_text_and_progress_go_their_way(client: Client) -> None:
    client.objects.put_bytes(upload_key("default", "up", "in.txt"), b"of a file", content_type="text/plain")
    job = client.wait(client.submit("a", text="media://up/in.txt"))
    assert (job.state, job.text, job.progress.done, job.progress.unit) == (State.SUCCEEDED, "12", 3, "probes")
    [artifact] = job.artifacts
    assert client.objects.get_bytes(artifact.key, limit_bytes=100) == b"12.0"
    pieces = [e.data["text"] for e in client.store.run(records.events(job.key)) if e.type == "job.text"]
    assert "".join(pieces) == "0 1 2 "


def test_a_worker_tells_what_it_is_and_what_it_last_did_until_it_ends(valkey: ValkeyProcess, tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, redis_url=valkey.url, secret="s", slots=2, poll_s=0.05)
    store = JobStore.open(valkey.url)
    client = Client(store, open_store(settings.store_url, settings))
    pool = IOPool(3, ForkOptions(512 * 2**20, processors={"probe": "tests.support.probe_processor:Probe"}))
    recent = RecentLines()
    with open_worker(settings, store, catalogue=CATALOGUE, processing=pool, recent=recent) as worker:
        client.wait(client.submit("told"))

        def told() -> bool:
            [live] = store.run(workers.living())
            models = {model.name: model for model in live.state.models}
            return models["probe"].loaded and models["probe"].batch_size is not None

        wait_for(told, "the worker does not tell of its batch")
        [live] = store.run(workers.living())
        assert (live.id, live.state.slots, live.state.draining) == (worker.slots.worker, 2, False)
        assert live.state.queues == ("default",)
        assert not {"broken", "nowhere", "unknown", "wrong"} & {model.name for model in live.state.models}

        def logged(text: str) -> bool:
            return [line.text for line in store.run(workers.recent_lines(live.id)) or ()] == [text]

        recent.keep(None, "info", {"event": "told", "level": "info", "job": "acme/1"})
        wait_for(lambda: logged("told job=acme/1"), "the worker does not report its log")
        store.client.delete(f"penstock:workers:lines:{live.id}")  # as a Redis that was emptied
        wait_for(lambda: logged("told job=acme/1"), "the worker does not report its log again")
    assert store.run(workers.living()) == ()
    assert logged("told job=acme/1"), "the log of a worker that ended is gone"
    store.close()


@pytest.mark.breadth
def test_a_job_of_a_model_whose_record_went_wrong_waits_and_says_so(client: Client) -> None:
    key = client.submit("waits", "wrong")
    client.wait(client.submit("beside it"))
    job = client.store.run(records.read(key))
    assert (job.state, job.model_problem) == (State.QUEUED, WRONG.problem)


def test_every_model_is_told_of_with_its_problem(client: Client) -> None:
    client.wait(client.submit("after the warm-up"))
    wait_for(lambda: client.entries()["probe"].ready, "the model is never said to be ready")
    wait_for(lambda: CHECKING not in {e.problem for e in client.entries().values()}, "the others are never checked")
    entries = client.entries()
    assert {name: entry.problem is None for name, entry in entries.items()} == {
        "probe": True, "patient": True, "cold": True,
        "broken": False, "nowhere": False, "unknown": False, "wrong": False,
    }  # fmt: skip
    assert "an option that it does not take" in (entries["broken"].problem or "")
    assert "does not exist" in (entries["nowhere"].problem or "")
    assert "nobody" in (entries["unknown"].problem or "")
    assert (entries["wrong"].problem, entries["wrong"].ready) == (WRONG.problem, False)
    assert entries["probe"].input_schema["properties"]["text"]["anyOf"][0]["format"] == "media"
