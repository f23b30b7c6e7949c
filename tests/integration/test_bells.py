"""A slot that has just ended a job is rung for: no hint goes through the broker, and no ring is lost in between."""

from __future__ import annotations

import threading
import uuid
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import JobStoreError
from penstock.jobs import Claim, JobKey, State
from penstock.storage.redis import bells, catalogues, records
from penstock.storage.redis.records import JobStore
from penstock.workers.slots import Slots
from tests.support.bare_store import LIMITS, submission, submit
from tests.support.echo_processor import open_bench
from tests.support.polling import wait_for
from tests.support.service import ECHO
from tests.support.valkey import ValkeyProcess

SLOT = "worker:1"


def listen(store: JobStore, slot: str = SLOT, *, listen_s: float = 30, queue: str = "q") -> tuple[Claim, ...]:
    return store.run(
        records.claim(
            queue, slot=slot, nonce=uuid.uuid4().hex, n=1, lease_s=30, max_tenant_running=100,
            worker=slot.partition(":")[0], models=["m"], listens=["q", "other"], listen_s=listen_s,
        )
    )  # fmt: skip


def serve(store: JobStore, worker: str = "worker", model: str = "m") -> None:
    entry = ECHO.model_copy(update={"name": model, "queue": "q", "aliases": ()})
    store.run(catalogues.publish([entry], worker=worker, queues=["q"], alive_s=60))


def wants_hint(store: JobStore, name: str, **fields: str) -> bool:
    return store.run(records.submit(submission(name, **fields), LIMITS)).hint


def test_a_submission_rings_for_one_slot_that_listens_and_asks_for_a_hint_without_one(store: JobStore) -> None:
    serve(store)
    assert wants_hint(store, "a")
    assert len(listen(store)) == 1
    assert listen(store) == ()
    assert not wants_hint(store, "b")
    assert wants_hint(store, "c")  # the only one that listened was rung for
    assert bells.listen(store, SLOT, 5) == "q"
    assert bells.listen(store, SLOT, 0.01) is None


def test_an_error_of_redis_ends_a_wait_for_a_ring_and_not_the_connection(store: JobStore) -> None:
    store.client.set(f"penstock:bell:{SLOT}", "no list")
    with pytest.raises(JobStoreError):
        bells.listen(store, SLOT, 5)
    assert bells.listen(store, "worker:2", 0.01) is None


def test_a_wait_for_a_ring_goes_on_over_a_lost_connection(store: JobStore) -> None:
    assert bells.listen(store, SLOT, 0.01) is None
    heard: list[str | None] = []
    waiting = threading.Thread(target=lambda: heard.append(bells.listen(store, SLOT, 5)))
    waiting.start()
    wait_for(lambda: _blocked(store), "nobody waits")
    store.client.client_kill_filter(_type="normal", skipme=True)
    wait_for(lambda: _blocked(store), "nobody waits again")
    store.run(bells.ring(SLOT, "q"))
    waiting.join()
    assert heard == ["q"]


def _blocked(store: JobStore) -> int:
    return int(store.client.info("clients")["blocked_clients"])


def test_a_job_in_another_queue_of_the_worker_rings_too(store: JobStore) -> None:
    serve(store)
    listen(store)
    assert not wants_hint(store, "a", queue="other")
    assert bells.listen(store, SLOT, 5) == "other"


def test_a_durable_job_rings_when_it_is_confirmed(store: JobStore) -> None:
    serve(store)
    listen(store)
    limits = records.QueueLimits(100, 100, 3600, 3, durable=True)
    reserved = store.run(records.submit(submission("a"), limits))
    assert not reserved.hint
    assert bells.listen(store, SLOT, 0.01) is None
    assert not store.run(records.confirm(reserved.job.key, round(reserved.job.created_s * 1e6))).hint
    assert bells.listen(store, SLOT, 5) == "q"


def test_a_worker_without_the_model_and_a_slot_whose_time_is_over_are_not_rung_for(store: JobStore) -> None:
    serve(store, "elsewhere", model="n")
    listen(store, "elsewhere:1")
    listen(store)
    store.client.zadd("penstock:queue:q:listening", {SLOT: 1}, xx=True)  # its time ended long ago
    serve(store)
    assert wants_hint(store, "a")


def test_no_second_hint_is_asked_for_while_one_waits(store: JobStore) -> None:
    store.client.lpush("penstock.q", "a hint")
    assert not wants_hint(store, "a")


def test_a_ring_at_the_moment_at_which_the_slot_stops_listening_is_found(store: JobStore) -> None:
    serve(store)
    listen(store)
    submit(store, "a")
    assert store.run(bells.stop_listening(SLOT, ["q"])) == "q"
    assert store.run(bells.stop_listening(SLOT, ["q"])) is None
    assert wants_hint(store, "b")


def test_a_claim_that_leaves_jobs_waiting_rings_for_the_next_slot(store: JobStore) -> None:
    serve(store)
    submit(store, "a")
    submit(store, "b")
    store.client.zadd("penstock:queue:q:listening", {"worker:2": 2**51})
    [claim] = listen(store)
    assert not claim.more
    assert bells.listen(store, "worker:2", 5) == "q"


def test_a_job_that_comes_back_rings(store: JobStore) -> None:
    serve(store)
    submit(store, "a")
    [claim] = listen(store)
    listen(store, "worker:2")
    store.run(records.release(claim))
    assert bells.listen(store, "worker:2", 5) == "q"


def test_a_slot_goes_on_with_jobs_that_come_within_two_seconds_and_ends_then(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    with open_bench(valkey.url, tmp_path, poll_s=600, slots=1) as bench:
        slots = Slots(
            bench.settings, bench.store, bench.pipeline.served, bench.pipeline.run, worker="worker",
            listen=partial(bells.listen, bench.store),
        )  # fmt: skip
        entries = bench.pipeline.served.entries()
        bench.store.run(catalogues.publish(entries, worker="worker", queues=["default"], alive_s=60))
        done: list[int] = []
        first = bench.submit("a", {"text": bench.upload("hi")})
        thread = threading.Thread(target=lambda: done.append(slots.work("default")))
        thread.start()
        wait_for(lambda: bench.store.client.zcard("penstock:queue:default:listening"), "it does not listen")
        second = bench.submit("b", {"text": bench.upload("hi")})
        thread.join(30)
        assert done == [2]
        assert [_state(bench.store, key) for key in (first, second)] == [State.SUCCEEDED, State.SUCCEEDED]
        assert not bench.store.client.exists("penstock:queue:default:listening")


def _state(store: JobStore, key: JobKey) -> State:
    return store.run(records.read(key)).state
