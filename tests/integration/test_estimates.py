"""A queue's report of itself, and estimates of its jobs' ends."""

from __future__ import annotations

import json
from dataclasses import astuple, replace

import pytest

from penstock.errors import InvalidInput
from penstock.jobs import JobKey, Phase, Progress, QueueMode, State
from penstock.scaling import Growth, ScalingBounds, Waiting
from penstock.storage.redis import listing, queues, records
from penstock.storage.redis.records import JobStore, Outcome
from tests.support.bare_store import LIMITS, claim, end_after, read, submission, submit


def test_a_queues_figures(store: JobStore) -> None:
    for name in "abc":
        submit(store, name)
    claim(store)
    store.run(queues.seen("q", "w", 4, alive_s=20))
    stats = store.run(queues.queue_stats("q"))
    assert (stats.queued, stats.running, stats.workers, stats.slots, stats.known) == (2, 1, 1, 4, True)
    assert store.run(queues.backlog()) == {"q": 2}
    assert not store.run(queues.queue_stats("nowhere")).known


class TestWantedWorkers:
    BOUNDS = ScalingBounds(max_workers=1000)

    def wanted(self, store: JobStore) -> int:
        return store.run(queues.queue_stats("q")).wanted_workers(self.BOUNDS, slots=2)

    def test_jobs_of_unknown_length_want_a_slot_each(self, store: JobStore) -> None:
        assert self.wanted(store) == 0
        for name in "abcde":
            submit(store, name, model="m" if name in "abc" else "m2")
        stats = store.run(queues.queue_stats("q"))
        assert sorted(stats.waiting, key=lambda each: each.jobs) == [Waiting(2, None), Waiting(3, None)]
        assert self.wanted(store) == 3
        store.run(queues.seen("q", "w", 5, alive_s=20))
        assert self.wanted(store) == 1  # the living worker has five slots

    def test_short_jobs_want_their_share_and_running_ones_a_slot(self, store: JobStore) -> None:
        succeed(store, 2, took_s=1)
        for number in range(20):
            submit(store, str(number))
        assert store.run(queues.queue_stats("q")).waiting == (Waiting(20, pytest.approx(2, abs=1)),)
        assert self.wanted(store) == 1  # 20 to 60 s of work for two slots, each for 30 s
        claim(store, 9)
        stats = store.run(queues.queue_stats("q"))
        assert (stats.running, stats.busy, self.wanted(store)) == (9, 1, 5)

    def test_a_models_jobs_count_by_the_size_of_their_media(self, store: JobStore) -> None:
        """Scenes of 1 MB take 1 s: one of 400 MB wants a slot, and twenty small ones together want one."""
        past = [(1, 1), (4, 4), (1, 1), (9, 9), (100, 100), (4, 4)]
        for number, (megabytes, took_s) in enumerate(past):
            submit(store, f"done-{number}", media_bytes=megabytes * 1_000_000)
            [held] = claim(store)
            end_after(store, held, took_s, progress=Progress(10 * megabytes, 10 * megabytes, "tiles"))
        stored = store.client.hget("penstock:queue:q:growth", "m")
        expected = Growth()
        for megabytes, took_s in past:
            expected = expected.after(megabytes * 1_000_000, took_s, 10 * megabytes)
        assert [float(each) for each in stored.split()] == pytest.approx(astuple(expected), rel=0.1)  # a second
        for number in range(20):
            submit(store, f"small-{number}", media_bytes=1_000_000)
        assert self.wanted(store) == 1
        for number in range(6):
            submit(store, f"large-{number}", media_bytes=400_000_000)
        rows = {round(row.job_s or 0): row.jobs for row in store.run(queues.queue_stats("q")).waiting}
        assert rows == {1: 20, 400: 6}
        assert self.wanted(store) == 4  # of two slots: 20 s of small ones, and six slots for the large ones

    def test_of_many_jobs_some_stand_for_all(self, store: JobStore) -> None:
        limits = replace(LIMITS, max_queued=10_000, max_tenant_jobs=10_000)
        for number, megabytes in enumerate((1, 10)):
            submit(store, f"done-{number}", media_bytes=megabytes * 1_000_000)
            end_after(store, claim(store)[0], megabytes)
        for number in range(640):
            tenant, size = ("a", 1_000_000) if number % 4 else ("b", 10_000_000)
            submit(store, f"{number}", limits, media_bytes=size, tenant=tenant)
        rows = {round(row.job_s or 0): row.jobs for row in store.run(queues.queue_stats("q")).waiting}
        assert rows == {1: pytest.approx(480, rel=0.05), 10: pytest.approx(160, rel=0.05)}

    def test_jobs_without_a_known_size_count_as_the_mean_beside_others(self, store: JobStore) -> None:
        for number, megabytes in enumerate((1, 9)):
            submit(store, f"done-{number}", media_bytes=megabytes * 1_000_000)
            end_after(store, claim(store)[0], megabytes)
        submit(store, "web")
        submit(store, "upload", media_bytes=9_000_000)
        rows = sorted((row.job_s or 0, row.jobs) for row in store.run(queues.queue_stats("q")).waiting)
        assert rows == [(pytest.approx(3, abs=1), 1), (pytest.approx(9.5, abs=1), 1)]

    def test_a_retried_job_keeps_the_size_of_its_media(self, store: JobStore) -> None:
        key = submit(store, media_bytes=5)
        assert read(store, key).submission.media_bytes == 5
        assert "media_bytes" not in json.loads(store.client.hget(f"penstock:tenant:default:job:{key.id}", "submission"))

    def test_delayed_jobs_want_nothing_and_a_paused_queue_its_busy_workers(self, store: JobStore) -> None:
        submit(store, "a")
        [held] = claim(store)
        store.run(records.complete(held, Outcome(State.DELAYED, error=InvalidInput().report(), retry_delay_s=600)))
        assert self.wanted(store) == 0
        for name in "bcd":
            submit(store, name)
        claim(store)
        assert self.wanted(store) == 2
        store.run(queues.set_mode("q", QueueMode.PAUSED))
        assert self.wanted(store) == 1


