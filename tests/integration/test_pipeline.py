"""One attempt from its references to its visible result, on a real Valkey, a real folder and the real engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest
from celery import Celery

from penstock.errors import ObjectStoreUnavailable, RedisUnavailable
from penstock.jobs import Claim, Job, JobKey, Progress, State, Status
from penstock.observation import log
from penstock.processors.base import Divisible, Media, Output, Prepared, Result
from penstock.processors.registry import Registry
from penstock.storage.hints import TASK
from penstock.storage.journal import journal
from penstock.storage.journal.environments import Environments
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import queues, records
from penstock.storage.redis.records import Command
from penstock.workers.claim_loop import Slots
from penstock.workers.consumer import register
from penstock.workers.engine.base import Check
from penstock.workers.processing import InThread, Processed, Session, ThreadSession, Work
from penstock.workers.store_waits import StoreWaits
from tests.support.claims import claim_one
from tests.support.echo_processor import Bench, Echo, EchoRequest, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

T = TypeVar("T")


@pytest.fixture(params=["manifest", "redis"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path, durability: str) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability=durability) as bench:
        yield bench


@pytest.fixture
def hasty(valkey: ValkeyProcess, tmp_path: Path, durability: str) -> Iterator[Bench]:
    """A bench whose leases end soon after their last heartbeat."""
    with open_bench(valkey.url, tmp_path, durability=durability, lease_s=1) as bench:
        yield bench


def read(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def test_the_log_lines_of_an_attempt_name_the_trace_of_its_request(bench: Bench) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    bench.submit("traced", {"text": bench.upload("bug")}, traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    bench.submit("other", {"text": bench.upload("hi", upload_id="other")})
    out = StringIO()
    log.configure(stream=out)
    try:
        assert bench.slots.work("default") + bench.slots.work("default") >= 2
    finally:
        log.configure()
    lines = [json.loads(text) for text in out.getvalue().splitlines()]
    told = {
        (line["event"], line["job"], line.get("trace_id")) for line in lines if line["event"].startswith("attempt.")
    }
    assert told == {
        *((f"attempt.{what}", "default/traced", trace) for what in ("started", "failed", "ended")),
        *((f"attempt.{what}", "default/other", None) for what in ("started", "ended")),
    }


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_job_ends_with_its_text_and_its_artifact(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi "), "times": 3})
    assert bench.slots.work("default") == 1
    job = read(bench, key)
    assert (job.state, job.text, job.progress) == (State.SUCCEEDED, "hi hi hi ", Progress(3, 3, "echoes"))
    [artifact] = job.artifacts
    assert bench.objects.get_bytes(artifact.key, limit_bytes=100) == b"hi hi hi "
    assert artifact.sha256 == sha256(b"hi hi hi ").hexdigest()
    assert bench.artifacts(key) == [artifact.key]
    assert {"fetch_ms", "cold_start_ms", "inference_ms", "upload_ms"} <= set(job.metrics)
    assert job.metrics["input_bytes"] == 3
    assert job.metrics["batches"] * job.metrics["batch_size"] == 3
    assert bench.scratch() == []


def test_a_result_carries_what_made_it_in_both_stores(bench: Bench, durability: str) -> None:
    key = bench.submit("a", {"text": bench.upload("hi"), "times": 2})
    assert bench.slots.work("default") == 1
    job = read(bench, key)
    found = json.loads(job.provenance or "")
    made = Environments().read(bench.objects, key.tenant, found["environment"])
    assert made is not None
    assert (made["model"]["name"], made["model"]["runner"]) == ("echo", "fake")
    assert {"penstock", "python", "numpy"} <= set(made["software"])
    assert made["machine"].startswith("cpu-")
    hashed = sha256(b"hi").hexdigest()
    assert found["inputs"] == [{"place": "/text", "reference": "media://up/in.txt", "size_bytes": 2, "sha256": hashed}]
    assert found["defaults"] == {"/save": False, "/chance": False, "/when": None}
    assert not {"parts", "resumed", "copied_from"} & set(found)
    if durability == "manifest":
        bench.store.client.flushdb()
        assert bench.journal.run(journal.read(key)).provenance == job.provenance


class Full(LocalStore):
    """A store that takes nothing more."""

    def put_bytes(self, *_: Any, **__: Any) -> ObjectInfo:
        raise ObjectStoreUnavailable("it is full")


def test_a_job_kept_in_redis_alone_does_not_wait_to_store_its_environment(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    with open_bench(valkey.url, tmp_path, durability="redis") as bench:
        key = bench.submit("a", {"text": bench.upload("hi")})
        objects = Full(tmp_path / "objects")
        pipeline = replace(bench.pipeline, objects=objects, waits=StoreWaits(objects, 600))
        assert Slots(bench.settings, bench.store, pipeline.served, pipeline.run).work("default") == 1
        job = read(bench, key)
        assert (job.state, "environment" in json.loads(job.provenance or "")) == (State.SUCCEEDED, False)


@pytest.mark.breadth(but=("manifest-bug", "redis-bad"))
@pytest.mark.parametrize("text", ["bad", "bug"])
def test_a_job_without_a_result_has_no_provenance(bench: Bench, text: str) -> None:
    key = bench.submit("a", {"text": bench.upload(text)})
    assert bench.slots.work("default") == 1
    assert read(bench, key).provenance is None


@pytest.mark.parametrize(
    ("text", "document", "code", "places"),
    [
        ("hi", {"text": "media://never/there.txt"}, "media_not_found", ["/input/text"]),
        ("hi", {"text": "https://127.0.0.1/x"}, "media_refused", ["/input/text"]),
        ("bad", {"text": "media://up/in.txt"}, "invalid_input", []),
        ("bug", {"text": "media://up/in.txt"}, "processor_failed", []),
        ("hi", {"text": "media://up/in.txt", "times": "often"}, "invalid_input", ["/input/times"]),
    ],
)
def test_a_bad_job_fails_with_a_code_and_the_next_one_is_fine(
    bench: Bench, text: str, document: dict[str, str], code: str, places: list[str]
) -> None:
    bench.upload(text)
    bad = bench.submit("bad", document)
    good = bench.submit("good", {"text": bench.upload("fine", upload_id="other")})
    assert bench.slots.work("default") == 2
    job = read(bench, bad)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.code == code
    assert [issue.pointer for issue in job.error.errors] == places
    assert "Traceback" not in job.error.detail
    assert bench.artifacts(bad) == []
    assert read(bench, good).text == "fine"


@pytest.mark.breadth(but=("manifest",))
def test_a_cancel_is_seen_while_the_engine_works(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi"), "times": 50})
    bench.gate.shut()
    worker = in_thread(lambda: bench.slots.work("default"))
    assert bench.gate.entered.wait(30)
    assert bench.journal.run(journal.cancel(key)).status is Status.CANCELING
    worker.join(60)
    assert read(bench, key).state is State.CANCELED
    assert bench.artifacts(key) == []


def test_a_worker_that_lost_its_lease_changes_nothing(hasty: Bench) -> None:
    key = hasty.submit("a", {"text": hasty.upload("hi")})
    hasty.gate.shut()
    zombie = in_thread(lambda: hasty.slots.work("default"))
    assert hasty.gate.entered.wait(30)
    # As if the worker had been stopped: the lease is made to have ended, the job comes back and ends elsewhere.
    hasty.store.client.zadd("penstock:leases", {str(key): 0})
    assert hasty.store.run(records.sweep()).requeued == 1
    claim = claim_one(hasty.store, "default", slot="other", models=["echo"])
    hasty.journal.run(journal.complete(claim, records.Outcome(State.SUCCEEDED, text="elsewhere")))
    hasty.gate.opened.set()
    zombie.join(60)
    assert (read(hasty, key).text, read(hasty, key).crashes) == ("elsewhere", 1)
    assert hasty.artifacts(key) == []


def test_a_drain_gives_the_job_back_to_begin_its_attempt_again(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi"), "times": 50})
    bench.gate.shut()
    worker = in_thread(lambda: bench.slots.work("default"))
    assert bench.gate.entered.wait(30)
    bench.slots.drain()
    bench.pipeline.heartbeat.drain()
    worker.join(60)
    assert not worker.is_alive()
    job = read(bench, key)
    assert (job.state, job.attempt, job.crashes) == (State.QUEUED, 1, 0)
    assert bench.slots.work("default") == 0


def test_a_job_that_begins_after_the_drain_is_given_back_too(bench: Bench) -> None:
    key = bench.submit("late", {"text": bench.upload("hello")})

    def run(claimed: Claim) -> None:
        slots.drain()
        bench.pipeline.heartbeat.drain()  # between the claim and the attempt
        bench.pipeline.run(claimed)

    slots = Slots(bench.settings, bench.store, bench.pipeline.served, run)
    slots.work("default")
    job = read(bench, key)
    assert (job.state, job.attempt, job.crashes) == (State.QUEUED, 1, 0)


@pytest.mark.breadth(but=("manifest",))
def test_a_result_is_told_when_redis_is_back(bench: Bench, valkey: ValkeyProcess) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    bench.gate.shut()
    worker = in_thread(lambda: bench.slots.work("default"))
    assert bench.gate.entered.wait(30)
    valkey.kill()
    bench.gate.opened.set()
    valkey.restart()
    worker.join(30)
    assert (read(bench, key).state, read(bench, key).text) == (State.SUCCEEDED, "hi")


def test_no_more_jobs_run_than_there_are_slots(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, slots=1) as bench:
        keys = [bench.submit(name, {"text": bench.upload("hi")}) for name in "ab"]
        bench.gate.shut()
        worker = in_thread(lambda: bench.slots.work("default"))
        assert bench.gate.entered.wait(30)
        assert bench.slots.work("default") == 0
        bench.gate.opened.set()
        worker.join(60)
        assert [read(bench, key).state for key in keys] == [State.SUCCEEDED, State.SUCCEEDED]


def hinted(slots: Slots) -> Callable[[str], int]:
    """Return the task that Celery runs for a hint."""
    app = Celery(set_as_current=False)
    register(app, slots)
    task: Callable[[str], int] = app.tasks[TASK]
    return task


def test_a_hint_that_finds_no_free_slot_waits_for_one(valkey: ValkeyProcess, tmp_path: Path) -> None:
    ended: list[str] = []
    with open_bench(valkey.url, tmp_path, slots=1) as bench:
        task, began = hinted(bench.slots), threading.Event()

        def work() -> None:
            bench.slots.work("default")
            ended.append("slot")

        def hear() -> None:
            began.set()
            task("default")
            ended.append("hint")

        bench.submit("a", {"text": bench.upload("hi")})
        bench.gate.shut()
        worker = in_thread(work)
        assert bench.gate.entered.wait(30)
        hint = in_thread(hear)
        assert began.wait(30)
        bench.gate.opened.set()
        worker.join(60)
        hint.join(60)
    assert ended == ["slot", "hint"]


def test_a_hint_waits_for_no_slot_of_a_worker_that_drains(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, slots=1) as bench:
        task = hinted(bench.slots)
        bench.submit("a", {"text": bench.upload("hi")})
        bench.gate.shut()
        worker = in_thread(lambda: bench.slots.work("default"))
        assert bench.gate.entered.wait(30)
        hint = in_thread(lambda: task("default"))
        bench.slots.drain()
        hint.join(60)
        assert not hint.is_alive()
        assert worker.is_alive()
        bench.gate.opened.set()
        worker.join(60)


def test_the_poll_finds_work_without_a_hint(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, poll_s=0.05) as bench:
        bench.gate.shut()
        key = bench.submit("a", {"text": bench.upload("hi")})
        bench.slots.start()
        assert bench.gate.entered.wait(30)
        assert bench.store.run(queues.queue_stats("default")).workers == 1
        bench.gate.opened.set()
        bench.slots.drain()
        bench.slots.join()
        assert read(bench, key).state is State.SUCCEEDED


def test_a_slot_that_leaves_jobs_waiting_passes_the_hint_on(bench: Bench) -> None:
    hints: SimpleQueue[str] = SimpleQueue()
    slots = Slots(bench.settings, bench.store, bench.pipeline.served, bench.pipeline.run, hint=hints.put)
    keys = [bench.submit(name, {"text": bench.upload("hi")}) for name in "ab"]
    bench.gate.shut()
    first = in_thread(lambda: slots.work("default"))
    queue = hints.get(timeout=30)
    second = in_thread(lambda: slots.work(queue))
    wait_for(lambda: all(read(bench, key).state is State.RUNNING for key in keys), "they run one after the other")
    bench.gate.opened.set()
    first.join(60)
    second.join(60)
    assert [read(bench, key).state for key in keys] == [State.SUCCEEDED, State.SUCCEEDED]
    assert hints.empty()  # nothing waited behind the second


def test_a_job_on_its_last_chance_runs_with_nothing_beside_it(bench: Bench) -> None:
    last = bench.submit("last", {"text": bench.upload("hi")})
    for _ in range(2):
        claim_and_lose(bench, last)
    others = [bench.submit(name, {"text": bench.upload("hi")}) for name in "ab"]
    bench.gate.shut()
    first = in_thread(lambda: bench.slots.work("default"))
    assert bench.gate.entered.wait(30)
    assert read(bench, last).state is State.RUNNING
    assert bench.slots.work("default") == 0
    assert [read(bench, key).state for key in others] == [State.QUEUED, State.QUEUED]
    bench.gate.opened.set()
    first.join(60)
    assert [read(bench, key).state for key in (last, *others)] == [State.SUCCEEDED] * 3


def claim_and_lose(bench: Bench, key: JobKey) -> None:
    """Have a worker die over a job."""
    claim_one(bench.store, "default", slot="dead", worker="dead", models=["echo"])
    bench.store.client.zadd("penstock:leases", {str(key): 0})
    assert bench.store.run(records.sweep()).requeued == 1


def test_one_poll_puts_every_slot_to_work(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path, poll_s=60, slots=2) as bench:
        bench.gate.shut()
        keys = [bench.submit(name, {"text": bench.upload("hi")}) for name in "ab"]
        bench.slots.start()
        assert bench.gate.entered.wait(30)
        ends = time.monotonic() + 30
        while bench.store.run(queues.queue_stats("default")).running < 2:
            assert time.monotonic() < ends, "one slot waits for a hint"
        bench.gate.opened.set()
        bench.slots.drain()
        bench.slots.join()
        assert [read(bench, key).state for key in keys] == [State.SUCCEEDED, State.SUCCEEDED]


class Unchecked(ThreadSession):
    """A session that lets something through that no store takes."""

    def finish(self, outputs: Iterator[Output]) -> Processed:
        super().finish(outputs)
        return Processed(Result("", {"y": float("nan")}), {})


class LetsAllThrough(InThread):
    @contextmanager
    def open(self, work: Work, *, check: Check, say: Callable[[str], None]) -> Iterator[Session]:
        with super().open(work, check=check, say=say) as session:
            assert isinstance(session, ThreadSession)
            yield Unchecked(session.processor, session.prepared, session.sink)


@pytest.mark.breadth(but=("manifest",))
def test_an_outcome_that_cannot_be_told_fails_the_job_at_once(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi")})
    processing = LetsAllThrough(Registry().register("echo", Echo))
    pipeline = replace(bench.pipeline, processing=processing)
    assert Slots(bench.settings, bench.store, pipeline.served, pipeline.run).work("default") == 1
    job = read(bench, key)
    assert (job.state, job.attempt, job.error and job.error.code) == (State.FAILED, 1, "processor_failed")
    assert bench.artifacts(key) == []


class Divided(Echo):
    """Offers its echoes as units for other workers."""

    def pre_process(self, request: EchoRequest, media: Media) -> Prepared[dict[str, bytes] | None]:
        work = Divisible("d", tuple((at, 1, 1) for at in range(request.times)), {"d": "what it found"})
        return replace(super().pre_process(request, media), division=work)


class Unreliable:
    """A job store that loses the first messages of a script on their way there, or their replies."""

    def __init__(self, store: records.JobStore, script: str, *, lost: int, replies: int) -> None:
        self.store, self.script, self.lost, self.replies = store, script, lost, replies

    def run(self, command: Command[T]) -> T:
        if command.script != self.script:
            return self.store.run(command)
        if self.lost:
            self.lost -= 1
            raise RedisUnavailable
        done = self.store.run(command)
        if self.replies:
            self.replies -= 1
            raise RedisUnavailable
        return done


@pytest.mark.breadth(but=("manifest-1-0", "redis-0-1"))
@pytest.mark.parametrize(("lost", "replies"), [(1, 0), (0, 1)])
def test_a_split_is_told_until_redis_answers(
    valkey: ValkeyProcess, tmp_path: Path, durability: str, lost: int, replies: int
) -> None:
    sharing = {"scene_sharing": "always", "scene_parts": 3, "scene_part_tiles": 1}
    with open_bench(valkey.url, tmp_path, durability=durability, **sharing) as bench:
        key = bench.submit("a", {"text": bench.upload("hi"), "times": 6})
        store = Unreliable(bench.store, "split", lost=lost, replies=replies)
        processing = InThread(Registry().register("echo", Divided))
        pipeline = replace(bench.pipeline, processing=processing, store=store)
        claim = claim_one(bench.store, "default", models=["echo"])
        pipeline.run(claim)
        job = read(bench, key)
        assert (job.state, job.parts and (job.parts.number, job.parts.ended)) == (State.DELAYED, (3, 0))
        [kept] = bench.keys(key.checkpoints)
        assert kept.endswith("/d/finding")
        assert bench.objects.get_bytes(kept, limit_bytes=100) == b"what it found"
        assert (store.lost, store.replies) == (0, 0)
