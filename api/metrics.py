"""`/metrics` for Prometheus: this process's requests, and what Redis knows of queues, jobs and webhooks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from penstock.api.services import Api, Services
from penstock.api.traffic import Traffic
from penstock.errors import PenstockError
from penstock.storage.counts import Counts, Histogram, counts
from penstock.storage.queues import QueueStats, queue_stats
from penstock.storage.workers import LiveWorker, living

#: Redis must have answered by then: scrapers do not wait long themselves.
TIMEOUT_S = 3.0

_QUEUE: tuple[tuple[str, str, Callable[[QueueStats], float]], ...] = (
    ("waiting_jobs", "Jobs that wait for a worker.", lambda stats: stats.queued),
    ("running_jobs", "Jobs that workers hold by a lease.", lambda stats: stats.running),
    ("oldest_age_seconds", "Age of the job that is next; 0 where none waits.", lambda stats: stats.oldest_age_s),
    ("dead_letters", "Jobs whose workers died too often.", lambda stats: stats.dead_letters),
    ("workers", "Workers that gave a sign of life lately.", lambda stats: stats.workers),
    ("slots", "Jobs that these workers run at a time.", lambda stats: stats.slots),
)

router = APIRouter(tags=["health"])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What Redis said; None where it did not answer."""

    found: tuple[Counts, Mapping[str, QueueStats], Sequence[LiveWorker]] | None

    def collect(self) -> Iterable[Metric]:
        """Return it as metrics."""
        up = self.found is not None
        yield GaugeMetricFamily(
            "penstock_job_store_up", "Whether Redis answered; without it only requests are told.", up
        )
        if self.found is not None:
            told, queues, workers = self.found
            yield from _of_queues(queues)
            yield from _of_jobs(told)
            yield _of_encodings(workers)
            yield from _of_webhooks(told)
            yield from _of_drops(told)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}
    },
)
async def read_metrics(request: Request, api: Api) -> Response:
    """Return metrics in Prometheus' text format. `docs/reference/metrics.md` describes each."""
    traffic: Traffic = request.app.state.traffic
    registry = CollectorRegistry(auto_describe=False)
    registry.register(await _snapshot(api))
    return Response(
        generate_latest(traffic.registry) + generate_latest(registry),
        headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"},
    )


async def _snapshot(api: Services) -> Snapshot:
    try:
        return Snapshot(await asyncio.wait_for(_found(api), TIMEOUT_S))
    except (PenstockError, TimeoutError):
        return Snapshot(None)


async def _found(api: Services) -> tuple[Counts, Mapping[str, QueueStats], Sequence[LiveWorker]]:
    told = await api.jobs.run(counts())
    names = sorted({*told.queues, *api.settings.queues})
    stats = await asyncio.gather(*(api.jobs.run(queue_stats(name)) for name in names))
    return told, dict(zip(names, stats, strict=True)), await api.jobs.run(living())


def _of_queues(queues: Mapping[str, QueueStats]) -> Iterable[Metric]:
    for name, text, figure in _QUEUE:
        family = GaugeMetricFamily(f"penstock_queue_{name}", text, labels=["queue"])
        for queue, stats in queues.items():
            family.add_metric([queue], figure(stats))
        yield family


def _of_jobs(told: Counts) -> Iterable[Metric]:
    ended = CounterMetricFamily("penstock_jobs_ended", "Jobs that ended.", labels=["model", "status"])
    for labels, count in sorted(told.ended.items()):
        ended.add_metric(labels, count)
    yield ended
    phases = HistogramMetricFamily(
        "penstock_job_phase_seconds", "Time in each phase, of jobs that ended.", labels=["model", "phase"]
    )
    for labels, histogram in told.phases.items():
        phases.add_metric(labels, _buckets(histogram), histogram.sum_s)
    yield phases
    lookups = CounterMetricFamily(
        "penstock_cache_lookups", "Look-ups in caches by jobs that ended.", labels=["model", "cache", "outcome"]
    )
    for look, count in sorted(told.lookups.items()):
        lookups.add_metric(look, count)
    yield lookups


def _of_encodings(workers: Sequence[LiveWorker]) -> Metric:
    kept: Counter[str] = Counter()
    for worker in workers:
        kept.update({m.name: m.encoder_cache_bytes for m in worker.state.models if m.encoder_cache_bytes is not None})
    family = GaugeMetricFamily("penstock_encoder_cache_bytes", "Encodings kept by workers.", labels=["model"])
    for name, size_bytes in sorted(kept.items()):
        family.add_metric([name], size_bytes)
    return family


def _of_webhooks(told: Counts) -> Iterable[Metric]:
    tries = CounterMetricFamily("penstock_webhook_tries", "Tries of webhook deliveries.", labels=["outcome"])
    for outcome, count in sorted(told.tries.items()):
        tries.add_metric([outcome], count)
    yield tries
    yield GaugeMetricFamily("penstock_webhooks_waiting", "Webhook deliveries still to be made.", told.waiting_webhooks)


def _of_drops(told: Counts) -> Iterable[Metric]:
    events = CounterMetricFamily("penstock_drop_events", "Events of dropped objects.", labels=["source", "outcome"])
    for labels, count in sorted(told.drop_events.items()):
        events.add_metric(labels, count)
    yield events
    yield GaugeMetricFamily(
        "penstock_drop_events_waiting", "Events that the keeper has not looked at yet.", told.waiting_drop_events
    )


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    reached = accumulate(histogram.counts)
    return [
        (str(bound) if isfinite(bound) else "+Inf", count)
        for bound, count in zip(histogram.bounds_s, reached, strict=True)
    ]