@pytest.mark.breadth(but=("1",))
@pytest.mark.parametrize("slots", [1, 3])
def test_the_estimate_is_right_within_a_factor_of_two_on_a_steady_queue(store: JobStore, slots: int) -> None:
    """Slots come free one after the other, all jobs take ten seconds, and the clock is the test's own."""
    took_s, now_s = 10.0, 0.0
    store.run(queues.seen("q", "w", slots, alive_s=60))
    for number in range(12 * slots):
        submit(store, str(number))
    running = claim(store, slots)
    told: list[tuple[str, float, float]] = []
    ended: dict[str, float] = {}
    while running:
        now_s += took_s / slots
        end_after(store, running[0], took_s)
        ended[running.pop(0).key.id] = now_s
        running += claim(store)
        for position, key in enumerate(store.run(queues.waiting("q", "default", 100)), start=1):
            job = read(store, key)
            assert job.queue_position == position
            assert job.eta_s is not None
            told.append((key.id, now_s, job.eta_s))
    assert len(told) > 50
    for name, at, eta_s in told:
        assert 0.5 < eta_s / (ended[name] - at) < 2


def succeed(store: JobStore, number: int, took_s: float) -> None:
    """Have so many jobs run beside each other, each for so long."""
    for n in range(number):
        submit(store, f"done-{n}")
    for held in claim(store, number, cap=number):
        end_after(store, held, took_s)


def test_the_throughput_is_that_of_the_first_jobs_already(store: JobStore) -> None:
    assert store.run(queues.queue_stats("q")).throughput_per_s == 0
    succeed(store, 4, took_s=10)
    assert store.run(queues.queue_stats("q")).throughput_per_s == pytest.approx(0.4, rel=0.3)


def test_the_throughput_is_that_of_the_work_now_and_not_of_the_pause_before_it(store: JobStore) -> None:
    bucket, microseconds = divmod(store.client.time()[0], 10)[0], 1_000_000
    long_ago = {"n": 3, "since_us": (bucket * 10 - 260) * microseconds}
    store.client.hset(f"penstock:queue:q:done:{bucket - 25}", mapping=long_ago)
    slow = store.run(queues.queue_stats("q")).throughput_per_s
    assert slow == pytest.approx(3 / 265, rel=0.1)
    succeed(store, 20, took_s=4)
    assert store.run(queues.queue_stats("q")).throughput_per_s == pytest.approx(5, rel=0.3)


def test_the_queue_is_empty_when_its_last_job_ends(store: JobStore) -> None:
    store.run(queues.seen("q", "w", 2, alive_s=20))
    succeed(store, 2, took_s=10)
    assert store.run(queues.queue_stats("q")).eta_s == 0
    for n in range(7):
        submit(store, str(n))
    last = read(store, submit(store, "last", priority=-1))
    assert last.queue_position == 8
    assert last.eta_s == store.run(queues.queue_stats("q")).eta_s
    assert last.eta_s == pytest.approx(10 + 10 * 5.5 / 2, rel=0.1)


def test_a_fast_job_behind_slow_ones_waits_for_them(store: JobStore) -> None:
    store.run(queues.seen("q", "w", 1, alive_s=20))
    succeed(store, 1, took_s=100)
    submit(store, "fast", model="m2")
    end_after(store, claim(store)[0], 1)
    for n in range(9):
        submit(store, str(n))
    last = read(store, submit(store, "last", model="m2"))
    assert last.eta_s == store.run(queues.queue_stats("q")).eta_s
    assert last.eta_s == pytest.approx(900, rel=0.2)


