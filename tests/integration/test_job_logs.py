"""The lines of a job: kept in order, bounded, only its own, and deleted with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np
import pytest
import structlog

from penstock.catalogue.records import Catalogue
from penstock.config import Settings
from penstock.errors import JobGone, ProcessorFailed
from penstock.jobs import Job, JobKey, State, Submission
from penstock.models import Model
from penstock.observation import log
from penstock.observation.listening import listening
from penstock.processors.base import Prompt
from penstock.storage.journal import journal
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.storage.redis.job_logs import MAX_BYTES, MAX_LINES, JobLines, read_lines, store_lines
from penstock.storage.redis.records import JobStore, Outcome, QueueLimits
from penstock.workers.app import open_worker
from penstock.workers.attempts import Attempt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeState
from penstock.workers.engine.runners import Runners
from penstock.workers.heartbeat import Heartbeat
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from tests.support.bare_store import claim, submit
from tests.support.polling import wait_for
from tests.support.talking_processor import texts
from tests.support.valkey import start_valkey

LIMITS = QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3, durable=True)
TALKER = Model(name="talker", title="Talker", runner="fake", processor="talker", source=".", revision="1", max_batch=8)


class TestStore:
    def test_a_part_is_stored_once_however_often_it_is_sent(self, store: JobStore) -> None:
        key = submit(store)
        [held] = claim(store)
        rows = [(1.5, "processor", "info", 'a "line" [] ä\x00\u2028')]
        for _ in range(2):
            assert store.run(store_lines(held, 1, rows, cut=0))
        assert store.run(store_lines(held, 2, [(2.5, "runner", "error", "b")], cut=7))
        found = store.run(read_lines(key))
        assert [(line.at_s, line.attempt, line.source, line.level, line.text) for line in found.lines] == [
            (1.5, 1, "processor", "info", 'a "line" [] ä\x00\u2028'), (2.5, 1, "runner", "error", "b"),
        ]  # fmt: skip
        assert found.cut == 7

    def test_a_job_keeps_its_latest_lines_and_counts_the_others(self, store: JobStore) -> None:
        key = submit(store)
        [held] = claim(store)
        for number in range(1, 41):
            store.run(store_lines(held, number, [(1.0, "runner", "info", f"{number} {'x' * 95}")] * 50, cut=1))
        found = store.run(read_lines(key))
        assert len(found.lines) <= MAX_LINES
        assert sum(len(line.text) for line in found.lines) <= MAX_BYTES
        assert found.lines[-1].text.startswith("40 ")
        assert len(found.lines) + found.cut == 40 * 51

    def test_an_attempt_that_lost_its_job_adds_nothing(self, store: JobStore) -> None:
        key = submit(store)
        [held] = claim(store)
        store.run(records.release(held))
        [other] = claim(store)
        assert not store.run(store_lines(held, 1, [(1.0, "runner", "info", "stale")], cut=0))
        assert store.run(store_lines(other, 1, [(1.0, "runner", "info", "own")], cut=0))
        assert texts(store.run(read_lines(key))) == ["own"]

    def test_the_lines_go_with_the_job(self, store: JobStore) -> None:
        key = submit(store)
        [held] = claim(store)
        store.run(store_lines(held, 1, [(1.0, "runner", "info", "x")], cut=0))
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        store.run(records.delete(key))
        assert store.client.keys("*:logs") == []
        with pytest.raises(JobGone):
            store.run(read_lines(key))

    def test_a_dead_attempt_leaves_what_its_heartbeats_stored_before_the_lines_of_the_next(
        self, store: JobStore
    ) -> None:
        key = submit(store)
        [held] = claim(store)
        heartbeat = Heartbeat(store)
        try:
            first = Attempt(held)
            with heartbeat.watching(first):
                first.lines.hear_runner("info", "before the crash")
                wait_for(lambda: texts(store.run(read_lines(key))) == ["before the crash"], "no heartbeat stored it")
            first.lines.hear_runner("info", "never stored")
            store.client.zadd("penstock:leases", {str(key): 0})
            store.run(records.sweep())
            second = Attempt(claim(store)[0])
            second.lines.hear_runner("info", "again")
            heartbeat.send_lines(first, last=True)
            heartbeat.send_lines(second, last=True)
        finally:
            heartbeat.close()
        found = store.run(read_lines(key))
        assert [(line.attempt, line.text) for line in found.lines] == [(1, "before the crash"), (2, "again")]


@dataclass(frozen=True)
class Client:
    """Submits jobs of the talking processor and waits for them."""

    store: JobStore
    journal: Journal

    def submit(self, job_id: str, tenant: str = "default", **changes: object) -> JobKey:
        key = JobKey(tenant, job_id)
        document = {"word": job_id, **changes}
        wanted = Submission(key, "talker", "default", document, "f", max_attempts=1)
        self.journal.run(journal.submit(wanted, LIMITS))
        return key

    def ended(self, key: JobKey) -> Job:
        wait_for(lambda: self.store.run(records.read(key)).status.terminal, "the job did not end")
        return self.store.run(records.read(key))

    def lines(self, key: JobKey) -> JobLines:
        return self.store.run(read_lines(key))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("worker")
    valkey = start_valkey(tmp_path_factory.mktemp("valkey"))
    settings = Settings(data=folder, redis_url=valkey.url, secret="s", slots=2, poll_s=0.05)
    store = JobStore.open(valkey.url)
    pool = IOPool(4, ForkOptions(512 * 2**20, processors={"talker": "tests.support.talking_processor:Talker"}))
    with open_worker(settings, store, catalogue=Catalogue({"talker": TALKER}, {}), processing=pool) as worker:
        yield Client(store, Journal(store, open_store(settings.store_url, settings)))
        worker.slots.drain()
    store.close()
    valkey.stop()


def test_lines_of_each_half_and_of_the_prompts_are_kept_in_order_without_secrets(client: Client) -> None:
    key = client.submit("word")
    assert client.ended(key).state is State.SUCCEEDED
    found = client.lines(key)
    began, printed, logged, prompt, result = texts(found)
    assert began == "talker.began word=word password=[redacted]"
    assert (printed, logged) == ("print 0 word", "word has https://h/x?[redacted]")
    assert prompt == "prompt word"
    assert "UserWarning: result word" in result
    assert {(line.source, line.attempt) for line in found.lines} == {("processor", 1)}
    assert [line.level for line in found.lines] == ["warning", "info", "info", "warning", "warning"]
    assert found.cut == 0


def test_a_crashed_process_leaves_its_last_words(client: Client) -> None:
    key = client.submit("crashed", then="crash")
    assert client.ended(key).state is State.FAILED
    assert texts(client.lines(key))[-1] == "last words of crashed"


def test_a_fault_of_the_processor_is_told_without_its_frames(client: Client) -> None:
    key = client.submit("failed", then="fail")
    assert client.ended(key).state is State.FAILED
    assert texts(client.lines(key))[-1].startswith(
        "processor.failed: ValueError: cannot bear failed (talking_processor.py:53 in "
    )
    assert texts(client.lines(key))[-1].endswith(", model talker)")


def test_a_talkative_job_keeps_its_first_and_last_lines_and_ends_as_any_other(client: Client) -> None:
    key = client.submit("talkative", prints=5_000)
    assert client.ended(key).state is State.SUCCEEDED
    found = client.lines(key)
    said = texts(found)
    assert said[0].startswith("talker.began")
    assert "UserWarning: result talkative" in said[-1]
    assert len(found.lines) + found.cut == 5_004
    assert sum(len(line.text.encode()) for line in found.lines) <= MAX_BYTES


def test_a_silent_job_has_no_lines_and_leaves_its_process_to_one_that_talks(client: Client) -> None:
    """Jobs of one tenant, one at a time, share a process. It keeps its memory for lines until a job writes to it."""
    for number, silent in enumerate([True, True, False, True, False]):
        key = client.submit(f"turn-{number}", "turns", then="silent" if silent else None)
        assert client.ended(key).state is State.SUCCEEDED
        said = texts(client.lines(key))
        assert len(said) == (0 if silent else 5)
        assert all(key.id in text for text in said)


def test_a_print_without_an_end_of_line_is_there_when_the_job_has_ended(client: Client) -> None:
    for number in range(20):
        key = client.submit(f"half-{number}", then="unended")
        assert client.ended(key).state is State.SUCCEEDED
        assert texts(client.lines(key))[-1] == f"unended half-{number}"


def test_jobs_side_by_side_have_their_own_lines_only(client: Client) -> None:
    keys = [client.submit(f"{tenant}-{n}", tenant) for n in range(6) for tenant in ("one", "two")]
    for key in keys:
        assert client.ended(key).state is State.SUCCEEDED
    for key in keys:
        assert len(texts(client.lines(key))) == 5
        assert all(key.id in text for text in texts(client.lines(key)))


def test_a_runner_is_heard_by_the_job_that_is_alone_in_its_batch_and_by_none_of_several() -> None:
    batches: list[int] = []
    stepping, goes_on = threading.Event(), threading.Event()

    def step(states: Sequence[FakeState]) -> None:
        batches.append(len(states))
        stepping.set()
        assert goes_on.wait(30)
        structlog.get_logger().info(f"batch of {len(states)}")

    heard: dict[str, list[str]] = {"alone": [], "b": [], "c": []}
    engine = BatchingEngine(Runners.installed())
    model = TALKER.model_copy(update={"options": {"on_step": step}})

    def run(name: str) -> None:
        with listening(lambda _level, text: heard[name].append(text)):
            list(engine.run(model, iter([Prompt({"x": np.zeros(1, np.float32)})]), check=lambda: None))

    threads = {name: threading.Thread(target=run, args=(name,)) for name in heard}
    engine.load(model, check=lambda: None)
    log.configure(stream=StringIO())
    try:
        threads["alone"].start()
        assert stepping.wait(30)
        threads["b"].start()
        threads["c"].start()
        wait_for(lambda: [run.drawn for run in engine._runs] == [1, 1, 1], "the prompts were not drawn")
        goes_on.set()
        for thread in threads.values():
            thread.join(30)
    finally:
        goes_on.set()
        engine.close()
        log.configure()
    assert batches == [1, 2]
    assert heard == {"alone": ["batch of 1"], "b": [], "c": []}


def test_the_error_of_a_runner_is_told_to_the_job_whose_prompt_caused_it(capsys: pytest.CaptureFixture[str]) -> None:
    def step(_states: Sequence[FakeState]) -> None:
        raise ValueError("no such kernel")

    heard: list[str] = []
    engine = BatchingEngine(Runners.installed())
    model = TALKER.model_copy(update={"options": {"on_step": step}})
    log.configure()
    try:
        engine.load(model, check=lambda: None)
        with listening(lambda _level, text: heard.append(text)), pytest.raises(ProcessorFailed):
            list(engine.run(model, iter([Prompt({"x": np.zeros(1, np.float32)})]), check=lambda: None))
    finally:
        engine.close()
    [line] = heard
    assert line.startswith(
        "engine.foreign_error detail=the model 'talker' failed: its neural network raised ValueError"
    )
    assert line.endswith(": ValueError: no such kernel (test_job_logs.py:255 in step, model talker)")
    assert "Traceback" in capsys.readouterr().err
