"""`/metrics` for Prometheus: this process's requests, and the queues, jobs and webhooks in Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from statistics import fmean
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from penstock.api.services import Api, Services
from penstock.api.traffic import Traffic
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.storage.redis.counts import Counts, Histogram, counts
from penstock.storage.redis.fields import MICRO
from penstock.storage.redis.loads import LoadFailure, load_failures
from penstock.storage.redis.queues import QueueStats, queue_stats
from penstock.storage.redis.workers import LiveWorker, living

#: Time limit of Redis in seconds: scrapers time out soon themselves.
TIMEOUT_S = 3.0

_QUEUE: tuple[tuple[str, str, Callable[[QueueStats], float]], ...] = (
    ("waiting_jobs", "Jobs waiting for a worker.", lambda stats: stats.queued),
    ("running_jobs", "Jobs leased by workers.", lambda stats: stats.running),
    ("oldest_age_seconds", "Age of the next job; 0 without waiting jobs.", lambda stats: stats.oldest_age_s),
    ("dead_letters", "Jobs that failed because their workers died too often.", lambda stats: stats.dead_letters),
    ("workers", "Live workers.", lambda stats: stats.workers),
    ("slots", "Concurrent jobs of the live workers.", lambda stats: stats.slots),
)

#: Statuses of ended jobs. Each has a value for each model, since the rate of a new counter misses its first event.
_ENDS = ("succeeded", "failed", "canceled", "expired")

router = APIRouter(tags=["health"])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A reading of Redis; `found` is None where Redis did not answer."""

    found: tuple[Counts, Mapping[str, QueueStats], Sequence[LiveWorker], Sequence[LoadFailure]] | None
    settings: Settings

    def collect(self) -> Iterable[Metric]:
        """Yield the reading as metrics."""
        up = self.found is not None
        yield _gauge("job_store_up", "1 if Redis answered, else 0; then only request metrics are present.", {(): up})
        if self.found is not None:
            found, queues, workers, failures = self.found
            yield from _queue_metrics(queues, self.settings)
            yield from _job_metrics(found)
            yield from _usage_metrics(found)
            yield from _worker_metrics(found, workers, failures)
            yield from _keeper_metrics(found)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Prometheus' text format.",
        }
    },
)
async def read_metrics(request: Request, api: Api) -> Response:
    """Return metrics in Prometheus' text format. `docs/reference/metrics.md` describes each metric."""
    traffic: Traffic = request.app.state.traffic
    registry = CollectorRegistry(auto_describe=False)
    registry.register(await _snapshot(api))
    return Response(
        generate_latest(traffic.registry) + generate_latest(registry),
        headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"},
    )


async def _snapshot(api: Services) -> Snapshot:
    try:
        return Snapshot(await asyncio.wait_for(_read(api), TIMEOUT_S), api.settings)
    except (PenstockError, TimeoutError):
        return Snapshot(None, api.settings)


async def _read(
    api: Services,
) -> tuple[Counts, Mapping[str, QueueStats], Sequence[LiveWorker], Sequence[LoadFailure]]:
    found = await api.jobs.run(counts())
    entries = await api.models.latest()
    names = sorted({*found.queues, *api.settings.queues, *(entry.queue for entry in entries.values())})
    stats = await asyncio.gather(*(api.jobs.run(queue_stats(name)) for name in names))
    workers, failures = await asyncio.gather(api.jobs.run(living()), api.jobs.run(load_failures()))
    return found, dict(zip(names, stats, strict=True)), workers, failures


def _gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """Return the gauge `penstock_NAME` with a value for each tuple of labels."""
    return _filled(GaugeMetricFamily(f"penstock_{name}", text, labels=labels), values)


