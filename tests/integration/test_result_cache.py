"""The result cache: the second of two identical jobs has the first one's result and never meets the engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.intake.media import upload_key
from penstock.jobs import Claim, Job, JobKey, State, Submission
from penstock.models import Model
from penstock.storage.journal import journal
from penstock.storage.journal.manifests import delete_objects_of
from penstock.storage.redis import records
from penstock.workers.claim_loop import Slots
from penstock.workers.engine.base import Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import load_fake
from penstock.workers.engine.runners import Runners
from penstock.workers.job_media import sha256_of
from penstock.workers.result_cache import fingerprint_of
from penstock.workers.served_models import RunnableModel, ServedModels
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess

WAIT_S = 30


@dataclass
class Caching:
    """A worker's parts with a model that has a result cache, and the number of its forward passes."""

    bench: Bench
    model: Model
    forwards: int = 0
    #: Set once the engine works; it goes on when the other one is set.
    entered: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event = field(default_factory=threading.Event)
    engine: BatchingEngine = field(init=False)

    def run(self, name: str, text: str = "hi", tenant: str = "default", **changes: Any) -> Job:
        """Upload a text under an id of its own, and run a job on it."""
        input = {"text": self.upload(name, text, tenant), **changes}  # noqa: A001
        wanted = Submission(JobKey(tenant, name), model="echo", queue="default", fingerprint="f", input=input)
        self.bench.journal.run(journal.submit(wanted, self.bench.limits))
        assert self.slots().work("default") == 1
        return self.read(wanted.key)

    def upload(self, name: str, text: str, tenant: str = "default", file: str = "in.txt") -> str:
        key = upload_key(tenant, f"up-{name}", file)
        self.bench.objects.put_bytes(key, text.encode(), content_type="text/plain")
        return f"media://up-{name}/{file}"

    def read(self, key: JobKey) -> Job:
        return self.bench.store.run(records.read(key))

    def contents(self, job: Job) -> bytes:
        (artifact,) = job.artifacts
        assert artifact.key.startswith(f"{job.key.prefix}attempts/")
        return self.bench.objects.get_bytes(artifact.key, limit_bytes=1000)

    def slots(self) -> Slots:
        served = ServedModels()
        served.put(self.model, self.bench.entry)
        pipeline = replace(self.bench.pipeline, served=served, engine=self.engine)
        return Slots(self.bench.settings, self.bench.store, served, pipeline.run)

    def load(self, model: Model) -> Runner:
        def count(states: object) -> None:  # noqa: ARG001
            self.forwards += 1
            self.entered.set()
            assert self.hold.wait(WAIT_S)

        return replace(load_fake(model), on_step=count)


@contextmanager
def opened(url: str, folder: Path, **changes: Any) -> Iterator[Caching]:
    with open_bench(url, folder, **changes) as bench:
        model = bench.pipeline.served.runnable()["echo"].model
        caching = Caching(bench, model.model_copy(update={"cache": True, "options": {}}))
        caching.hold.set()
        caching.engine = BatchingEngine(Runners.of({"fake": caching.load}))
        try:
            yield caching
        finally:
            caching.hold.set()
            caching.engine.close()


@pytest.fixture(params=["manifest", pytest.param("redis", marks=pytest.mark.breadth)])
def caching(valkey: ValkeyProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Caching]:
    with opened(valkey.url, tmp_path, durability=str(request.param)) as caching:
        yield caching


def test_a_second_identical_job_has_the_same_bytes_and_no_forward_pass(caching: Caching) -> None:
    first = caching.run("a", times=2)
    assert (first.state, first.metrics["cached"], caching.forwards) == (State.SUCCEEDED, 0, 2)
    second = caching.run("b", times=2)
    assert caching.forwards == 2
    assert (second.state, second.text, second.metrics["cached"]) == (State.SUCCEEDED, first.text, 1)
    assert "batches" not in second.metrics
    assert "inference_ms" not in second.metrics
    assert caching.contents(second) == caching.contents(first) == b"hihi"
    assert [replace(a, key="") for a in second.artifacts] == [replace(a, key="") for a in first.artifacts]
    assert second.artifacts != first.artifacts
    made, copied = (json.loads(job.provenance or "") for job in (first, second))
    assert made["inputs"][0].pop("reference") != copied["inputs"][0].pop("reference")
    assert copied == made | {"copied_from": "a"}


@pytest.mark.parametrize(
    "other",
    [{"text": "Hi"}, {"times": 2}, {"times": True}, {"save": True}, {"tenant": "other"}],
    ids=str,
)
def test_whatever_differs_is_computed(caching: Caching, other: dict[str, Any]) -> None:
    caching.run("a", times=1, save=False)
    assert caching.run("b", **{"times": 1, "save": False, **other}).metrics["cached"] == 0
    assert caching.run("c", times=1, save=False).metrics["cached"] == 1
    assert caching.forwards > 1


@pytest.mark.parametrize("change", [{"revision": "2"}, {"options": {"steps": 1}}, {"dtype": "bfloat16"}], ids=str)
def test_a_model_that_changed_computes(caching: Caching, change: dict[str, Any]) -> None:
    caching.run("a")
    caching.model = caching.model.model_copy(update=change)
    assert caching.run("b").metrics["cached"] == 0
    assert caching.run("c").metrics["cached"] == 1
    assert caching.forwards == 2


