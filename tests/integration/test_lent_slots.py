"""A job that fetches from the web lends its slot: others run meanwhile, and no job is lost, doubled or left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.jobs import Job, JobKey, Phase, State
from penstock.storage.redis import records
from penstock.storage.redis.fetch_hosts import Full
from penstock.workers.attempts import NO_SLOT
from tests.support.claims import claim_up_to
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess
from tests.support.web_server import Server, reply

END_S = 60
#: Jobs of a lane that a claim passes over, as `claim.lua` has it.
PASSES_LANE = 100


class Slow(Server):
    """A server that answers each request when the test lets it, with a text, and drops it when the test is over."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.asked, self.answers = threading.Semaphore(0), threading.Semaphore(0)
        self.answer = reply(200, b"from the web")
        self.drips = False

    def _say(self, connection: socket.socket) -> bytes | None:
        connection.settimeout(None)
        self.asked.release()
        if self.drips:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while self.drips and not self.over.wait(0.05):
            connection.sendall(b"x")
        while not self.over.is_set():
            if self.answers.acquire(timeout=0.05):
                return self.answer
        return None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in.txt"


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        yield server


@contextmanager
def one_slot(valkey: ValkeyProcess, folder: Path, *servers: Slow, **changes: Any) -> Iterator[Bench]:
    pairs = tuple(f"127.0.0.1:{server.port}" for server in servers)
    with open_bench(valkey.url, folder, slots=1, allowed_hosts=pairs, **changes) as bench:
        try:
            yield bench
        finally:
            bench.slots.drain()
            bench.pipeline.heartbeat.drain()
            for server in servers:
                server.over.set()


@contextmanager
def working(bench: Bench) -> Iterator[threading.Thread]:
    """Let a thread claim jobs until none waits."""
    worker = threading.Thread(target=bench.slots.work, args=("default",))
    worker.start()
    try:
        yield worker
    finally:
        bench.gate.opened.set()
        worker.join(END_S)
        assert not worker.is_alive()


