"""A slot claims its next job in one message with the end of a short one, and loses neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.errors import JobGone, RedisUnavailable, UnknownJob
from penstock.jobs import Claim, JobKey, State
from penstock.storage.redis import records
from penstock.storage.redis.records import Command, JobStore
from penstock.workers.slots import Slots
from tests.support.bare_store import claim, read, submit
from tests.support.echo_processor import Bench, open_bench
from tests.support.valkey import ValkeyProcess

T = TypeVar("T")
U = TypeVar("U")


class Noting:
    """Runs pairs of commands on a store, notes their scripts, and loses the replies to the first pairs."""

    def __init__(self, store: JobStore, *, lost: int = 0) -> None:
        self.store, self.lost = store, lost
        self.pairs: list[tuple[str, str]] = []

    def run_both(self, first: Command[T], second: Command[U], keep: Callable[[U], object]) -> T:
        self.pairs.append((first.script, second.script))
        if self.lost:
            self.lost -= 1
            self.store.run_both(first, second, lambda _: None)
            raise RedisUnavailable
        return self.store.run_both(first, second, keep)


@pytest.fixture
def bench(valkey: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability="manifest") as bench:
        yield bench


def slots_of(bench: Bench, noting: Noting, run: Callable[..., None] | None = None) -> Slots:
    run = run or bench.pipeline.run
    return Slots(bench.settings, bench.store, bench.pipeline.served, run, run_both=noting.run_both)


def submit_texts(bench: Bench, *names: str) -> list[JobKey]:
    return [bench.submit(name, {"text": bench.upload("hi")}) for name in names]


def states(bench: Bench, keys: list[JobKey]) -> list[State]:
    return [bench.store.run(records.read(key)).state for key in keys]


def test_the_end_of_a_job_and_the_next_claim_are_one_message(bench: Bench) -> None:
    keys, noting = submit_texts(bench, "a", "b", "c"), Noting(bench.store)
    assert slots_of(bench, noting).work("default") == 3
    assert states(bench, keys) == [State.SUCCEEDED] * 3
    assert noting.pairs == [("commit", "claim")] * 3


def test_a_job_whose_claim_had_a_lost_reply_runs_once_and_at_once(bench: Bench) -> None:
    keys, noting = submit_texts(bench, "a", "b"), Noting(bench.store, lost=1)
    assert slots_of(bench, noting).work("default") == 2
    found = [bench.store.run(records.read(key)) for key in keys]
    assert [(job.state, job.attempt) for job in found] == [(State.SUCCEEDED, 1)] * 2


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
