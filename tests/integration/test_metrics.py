"""Metrics: counted once, whoever asks or repeats, with labels that nobody outside can make up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import InvalidInput
from penstock.jobs import Delivery, JobKey, Phase, Progress, State, Usage, Webhook
from penstock.storage.redis import deliveries, drop_events, loads, records, upkeep, workers
from penstock.storage.redis.counts import Counts, counts
from penstock.storage.redis.deliveries import Attempt
from penstock.storage.redis.records import JobStore, Outcome
from penstock.storage.redis.workers import ServedModel, WorkerState
from tests.support.bare_store import LIMITS, claim, submission, submit
from tests.support.echo_processor import open_bench
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess, start_valkey

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ENDS = ("succeeded", "failed", "canceled", "expired")
FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())

Families = dict[str, Metric]


class Broken:
    """A job store with a fault of ours."""

    async def run(self, _: object) -> None:
        raise ZeroDivisionError


async def scrape(service: Service) -> Families:
    response = await service.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def value(families: Families, sample: str, **labels: str) -> float:
    """Return the one sample of this name that has these labels."""
    found = [
        s.value for f in families.values() for s in f.samples if s.name == sample and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, f"{sample}{labels}: {found}"
    return float(found[0])


class TestCounts:
    def of(self, store: JobStore) -> Counts:
        return store.run(counts())

    def test_there_are_none_before_the_first_job(self, store: JobStore) -> None:
        found = self.of(store)
        assert found == Counts({}, {}, {}, 0, frozenset(), redis_bytes=found.redis_bytes)
        assert found.redis_bytes > 100_000

    def test_lost_leases_and_retried_attempts_count_each_once(self, store: JobStore) -> None:
        submit(store)
        for _ in range(2):
            assert claim(store)
            store.client.zadd("penstock:leases", {"default/a": 0})
            store.run(records.sweep())
            store.run(records.sweep())
        (held,) = claim(store)
        again = Outcome(State.DELAYED, error=InvalidInput("x").report())
        for _ in range(2):
            store.run(records.complete(held, again))
        told = self.of(store)
        assert (told.lost, told.retried, told.ended) == ({"m": 2}, {"m": 1}, {})

    def test_a_keeper_is_seen_by_its_lease_and_by_its_sweeps(self, store: JobStore) -> None:
        assert (self.of(store).keeper_active, self.of(store).swept_s) == (False, None)
        store.run(records.sweep())
        store.run(upkeep.lead("k", 60))
        told = self.of(store)
        assert told.keeper_active
        assert told.swept_s is not None
        store.client.decrby("penstock:swept", 90_000_000)
        assert 90 <= (self.of(store).swept_s or 0) < 150
        store.run(upkeep.step_down("k"))
        assert not self.of(store).keeper_active

    def test_the_limit_of_redis_is_that_of_its_settings(self, store: JobStore) -> None:
        assert self.of(store).redis_limit_bytes == 0
        store.client.config_set("maxmemory", "1234mb")
        try:
            assert self.of(store).redis_limit_bytes == 1234 << 20
        finally:
            store.client.config_set("maxmemory", "0")

    def test_the_time_of_workers_counts_while_they_live(self, store: JobStore) -> None:
        state = worker_with("echo", 0, busy=0.25)
        for worker in "wv":
            store.run(workers.report(worker, state, alive_s=60))
        assert (self.of(store).worker_s, self.of(store).worker_busy_s) == (0, 0)
        for worker in "wv":
            store.client.decrby(f"penstock:workers:at:{worker}", 8_000_000)  # the report of 8 s ago
            store.run(workers.report(worker, state, alive_s=60))
        told = self.of(store)
        assert 16 <= told.worker_s < 20
        assert told.worker_busy_s == pytest.approx(told.worker_s / 4, abs=1e-3)
        store.client.delete("penstock:workers:at:w")  # it was away for longer than it counts as alive
        store.run(workers.report("w", state, alive_s=60))
        assert self.of(store).worker_s == told.worker_s

    def test_look_ups_in_caches_count_with_the_end_of_their_job(self, store: JobStore) -> None:
        metrics: list[dict[str, float]] = [{"cached": 1}, {"cached": 0, "encoder_hits": 3, "encoder_misses": 2}, {}]
        for name, found in zip("abc", metrics, strict=True):
            submit(store, name)
            (held,) = claim(store)
            store.run(records.complete(held, Outcome(State.SUCCEEDED, metrics=found | {"encoder_other": 7})))
        assert self.of(store).lookups == {
            ("m", "result", "hit"): 1,
            ("m", "result", "miss"): 1,
            ("m", "encoder", "hit"): 3,
            ("m", "encoder", "miss"): 2,
        }

    def test_a_jobs_end_counts_once_however_often_it_is_told(self, store: JobStore) -> None:
        submit(store)
        (held,) = claim(store)
        for _ in range(3):
            store.run(records.complete(held, Outcome(State.SUCCEEDED, metrics={"inference_ms": 250.0})))
        told = self.of(store)
        assert told.ended == {("m", "succeeded"): 1}
        assert sum(told.phases["m", "inference"].counts) == 1
        assert sum(told.phases["m", "queue"].counts) == 1

    def test_every_way_to_end_is_counted(self, store: JobStore) -> None:
        for name in "abc":
            submit(store, name)
        store.run(records.cancel(JobKey("default", "c")))
        first, second = claim(store, 2)
        store.run(records.complete(first, FAILED))
        store.client.zadd("penstock:deadlines", {str(second.key): 0})
        store.run(records.sweep())
        submit(store, "d", queue_ttl_s=0.001)
        store.client.zadd("penstock:expiring", {"default/d": 0})
        store.run(records.sweep())
        assert self.of(store).ended == {("m", "canceled"): 1, ("m", "failed"): 2, ("m", "expired"): 1}

    def test_a_retried_attempt_counts_with_the_end_of_its_job_only(self, store: JobStore) -> None:
        submit(store)
        (held,) = claim(store)
        again = Outcome(State.DELAYED, error=InvalidInput("x").report(), metrics={"fetch_ms": 5.0})
        store.run(records.complete(held, again))
        assert self.of(store).ended == {}
        store.client.zadd("penstock:delayed", {str(held.key): 0})
        store.run(records.sweep())
        (held,) = claim(store)
        store.run(records.complete(held, Outcome(State.SUCCEEDED, metrics={"fetch_ms": 7.0})))
        told = self.of(store)
        assert told.ended == {("m", "succeeded"): 1}
        assert sum(told.phases["m", "fetch"].counts) == 1

    @pytest.mark.parametrize(
        ("ms", "bound_s"), [(0, 0.01), (10, 0.01), (10.5, 0.03), (250, 0.3), (3_000_000, 3000), (9e9, float("inf"))]
    )
    def test_a_time_lies_in_the_bucket_of_the_next_bound(self, store: JobStore, ms: float, bound_s: float) -> None:
        submit(store)
        (held,) = claim(store)
        store.run(records.complete(held, Outcome(State.SUCCEEDED, metrics={"upload_ms": ms, "batch_size": 3.0})))
        told = self.of(store).phases
        assert set(told) == {("m", "queue"), ("m", "upload")}
        histogram = told["m", "upload"]
        (place,) = [i for i, count in enumerate(histogram.counts) if count]
        assert histogram.bounds_s[place] == bound_s
        assert histogram.sum_s == pytest.approx(ms / 1000)

    def test_a_job_that_is_made_anew_is_old_news(self, store: JobStore) -> None:
        submit(store)
        (held,) = claim(store)
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        record = store.client.hgetall("penstock:tenant:default:job:a")
        record["completed_us"] = str(int(record["completed_us"]) - 400_000_000)
        store.client.flushall()
        outcome = records.dump({"version": 1, "record": record, "deliveries": []})
        assert store.run(records.commit(JobKey("default", "a"), outcome)).state is State.SUCCEEDED
        assert self.of(store).ended == {}

    def test_tries_of_webhooks_count_by_their_outcome(self, store: JobStore) -> None:
        hook = Webhook("http://files.test/")
        store.run(records.submit(submission(webhook=hook), LIMITS))
        (held,) = claim(store)
        store.run(records.complete(held, Outcome(State.SUCCEEDED)))
        assert self.of(store).waiting_webhooks == 1
        for outcome in (Delivery.PENDING, Delivery.DELIVERED):
            store.client.zadd("penstock:outbox", dict.fromkeys(store.client.zrange("penstock:outbox", 0, -1), 0))
            (task,) = store.run(deliveries.due(5, 60)).tasks
            for _ in range(2):  # the second time it is stale
                store.run(deliveries.settle(task.delivery, outcome, Attempt(1, 0.0, 500, "x")))
                if outcome is Delivery.PENDING:
                    break
        told = self.of(store)
        assert (told.tries, told.waiting_webhooks) == ({"retried": 1, "delivered": 1}, 0)

    def test_webhooks_that_are_due_wait_too(self, store: JobStore) -> None:
        hook = Webhook("http://files.test/", ("job.queued",))
        for job_id in "abc":
            submit(store, job_id, webhook=hook)
        assert self.of(store).waiting_webhooks == 3
        assert len(store.run(deliveries.due(1, 60)).tasks) == 1  # the others stand in their receiver's lane
        assert self.of(store).waiting_webhooks == 3


class TestTheRoute:
    async def test_it_tells_of_queues_jobs_and_phases(self, service: Service) -> None:
        for _ in range(3):
            await service.submit()
        await service.succeed(await service.claim())
        held = await service.claim()
        await service.jobs.run(records.heartbeat(held, Phase.FETCHING, Progress()))
        families = await scrape(service)
        assert value(families, "penstock_job_store_up") == 1
        assert value(families, "penstock_queue_waiting_jobs", queue="default") == 1
        assert value(families, "penstock_queue_running_jobs", queue="default") == 1
        assert value(families, "penstock_queue_oldest_age_seconds", queue="default") > 0
        assert value(families, "penstock_jobs_ended_total", model="echo", status="succeeded") == 1
        phase = {"model": "echo", "phase": "inference"}
        assert value(families, "penstock_job_phase_seconds_count", **phase) == 1
        assert value(families, "penstock_job_phase_seconds_sum", **phase) == pytest.approx(0.005)
        assert value(families, "penstock_job_phase_seconds_bucket", le="0.01", **phase) == 1
        assert value(families, "penstock_job_phase_seconds_bucket", le="+Inf", **phase) == 1

    async def test_requests_count_by_template_and_never_by_what_a_client_chose(self, service: Service) -> None:
        job = await service.submit()
        await service.http.get(f"/v1/jobs/{job['id']}")
        await service.http.get("/v1/jobs/canary-id")
        await service.http.get("/canary-path")
        await service.http.request("CANARY", "/v1/jobs")
        await service.http.get("/v1/jobs", headers={"host": "canary.example"})
        text = (await service.http.get("/metrics")).text
        assert "anary" not in text
        assert "CANARY" not in text
        assert job["id"] not in text
        assert "tenant" not in text
        families = await scrape(service)
        route = "/v1/jobs/{job_id}"
        assert value(families, "penstock_http_requests_total", method="GET", route=route, status="200") == 1
        assert value(families, "penstock_http_requests_total", method="GET", route=route, status="404") == 1
        assert value(families, "penstock_http_request_seconds_count", method="GET", route=route) == 2
        assert value(families, "penstock_http_requests_total", method="GET", route="other", status="404") == 1
        assert value(families, "penstock_http_requests_total", method="POST", route="/v1/jobs", status="202") == 1

    async def test_a_fault_of_ours_counts_as_500(self, service: Service) -> None:
        service.swap(jobs=Broken())
        assert (await service.http.get("/v1/jobs")).status_code == 500
        service.swap(jobs=service.jobs)
        families = await scrape(service)
        assert value(families, "penstock_http_requests_total", route="/v1/jobs", status="500") == 1

    async def test_without_redis_it_says_so_and_still_tells_of_requests(self, tmp_path: Path) -> None:
        server = start_valkey(tmp_path / "valkey")
        try:
            async with serving(server.url, tmp_path / "data") as service:
                await service.submit()
                server.kill()
                families = await scrape(service)
                assert value(families, "penstock_job_store_up") == 0
                assert value(families, "penstock_http_requests_total", route="/v1/jobs", status="202") == 1
                assert "penstock_queue_waiting_jobs" not in families
        finally:
            server.stop()

    async def test_every_name_type_and_label_is_in_the_reference_and_nothing_else(self, service: Service) -> None:
        hook = {"url": "http://files.test/hook"}
        await service.submit(webhook=hook)
        used = Usage(1.5, 1, 2, 3, 4, 5)
        await service.end(
            await service.claim(), Outcome(State.SUCCEEDED, metrics={"inference_ms": 5.0, "cached": 0}, usage=used)
        )
        (task,) = (await service.jobs.run(deliveries.due(5, 60))).tasks
        await service.jobs.run(deliveries.settle(task.delivery, Delivery.DELIVERED, Attempt(1, 0.0, 200, "x")))
        await service.jobs.run(drop_events.count(drop_events.HTTP, {drop_events.FOREIGN: 1}))
        await service.jobs.run(workers.report("w", worker_with("echo", 512, busy=0.25), alive_s=60))
        await service.jobs.run(workers.report("v", worker_with("echo", 88, busy=0.75), alive_s=60))
        await service.jobs.run(workers.report("old", worker_with("echo", 0, busy=None), alive_s=60))
        failed = loads.load_failed("echo", "here", record="1", how="was ended by SIGABRT", lines=())
        await service.jobs.run(failed)
        await service.jobs.run(records.sweep())
        families = await scrape(service)
        ended = {end: value(families, "penstock_jobs_ended_total", model="echo", status=end) for end in ENDS}
        assert ended == dict.fromkeys(ENDS, 0) | {"succeeded": 1}
        assert value(families, "penstock_model_load_failures", model="echo") == 1
        assert value(families, "penstock_encoder_cache_bytes", model="echo") == 600
        assert value(families, "penstock_queue_device_busy", queue="default") == 0.5
        assert _rows(_told(families)) == _rows(_documented())


def test_the_reference_knows_every_phase_that_a_worker_tells(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with open_bench(valkey.url, tmp_path) as bench:
        bench.submit("a", {"text": bench.upload("hi")})
        assert bench.slots.work("default") == 1
        told = {phase for _, phase in bench.store.run(counts()).phases}
    assert told == set(re.findall(r"`(\w+)`", PAGE.read_text().partition("Phases:")[2].partition("All phases but")[0]))


def worker_with(model: str, kept_bytes: int, *, busy: float | None) -> WorkerState:
    served = ServedModel(model, ready=True, loaded=True, batch_size=1, encoder_cache_bytes=kept_bytes)
    return WorkerState("host", 0.0, ("default",), 1, "cpu", draining=False, models=(served,), device_busy=busy)


Row = tuple[str, str, frozenset[str]]


def _documented() -> Iterable[Row]:
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\|", PAGE.read_text(), re.M):
        yield name, kind, frozenset(re.findall(r"`(\w+)`", labels))


def _told(families: Families) -> Iterable[Row]:
    for family in families.values():
        labels = frozenset(name for sample in family.samples for name in sample.labels) - {"le"}
        if not family.name.endswith("_created"):
            yield family.name + ("_total" if family.type == "counter" else ""), family.type, labels


def _rows(rows: Iterable[Row]) -> list[tuple[str, str, list[str]]]:
    return sorted((name, kind, sorted(labels)) for name, kind, labels in rows)
