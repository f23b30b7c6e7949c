"""The consumer of hints: refusals of Redis neither end a worker nor its consumption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from penstock.jobs import JobKey, State, Submission
from penstock.storage.hints import HintSender, celery_queue
from penstock.storage.journal import journal
from penstock.storage.redis import records
from tests.integration.test_idle_exit import worker_process
from tests.support.echo_processor import Bench, open_bench
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess, start_valkey

QUEUE = celery_queue("default")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """Return a server whose settings a test may change."""
    server = start_valkey(tmp_path / "valkey")
    yield server
    server.kill()


@pytest.fixture
def bench(own: ValkeyProcess, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(own.url, tmp_path) as bench:
        yield bench


def consumes(at: Redis) -> bool:
    """Return True while a worker waits for hints."""
    return any(client["cmd"] == "brpop" and "b" in client["flags"] for client in at.client_list())


def refusals(at: Redis) -> int:
    """Return the number of hints that the server did not let a worker write down."""
    return int(at.info("commandstats").get("cmdstat_zadd", {}).get("rejected_calls", 0))


def hint(url: str, at: Redis) -> str:
    """Return the text of a hint."""
    assert HintSender(url).send("default")
    [text] = at.lrange(QUEUE, 0, -1)
    at.delete(QUEUE)
    return str(text)


def test_a_worker_outlives_a_redis_without_memory_to_write_down_a_hint(
    bench: Bench, own: ValkeyProcess, tmp_path: Path
) -> None:
    with Redis.from_url(own.url, decode_responses=True) as at, worker_process(bench, tmp_path / "w") as worker:
        text = hint(own.url, at)
        wait_for(lambda: consumes(at), "it never consumes hints")
        with at.pipeline() as both:
            both.lpush(QUEUE, text).config_set("maxmemory", "1")  # it gets the hint, and may not write it down
            both.execute()
        wait_for(lambda: refusals(at) > 0, "no hint was refused")
        at.config_set("maxmemory", "0")
        key = JobKey("default", "later")
        bench.journal.run(
            journal.submit(Submission(key, "chaos", "default", {"text": "a"}, "f", max_attempts=1), bench.limits)
        )
        wait_for(lambda: consumes(at) or worker.poll() is not None, "it consumes no hints any more")
        assert worker.poll() is None
        wait_for(lambda: bench.store.run(records.read(key)).state is State.SUCCEEDED, "the job waits")