def test_nothing_is_estimated_of_a_model_that_never_ran_nor_without_workers(store: JobStore) -> None:
    succeed(store, 1, took_s=10)
    known = submit(store, "known")
    assert read(store, known).eta_s is None
    store.run(queues.seen("q", "w", 1, alive_s=20))
    assert read(store, known).eta_s is not None
    assert read(store, submit(store, "unknown", model="m2")).eta_s is None
    assert store.run(queues.queue_stats("q")).eta_s is None


def test_a_paused_queue_estimates_nothing_of_what_waits(store: JobStore) -> None:
    store.run(queues.seen("q", "w", 1, alive_s=20))
    succeed(store, 1, took_s=10)
    running, waiting = submit(store, "running"), submit(store, "waiting")
    claim(store)
    store.run(queues.set_mode("q", QueueMode.PAUSED))
    assert (read(store, waiting).eta_s, store.run(queues.queue_stats("q")).eta_s) == (None, None)
    assert read(store, waiting).queue_position == 1
    assert read(store, running).eta_s is not None
    store.run(queues.set_mode("q", QueueMode.OPEN))
    assert read(store, waiting).eta_s is not None


def test_a_job_that_takes_longer_than_others_did_is_not_about_to_end(store: JobStore) -> None:
    store.run(queues.seen("q", "w", 1, alive_s=20))
    succeed(store, 1, took_s=10)
    key = submit(store)
    claim(store)
    assert read(store, key).eta_s == pytest.approx(10, rel=0.1)
    began_us = int((store.client.time()[0] - 11) * 1e6)
    store.client.hset(f"penstock:tenant:default:job:{key.id}", "started_us", began_us)
    assert read(store, key).eta_s is None


def test_a_worker_counts_until_it_leaves_or_its_last_sign_of_life_is_old(store: JobStore) -> None:
    def capacity() -> tuple[int, int]:
        stats = store.run(queues.queue_stats("q"))
        return stats.workers, stats.slots

    store.run(queues.seen("q", "leaving", 2, alive_s=20))
    store.run(queues.seen("q", "dead", 4, alive_s=-1))
    assert capacity() == (1, 2)
    store.run(queues.leave("q", "leaving"))
    assert capacity() == (0, 0)


@pytest.mark.parametrize("durable", [False, True])
def test_a_submit_is_answered_with_the_jobs_place_and_estimate(store: JobStore, durable: bool) -> None:
    store.run(queues.seen("q", "w", 1, alive_s=20))
    succeed(store, 1, took_s=10)
    submit(store, "first")
    job = store.run(records.submit(submission("second"), replace(LIMITS, durable=durable))).job
    if durable:
        job = store.run(records.confirm(job.key, round(job.created_s * 1e6)))
    assert job.queue_position == 2
    assert job.eta_s == pytest.approx(15, rel=0.1)


def test_the_estimate_of_a_further_attempt_is_not_made_from_the_progress_of_the_one_before(store: JobStore) -> None:
    key = submit(store)
    store.run(records.heartbeat(claim(store)[0], Phase.INFERRING, Progress(9, 10)))
    store.client.zadd("penstock:leases", {str(key): 0})
    store.run(records.sweep())
    [held] = claim(store)
    assert read(store, key).eta_s is None
    began_us = int((store.client.time()[0] - 10) * 1e6)
    store.client.hset(f"penstock:tenant:default:job:{key.id}", "started_us", began_us)
    store.run(records.heartbeat(held, Phase.INFERRING, Progress(1, 10)))
    assert read(store, key).progress.done == 9
    assert read(store, key).eta_s == pytest.approx(90, rel=0.2)


def test_a_jobs_place_counts_its_own_tenants_jobs_only(store: JobStore) -> None:
    store.run(queues.seen("q", "w", 1, alive_s=20))
    succeed(store, 1, took_s=10)
    for n in range(5):
        submit(store, f"other-{n}", tenant="other")
    places = [
        read(store, submit(store, name, model=model, priority=priority)).queue_position
        for name, model, priority in (("a", "m", 0), ("b", "m2", 0), ("first", "m2", 5), ("last", "m", 0))
    ]
    assert places == [1, 2, 1, 4]
    last = read(store, JobKey("default", "last"))
    assert last.eta_s == pytest.approx(10 + 10 * 8.5, rel=0.2)  # the others' jobs still count in the estimate
    listed = store.run(listing.list_jobs("default", limit=10)).jobs
    assert {job.key.id: job.queue_position for job in listed if job.queue_position} == {
        "first": 1, "a": 2, "b": 3, "last": 4,
    }  # fmt: skip
