"""The client: submit a job, follow it, fetch its result.

    with Client("http://127.0.0.1:8080") as penstock:
        result = penstock.run("csmask", scene="scene.tif")      # result.classes is a path, result.open() a dataset

        job = penstock.submit("csmask", files={"scene": "scene.tif"})
        job = penstock.wait(job.id)
        penstock.download(job, Path("result"))

For a service with API keys: `Client(url, api_key="penstock_...")`.

`Client` and `AsyncClient` have the same methods. Every request is safe to repeat: they retry when the connection fails
or the service answers 429 or 503, for at most `patience_s` seconds. They raise `PenstockAPIError` (an error of the
service), `Unreachable`, `Corrupt`, `StillRunning`, or their base `ClientError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.answers import (
        Artifact,
        Batch,
        BatchPage,
        ClientError,
        Corrupt,
        DeliveryPage,
        Event,
        Job,
        JobLog,
        LineOutcome,
        ModelInfo,
        Page,
        PenstockAPIError,
        Queue,
        StillRunning,
        Try,
        Unreachable,
        UsageDay,
        UsageReport,
        UsageSums,
        WebhookDelivery,
        WebhookEndpoint,
        Worker,
        WorkerLine,
    )
    from penstock.client.asynchronous.client import AsyncClient
    from penstock.client.estimates import Estimate
    from penstock.client.options import BatchOptions, EndpointOptions, JobFilters, JobOptions, SubscriptionOptions
    from penstock.client.results import JobFailed, Result
    from penstock.client.subscription_answers import (
        PolygonChange,
        Subscription,
        SubscriptionCounts,
        SubscriptionNote,
        SubscriptionResult,
    )
    from penstock.client.synchronous.client import Client

__all__ = [
    "Artifact", "AsyncClient", "Batch", "BatchOptions", "BatchPage", "Client", "ClientError", "Corrupt", "DeliveryPage",
    "EndpointOptions", "Estimate", "Event", "Job", "JobFailed", "JobFilters", "JobLog", "JobOptions", "LineOutcome",
    "ModelInfo", "Page", "PenstockAPIError", "PolygonChange", "Queue", "Result", "StillRunning", "Subscription",
    "SubscriptionCounts", "SubscriptionNote", "SubscriptionOptions", "SubscriptionResult", "Try", "Unreachable",
    "UsageDay", "UsageReport", "UsageSums", "WebhookDelivery", "WebhookEndpoint", "Worker", "WorkerLine",
]  # fmt: skip

#: The modules that define these names; a submodule such as `answers` is imported without an HTTP library.
_HOMES = (
    "answers",
    "estimates",
    "options",
    "results",
    "subscription_answers",
    "synchronous.client",
    "asynchronous.client",
)


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"penstock.client.{home}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
