"""A slot claims its next job in one message with the end of a short one, and loses neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.errors import JobGone, UnknownJob
from penstock.jobs import Claim, JobKey, State
from penstock.storage.redis import records
from penstock.storage.redis.records import Command, JobStore
from penstock.storage.redis.scripts import digest, source
from penstock.workers.slots import Slots
from tests.chaos.proxy import Proxy
from tests.support.bare_store import claim, read, submit
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess

T = TypeVar("T")
U = TypeVar("U")


#: Seconds after which a test gives up.
PATIENCE_S = 60.0


class Noting:
    """Runs pairs of commands on a store and notes their scripts; the first pair's reply waits for `passes`."""

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.pairs: list[tuple[str, str]] = []
        self.entered, self.passes = threading.Event(), threading.Event()
        self.passes.set()

    def run_both(self, first: Command[T], second: Command[U], keep: Callable[[U], object]) -> T:
        self.pairs.append((first.script, second.script))
        reply = self.store.run_both(first, second, keep)
        if not self.entered.is_set():
            self.entered.set()
            assert self.passes.wait(PATIENCE_S)
        return reply


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability="manifest") as bench:
        yield bench


def slots_of(bench: Bench, noting: Noting, run: Callable[..., None] | None = None, **options: Any) -> Slots:
    run = run or bench.pipeline.run
    return Slots(bench.settings, bench.store, bench.pipeline.served, run, run_both=noting.run_both, **options)