def read(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def uploaded(bench: Bench, name: str) -> JobKey:
    return bench.submit(name, {"text": bench.upload(name, upload_id=name)})


def takes_all(bench: Bench) -> bool:
    """Return True if the worker's only slot is free: it is taken for a moment."""
    free = bench.pipeline.places is not None and bench.pipeline.places.take()
    if free and bench.pipeline.places is not None:
        bench.pipeline.places.give_back()
    return free


def test_a_job_with_uploaded_media_runs_while_another_fetches(
    valkey: ValkeyProcess, tmp_path: Path, slow: Slow
) -> None:
    with one_slot(valkey, tmp_path, slow) as bench:
        dripping = bench.submit("slow", {"text": slow.url})
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            other = uploaded(bench, "other")
            assert bench.slots.work("default") == 1
            assert read(bench, other).state is State.SUCCEEDED
            wait_for(lambda: read(bench, dripping).phase is Phase.FETCHING, "the phase was never `fetching`")
            slow.answers.release()
        found = read(bench, dripping)
        assert (found.state, found.text, found.attempt) == (State.SUCCEEDED, "from the web", 1)
        assert takes_all(bench)


def test_further_fetches_stay_in_the_queue_and_say_so(valkey: ValkeyProcess, tmp_path: Path, slow: Slow) -> None:
    with one_slot(valkey, tmp_path, slow, fetch_slots=0) as bench:
        first, *others = [bench.submit(f"slow{number}", {"text": slow.url}) for number in range(3)]
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            behind = uploaded(bench, "behind")  # in the same lane, behind the others
            assert bench.slots.work("default") == 1
            assert read(bench, behind).state is State.SUCCEEDED
            waiting = [read(bench, key) for key in others]
            assert [(job.state, job.attempt) for job in waiting] == [(State.QUEUED, 0)] * 2
            assert all("waiting to fetch its media" in str(job.progress.message) for job in waiting)
            for _ in range(3):
                slow.answers.release()
        found = [read(bench, key) for key in (first, *others)]
        assert [(job.state, job.attempt, job.progress.message) for job in found] == [(State.SUCCEEDED, 1, None)] * 3


@pytest.mark.parametrize("cause", ["fails", "is canceled", "is drained"])
def test_a_fetch_that_does_not_end_well_leaves_the_slot_to_the_others(
    valkey: ValkeyProcess, tmp_path: Path, slow: Slow, cause: str
) -> None:
    slow.answer, slow.drips = reply(404), cause != "fails"
    with one_slot(valkey, tmp_path, slow) as bench:
        ending = bench.submit("slow", {"text": slow.url})
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            if cause == "is drained":
                bench.slots.drain()
                bench.pipeline.heartbeat.drain()
            elif cause == "is canceled":
                bench.store.run(records.cancel(ending))
            slow.answers.release()
        state = {"fails": State.FAILED, "is canceled": State.CANCELED, "is drained": State.QUEUED}[cause]
        wait_for(lambda: read(bench, ending).state is state, f"it never was {state}")
        assert takes_all(bench)
        if cause != "is drained":
            other = uploaded(bench, "other")
            assert bench.slots.work("default") == 1
            assert read(bench, other).state is State.SUCCEEDED


def test_a_job_whose_media_are_there_waits_for_a_slot_says_so_and_runs_before_any_other(
    valkey: ValkeyProcess, tmp_path: Path, slow: Slow
) -> None:
    with one_slot(valkey, tmp_path, slow) as bench:
        fetched = bench.submit("slow", {"text": slow.url})
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            bench.gate.shut()
            keys = [uploaded(bench, name) for name in ("b", "c")]
            with working(bench):
                assert bench.gate.entered.wait(END_S)
                slow.answers.release()
                wait_for(lambda: read(bench, fetched).progress.message == NO_SLOT, "it never said that it waits")
                assert read(bench, fetched).state is State.RUNNING
        found = {key.id: read(bench, key) for key in (fetched, *keys)}
        assert [job.state for job in found.values()] == [State.SUCCEEDED] * 3
        order = sorted(found, key=lambda name: found[name].completed_s or 0)
        assert order == ["b", "slow", "c"]
        assert takes_all(bench)


def test_a_wait_for_a_slot_does_not_count_as_execution_time(valkey: ValkeyProcess, tmp_path: Path, slow: Slow) -> None:
    with one_slot(valkey, tmp_path, slow) as bench:
        key = bench.submit("slow", {"text": slow.url})
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            bench.gate.shut()
            uploaded(bench, "b")
            with working(bench):
                assert bench.gate.entered.wait(END_S)
                slow.answers.release()
                name = f"penstock:tenant:default:job:{key.id}"
                wait_for(lambda: int(bench.store.client.hget(name, "waited_us") or 0) > 0, "the wait never counted")
                started, execution, waited, deadline = (
                    int(text or 0)
                    for text in bench.store.client.hmget(name, "started_us", "execution_us", "waited_us", "deadline_us")
                )
                assert deadline == started + execution + waited


def test_a_job_of_a_release_that_stores_no_hosts_keeps_its_slot(
    valkey: ValkeyProcess, tmp_path: Path, slow: Slow
) -> None:
    with one_slot(valkey, tmp_path, slow) as bench:
        key = bench.submit("slow", {"text": slow.url})
        bench.store.client.hdel(f"penstock:tenant:default:job:{key.id}", "fetch_hosts")
        with working(bench):
            assert slow.asked.acquire(timeout=END_S)
            assert bench.slots.work("default") == 0
            slow.answers.release()
        assert read(bench, key).state is State.SUCCEEDED


def claim_beyond(bench: Bench, full: Full) -> list[str]:
    return [
        held.key.id
        for held in claim_up_to(bench.store, 1, "default", max_tenant_running=1000, models=["echo"], full=full)
    ]


@pytest.mark.parametrize(
    ("full", "found"),
    [
        (Full(), "web"), (Full(all=True), "uploaded"), (Full(tenants={"other"}, hosts={"other.example"}), "web"),
        (Full(tenants={"default"}), "uploaded"), (Full(hosts={"b.example"}), "uploaded"),
    ],
)  # fmt: skip
def test_a_claim_passes_over_jobs_beyond_a_limit(valkey: ValkeyProcess, tmp_path: Path, full: Full, found: str) -> None:
    with one_slot(valkey, tmp_path, durability="redis") as bench:
        bench.submit("web", {"text": "http://a.example/", "other": "http://b.example/"})
        bench.submit("uploaded", {"text": "media://up/in.txt"})
        assert claim_beyond(bench, full) == [found]


@pytest.mark.parametrize(("waiting", "found"), [(PASSES_LANE, ["uploaded"]), (PASSES_LANE + 1, [])])
def test_a_claim_passes_over_a_bounded_number_of_jobs(
    valkey: ValkeyProcess, tmp_path: Path, waiting: int, found: list[str]
) -> None:
    with one_slot(valkey, tmp_path, durability="redis") as bench:
        for number in range(waiting):
            bench.submit(f"web{number}", {"text": "http://a.example/"})
        bench.submit("uploaded", {"text": "media://up/in.txt"})
        assert claim_beyond(bench, Full(all=True)) == found
        assert claim_beyond(bench, Full()) == ["web0"]