def _counter(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """Return the counter `penstock_NAME` with a value for each tuple of labels."""
    return _filled(CounterMetricFamily(f"penstock_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _queue_metrics(queues: Mapping[str, QueueStats], settings: Settings) -> Iterable[Metric]:
    for name, text, figure in _QUEUE:
        yield _gauge(f"queue_{name}", text, {(queue,): figure(stats) for queue, stats in queues.items()}, "queue")
    wanted = {(queue,): stats.wanted_workers(settings.scaling, slots=settings.slots) for queue, stats in queues.items()}
    yield _gauge("queue_wanted_workers", "Workers that the queue wants now.", wanted, "queue")


def _job_metrics(found: Counts) -> Iterable[Metric]:
    models = sorted({model for model, _ in found.ended} | found.lost.keys() | found.retried.keys())
    ended = {(model, end): found.ended.get((model, end), 0) for model in models for end in _ENDS}
    yield _counter("jobs_ended", "Ended jobs.", ended, "model", "status")
    lost, retried = ({(model,): each.get(model, 0) for model in models} for each in (found.lost, found.retried))
    yield _counter("leases_lost", "Attempts whose worker died or hung.", lost, "model")
    yield _counter("attempts_retried", "Failed attempts after which the job was tried again.", retried, "model")
    phases = HistogramMetricFamily(
        "penstock_job_phase_seconds", "Seconds in each phase of ended jobs.", labels=["model", "phase"]
    )
    for labels, histogram in found.phases.items():
        phases.add_metric(labels, _buckets(histogram), histogram.sum_s)
    yield phases
    lookups = dict(sorted(found.lookups.items()))
    yield _counter("cache_lookups", "Cache look-ups by ended jobs.", lookups, "model", "cache", "outcome")


_USED = (
    ("device_us", "device_seconds", "Seconds of devices that ended jobs used.", MICRO),
    ("bytes_in", "bytes_in", "Bytes of media that ended jobs fetched.", 1),
    ("bytes_out", "bytes_out", "Bytes of the artifacts of ended jobs.", 1),
    ("tokens_in", "tokens_in", "Tokens given by ended jobs.", 1),
    ("tokens_out", "tokens_out", "Tokens generated by ended jobs.", 1),
    ("pixels", "pixels", "Pixels that ended jobs gave to the model.", 1),
)


def _usage_metrics(found: Counts) -> Iterable[Metric]:
    models = sorted({model for model, _ in found.ended})
    for measure, name, text, unit in _USED:
        used = {(model,): found.used.get((model, measure), 0) / unit for model in models}
        yield _counter(f"usage_{name}", text, used, "model")


def _worker_metrics(
    found: Counts, workers: Sequence[LiveWorker], failures: Sequence[LoadFailure]
) -> Iterable[Metric]:  # fmt: skip
    yield _counter("worker_seconds", "Seconds that workers lived.", {(): found.worker_s})
    yield _counter(
        "worker_busy_seconds", "Seconds in which the devices of workers computed.", {(): found.worker_busy_s}
    )
    busy: dict[str, list[float]] = {}
    kept: Counter[str] = Counter()
    for state in (worker.state for worker in workers):
        for queue in state.queues if state.device_busy is not None else ():
            busy.setdefault(queue, []).append(state.device_busy or 0.0)
        kept.update({m.name: m.encoder_cache_bytes for m in state.models if m.encoder_cache_bytes is not None})
    shares = {(queue,): fmean(found) for queue, found in sorted(busy.items())}
    text = "Share of the last minute in which the devices of the queue's live workers computed."
    yield _gauge("queue_device_busy", text, shares, "queue")
    cached = {(model,): size_bytes for model, size_bytes in sorted(kept.items())}
    yield _gauge("encoder_cache_bytes", "Bytes of cached encodings.", cached, "model")
    machines = Counter(failure.model for failure in failures)
    text = "Machines on which the latest load of the model ended its process."
    yield _gauge("model_load_failures", text, {(model,): machines[model] for model in sorted(machines)}, "model")


def _keeper_metrics(found: Counts) -> Iterable[Metric]:
    yield _gauge("keeper_active", "1 while a keeper is the active one, else 0.", {(): found.keeper_active})
    if found.swept_s is not None:
        yield _gauge("keeper_sweep_age_seconds", "Seconds since a keeper last looked at leases.", {(): found.swept_s})
    yield _gauge("redis_memory_bytes", "Bytes that Redis uses.", {(): found.redis_bytes})
    yield _gauge("redis_memory_limit_bytes", "Limit of these bytes; 0 without one.", {(): found.redis_limit_bytes})
    tries = {(outcome,): count for outcome, count in sorted(found.tries.items())}
    yield _counter("webhook_tries", "Webhook delivery tries.", tries, "outcome")
    yield _gauge("webhooks_waiting", "Webhook deliveries waiting.", {(): found.waiting_webhooks})
    events = dict(sorted(found.drop_events.items()))
    yield _counter("drop_events", "Object events of drop rules.", events, "source", "outcome")
    text = "Object events that the keeper has not processed."
    yield _gauge("drop_events_waiting", text, {(): found.waiting_drop_events})
    text = "Seconds since the oldest retention that is over ended; 0 while nothing is due."
    yield _gauge("retention_lag_seconds", text, {(): found.retention_lag_s})


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    reached = accumulate(histogram.counts)
    return [
        (str(bound) if isfinite(bound) else "+Inf", count)
        for bound, count in zip(histogram.bounds_s, reached, strict=True)
    ]