def proxy_url(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def submit_texts(bench: Bench, *names: str) -> list[JobKey]:
    return [bench.submit(name, {"text": bench.upload("hi")}) for name in names]


def states(bench: Bench, keys: list[JobKey]) -> list[State]:
    return [bench.store.run(records.read(key)).state for key in keys]


def test_the_end_of_a_job_and_the_next_claim_are_one_message(bench: Bench) -> None:
    keys, noting = submit_texts(bench, "a", "b", "c"), Noting(bench.store)
    assert slots_of(bench, noting).work("default") == 3
    assert states(bench, keys) == [State.SUCCEEDED] * 3
    assert noting.pairs == [("commit", "claim")] * 3


@pytest.mark.parametrize("lost", [1, 4], ids=["sent again at once", "given up"])
def test_a_job_whose_claim_had_a_lost_reply_runs_once_and_at_once(
    valkey: ValkeyProcess, tmp_path: Path, lost: int
) -> None:
    with Proxy(valkey.port) as proxy, open_bench(proxy_url(proxy), tmp_path, durability="manifest") as bench:
        keys, noting = submit_texts(bench, "a", "b"), Noting(bench.store)
        bench.store.client.script_load(source("commit"))
        bench.store.client.script_load(source("claim"))
        proxy.lose_replies(digest("commit").encode(), lost)
        assert slots_of(bench, noting).work("default") == 2
        assert proxy.lost == {digest("commit").encode(): lost}
        found = [bench.store.run(records.read(key)) for key in keys]
    assert [(job.state, job.attempt, job.crashes) for job in found] == [(State.SUCCEEDED, 1, 0)] * 2


def test_a_worker_that_drains_gives_a_job_back_whose_claim_had_no_reply(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with Proxy(valkey.port) as proxy, open_bench(proxy_url(proxy), tmp_path, durability="manifest") as bench:
        keys, noting = submit_texts(bench, "a", "b", "c"), Noting(bench.store)

        def run(claimed: Claim, last: Any) -> None:
            bench.pipeline.run(claimed, last)
            slots.drain()
            bench.pipeline.heartbeat.drain()

        proxy.lose_replies(digest("commit").encode(), 4)
        slots = slots_of(bench, noting, run)
        slots.work("default")
        found = [bench.store.run(records.read(key)) for key in keys]
    assert [job.state for job in found] == [State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert [(job.attempt, job.crashes) for job in found] == [(1, 0), (1, 0), (0, 0)]


@pytest.mark.parametrize("deed", ["bad", "bug"])
def test_an_end_after_which_files_are_deleted_is_a_message_of_its_own(bench: Bench, deed: str) -> None:
    keys = [bench.submit(deed, {"text": bench.upload(deed, upload_id=deed)}), *submit_texts(bench, "good")]
    noting = Noting(bench.store)
    assert slots_of(bench, noting).work("default") == 2
    assert states(bench, keys) == [State.FAILED, State.SUCCEEDED]
    assert noting.pairs == [("commit", "claim")]


def test_the_end_of_a_job_does_not_wait_for_a_claim_that_hangs(bench: Bench) -> None:
    first, second = submit_texts(bench, "a", "b")
    noting, ready, ended = Noting(bench.store), threading.Barrier(2), threading.Event()
    noting.passes.clear()

    def run(claimed: Claim, last: Any) -> None:
        ready.wait(PATIENCE_S)  # both slots have claimed
        if claimed.key == second:
            assert noting.entered.wait(PATIENCE_S)
        bench.pipeline.run(claimed, last)
        if claimed.key == second:
            ended.set()

    slots = slots_of(bench, noting, run)
    threads = [threading.Thread(target=slots.work, args=("default",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert ended.wait(PATIENCE_S)
        assert states(bench, [first, second]) == [State.SUCCEEDED] * 2
    finally:
        noting.passes.set()
        for thread in threads:
            thread.join()


def test_a_slot_that_fails_after_its_claim_does_not_keep_the_worker(bench: Bench) -> None:
    submit_texts(bench, "a", "b")

    def run(claimed: Claim, last: Any) -> None:
        bench.pipeline.run(claimed, last)
        raise ZeroDivisionError

    slots = slots_of(bench, Noting(bench.store), run)
    with pytest.raises(ZeroDivisionError):
        slots.work("default")
    slots.drain()
    slots.start()
    joining = threading.Thread(target=slots.join, daemon=True)
    joining.start()
    joining.join(PATIENCE_S)
    assert not joining.is_alive()


def test_a_slot_listens_no_longer_than_redis_lets_it(bench: Bench) -> None:
    submit_texts(bench, "a")
    listened: list[str] = []

    def run(claimed: Claim, last: Any) -> None:
        bench.pipeline.run(claimed, last)
        wait_until_nobody_listens(bench)

    def listen(slot: str, _: float) -> None:
        listened.append(slot)

    assert slots_of(bench, Noting(bench.store), run, listen=listen).work("default") == 1
    assert listened == []


def wait_until_nobody_listens(bench: Bench) -> None:
    client, ends_s = bench.store.client, time.monotonic() + PATIENCE_S
    assert client.zcard("penstock:queue:default:listening") == 1
    while True:
        seconds, microseconds = client.time()
        if not client.zcount("penstock:queue:default:listening", int(seconds * 1e6) + microseconds, "+inf"):
            return
        assert time.monotonic() < ends_s
        threading.Event().wait(0.02)  # the clock of Redis tells nobody


def test_a_draining_worker_ends_its_job_and_claims_nothing(bench: Bench) -> None:
    keys, noting = submit_texts(bench, "a", "b"), Noting(bench.store)

    def run(claimed: Claim, last: Any) -> None:
        slots.drain()
        bench.pipeline.run(claimed, last)

    slots = slots_of(bench, noting, run)
    assert slots.work("default") == 1
    assert states(bench, keys) == [State.SUCCEEDED, State.QUEUED]
    assert noting.pairs == []


def test_a_job_on_its_last_chance_is_alone_after_such_a_claim(bench: Bench) -> None:
    first, risky, _ = submit_texts(bench, "a", "b", "c")
    bench.store.client.hset(f"penstock:tenant:{risky.tenant}:job:{risky.id}", "crashes", 2)
    noting, others = Noting(bench.store), []

    def run(claimed: Claim, last: Any) -> None:
        if claimed.last_chance:
            others.append(slots.work("default"))  # as another slot would
        bench.pipeline.run(claimed, last)

    slots = slots_of(bench, noting, run)
    assert slots.work("default") == 3
    assert others == [0]
    assert states(bench, [first, risky]) == [State.SUCCEEDED] * 2


def test_the_second_reply_is_kept_where_the_first_is_an_error(store: JobStore) -> None:
    key = submit(store)
    kept: list[Any] = []
    lacking = records.read(JobKey("default", "lacking"))
    command = records.claim("q", slot="s", nonce="n", n=1, lease_s=30, max_tenant_running=10, worker="w", models=["m"])
    with pytest.raises((UnknownJob, JobGone)):
        store.run_both(lacking, command, kept.append)
    assert [each.key for each in kept[0]] == [key]


def test_a_second_command_that_fails_does_not_fail_the_first(store: JobStore) -> None:
    key = submit(store)
    kept: list[Any] = []
    broken: Command[Any] = Command("claim", {"queue": "q"}, lambda reply: reply)
    assert store.run_both(records.read(key), broken, kept.append).key == key
    assert kept == []
    assert [each.key for each in claim(store)] == [key]
    assert read(store, key).state is State.RUNNING