def test_another_name_of_the_file_is_another_request(caching: Caching) -> None:
    caching.run("a")
    key = caching.bench.submit("b", {"text": caching.upload("b", "hi", file="other.txt")})
    assert caching.slots().work("default") == 1
    assert caching.read(key).metrics["cached"] == 0


def test_a_model_without_a_cache_computes_each_time(caching: Caching) -> None:
    caching.model = caching.model.model_copy(update={"cache": False})
    for name in "ab":
        assert "cached" not in caching.run(name).metrics
    assert caching.forwards == 2
    assert caching.bench.store.client.keys("penstock:tenant:default:result:*") == []


def test_what_chance_decides_is_computed_each_time(caching: Caching) -> None:
    for name in "ab":
        assert caching.run(name, chance=True).metrics["cached"] == 0
    assert caching.forwards == 2


def test_a_failure_is_not_kept(caching: Caching) -> None:
    for name in "ab":
        job = caching.run(name, text="bad")
        assert (job.state, job.metrics["cached"]) == (State.FAILED, 0)
        assert job.error is not None
        assert job.error.code == "invalid_input"


def test_a_canceled_job_leaves_nothing_to_find(caching: Caching) -> None:
    caching.hold.clear()
    key = caching.bench.submit("a", {"text": caching.upload("a", "hi")})
    worker = threading.Thread(target=lambda: caching.slots().work("default"))
    worker.start()
    assert caching.entered.wait(WAIT_S)
    caching.bench.journal.run(journal.cancel(key))
    worker.join(WAIT_S)
    assert caching.read(key).state is State.CANCELED
    caching.hold.set()
    assert caching.run("b").metrics["cached"] == 0


def test_a_result_outlives_the_job_that_made_it_in_the_job_that_has_it(caching: Caching) -> None:
    first, second = caching.run("a"), caching.run("b")
    forget(caching, first.key)
    third = caching.run("c")
    assert (third.metrics["cached"], caching.forwards) == (1, 1)
    assert caching.contents(second) == caching.contents(third) == b"hi"


def test_a_deleted_job_takes_its_result_along(caching: Caching) -> None:
    forget(caching, caching.run("a").key)
    assert caching.run("b").metrics["cached"] == 0
    assert caching.forwards == 2


@pytest.mark.parametrize("harm", ["gone", "changed", "longer"])
def test_artifacts_that_are_not_what_the_record_says_are_made_again(caching: Caching, harm: str) -> None:
    first = caching.run("a")
    caching.bench.objects.delete(first.artifacts[0].key)
    if harm != "gone":
        data = b"ho" if harm == "changed" else b"hi and more"
        caching.bench.objects.put_bytes(first.artifacts[0].key, data, content_type="text/plain")
    second = caching.run("b")
    assert (second.metrics["cached"], caching.contents(second), caching.forwards) == (0, b"hi", 2)


def test_what_is_found_ends_by_the_time_that_jobs_are_kept(caching: Caching) -> None:
    caching.run("a")
    (name,) = caching.bench.store.client.keys("penstock:tenant:default:result:*")
    left_s = caching.bench.store.client.ttl(name)
    assert caching.bench.settings.retention_s - 60 < left_s <= caching.bench.settings.retention_s


def test_without_the_mark_in_redis_the_job_is_computed(caching: Caching) -> None:
    caching.run("a")
    caching.bench.store.client.delete(*caching.bench.store.client.keys("penstock:tenant:default:result:*"))
    assert caching.run("b").metrics["cached"] == 0


def test_a_text_that_looks_like_a_reference_is_not_taken_for_its_medium(tmp_path: Path) -> None:
    file = tmp_path / "media.txt"
    file.write_text("hi")
    schema = {"properties": {"media": {"format": "media"}, "note": {"type": "string"}}}
    serving = RunnableModel(
        Model(name="m", title="M", runner="fake", processor="p", source="-", revision="1"), schema, {}
    )

    def mark(reference: str, note: str) -> str:
        asked = {"media": reference, "note": note}
        wanted = Submission(JobKey("t", "j"), model="m", queue="q", fingerprint="f", input=asked)
        claim = Claim(wanted, attempt=1, crashes=0, fence=1, claimed_s=0, lease_s=1)
        return fingerprint_of(claim, serving, {reference: sha256_of(file)})

    assert mark("media://a/x.txt", "same") == mark("media://b/x.txt", "same")
    assert mark("media://a/x.txt", "media://a/x.txt") != mark("media://b/x.txt", "media://b/x.txt")
    assert mark("https://h/x.txt?signed=1", "") == mark("https://h/x.txt?signed=2", "")
    assert mark("https://h/x.txt", "") != mark("s3://h/x.txt", "")


def forget(caching: Caching, key: JobKey) -> None:
    """Delete a job as the keeper does."""
    delete_objects_of(caching.bench.objects, [key], before=lambda _: None)
    caching.bench.store.run(records.delete(key))
