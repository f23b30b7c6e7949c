"""The claim loop: a slot runs one job after the other, claims nothing while it may not, and loses no job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.jobs import Claim, JobKey, State
from penstock.storage.redis import records
from penstock.storage.redis.scripts import source
from penstock.workers.claim_loop import Slots
from tests.chaos.proxy import Proxy
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess

#: Seconds after which a test gives up.
PATIENCE_S = 60.0


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability="manifest") as bench:
        yield bench


def slots_of(bench: Bench, run: Callable[[Claim], None] | None = None) -> Slots:
    return Slots(bench.settings, bench.store, bench.pipeline.served, run or bench.pipeline.run)


def submit_texts(bench: Bench, *names: str) -> list[JobKey]:
    return [bench.submit(name, {"text": bench.upload("hi")}) for name in names]


def states(bench: Bench, keys: list[JobKey]) -> list[State]:
    return [bench.store.run(records.read(key)).state for key in keys]


@pytest.mark.parametrize("script", ["claim", "commit"])
def test_a_job_whose_claim_or_end_had_a_lost_reply_runs_once_and_at_once(
    valkey: ValkeyProcess, tmp_path: Path, script: str
) -> None:
    url = "redis://127.0.0.1:{port}/0"
    with Proxy(valkey.port) as proxy, open_bench(url.format(port=proxy.port), tmp_path, durability="manifest") as bench:
        keys = submit_texts(bench, "a", "b")
        mark = bench.store.client.script_load(source(script)).encode()
        proxy.lose_replies(mark, 1)
        assert slots_of(bench).work("default") == 2
        assert proxy.lost == {mark: 1}
        found = [bench.store.run(records.read(key)) for key in keys]
    assert [(job.state, job.attempt, job.crashes) for job in found] == [(State.SUCCEEDED, 1, 0)] * 2


def test_a_slot_that_fails_does_not_keep_the_worker(bench: Bench) -> None:
    submit_texts(bench, "a", "b")

    def run(claimed: Claim) -> None:
        bench.pipeline.run(claimed)
        raise ZeroDivisionError

    slots = slots_of(bench, run)
    with pytest.raises(ZeroDivisionError):
        slots.work("default")
    slots.drain()
    slots.start()
    joining = threading.Thread(target=slots.join, daemon=True)
    joining.start()
    joining.join(PATIENCE_S)
    assert not joining.is_alive()


@pytest.mark.parametrize("slots_in_all", [1, 2])
def test_only_a_free_slot_gets_a_thread_for_waiting_jobs(
    valkey: ValkeyProcess, tmp_path: Path, slots_in_all: int
) -> None:
    began: set[str] = set()

    def run(claimed: Claim) -> None:
        bench.pipeline.run(claimed)
        slots.notice("default")

    with open_bench(valkey.url, tmp_path, slots=slots_in_all) as bench:
        submit_texts(bench, "a")
        slots = slots_of(bench, run)
        threading.setprofile(lambda *_: began.add(threading.current_thread().name))
        try:
            assert slots.work("default") == 1
            slots.drain()
            slots.start()
            slots.join()
        finally:
            threading.setprofile(None)
    assert ("poll-default" in began) is (slots_in_all == 2)


def test_a_draining_worker_ends_its_job_and_claims_nothing(bench: Bench) -> None:
    keys = submit_texts(bench, "a", "b")

    def run(claimed: Claim) -> None:
        slots.drain()
        bench.pipeline.run(claimed)

    slots = slots_of(bench, run)
    assert slots.work("default") == 1
    assert states(bench, keys) == [State.SUCCEEDED, State.QUEUED]


def test_a_job_on_its_last_chance_runs_alone(bench: Bench) -> None:
    first, risky, _ = submit_texts(bench, "a", "b", "c")
    bench.store.client.hset(f"penstock:tenant:{risky.tenant}:job:{risky.id}", "crashes", 2)
    others: list[int] = []

    def run(claimed: Claim) -> None:
        if claimed.last_chance:
            others.append(slots.work("default"))  # as another slot would
        bench.pipeline.run(claimed)

    slots = slots_of(bench, run)
    assert slots.work("default") == 3
    assert others == [0]
    assert states(bench, [first, risky]) == [State.SUCCEEDED] * 2
