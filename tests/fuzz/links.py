"""The links between the operations of the API: from an answer to requests about what was made or listed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_JOB = {"job_id": "$response.body#/id"}
_LISTED = {"job_id": "$response.body#/jobs/0/id"}
_JOB_LINKS = {
    "read": ("read_job", _JOB), "cancel": ("cancel_job", _JOB), "retry": ("retry_job", _JOB),
    "delete": ("delete_job", _JOB), "events": ("job_events", _JOB), "deliveries": ("list_deliveries", _JOB),
}  # fmt: skip
_BATCH = {"batch_id": "$response.body#/id"}
_LISTED_BATCH = {"batch_id": "$response.body#/batches/0/id"}
_BATCH_LINKS = {
    "read": ("read_batch", _BATCH), "cancel": ("cancel_batch", _BATCH), "delete": ("delete_batch", _BATCH),
    "jobs": ("list_jobs", _BATCH),
}  # fmt: skip
_ENDPOINT = {"endpoint_id": "$response.body#/id"}
_LISTED_ENDPOINT = {"endpoint_id": "$response.body#/endpoints/0/id"}
_SAME_ENDPOINT = {"endpoint_id": "$request.path.endpoint_id"}
_ENDPOINT_LINKS = {
    "read": ("read_endpoint", _ENDPOINT), "change": ("change_endpoint", _ENDPOINT),
    "rotate": ("rotate_secret", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT),
    "deliveries": ("list_endpoint_deliveries", _ENDPOINT), "delete": ("delete_endpoint", _ENDPOINT),
}  # fmt: skip
_DELIVERY = {"delivery_id": "$response.body#/id"}
_LISTED_DELIVERY = {"delivery_id": "$response.body#/deliveries/0/id"}
#: Operation -> link name -> target operation and the expressions of its parameters.
LINKS: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = MappingProxyType(
    {
        "submit_job": _JOB_LINKS,
        "put_job": _JOB_LINKS,
        "retry_job": {"read": ("read_job", _JOB)},
        "read_job": _JOB_LINKS | {"artifact": ("read_artifact", {**_JOB, "name": "$response.body#/artifacts/0/name"})},
        "list_jobs": {
            "read": ("read_job", _LISTED),
            "delete": ("delete_job", _LISTED),
            "next": ("list_jobs", {"cursor": "$response.body#/next_cursor"}),
        },
        "list_deliveries": {
            "redeliver": (
                "redeliver_event",
                {"job_id": "$request.path.job_id", "delivery_id": "$response.body#/deliveries/0/id"},
            ),
        },
        "list_models": {"read": ("read_model", {"name": "$response.body#/models/0/name"})},
        "list_queues": {"read": ("read_queue", {"name": "$response.body#/queues/0/name"})},
        "list_dead_letters": {"retry": ("retry_job", _LISTED)},
        "submit_batch": _BATCH_LINKS,
        "read_batch": _BATCH_LINKS
        | {"artifact": ("read_batch_artifact", {**_BATCH, "name": "$response.body#/artifacts/0/name"})},
        "cancel_batch": {"read": ("read_batch", _BATCH), "delete": ("delete_batch", _BATCH)},
        "list_batches": {
            "read": ("read_batch", _LISTED_BATCH),
            "cancel": ("cancel_batch", _LISTED_BATCH),
            "next": ("list_batches", {"cursor": "$response.body#/next_cursor"}),
        },
        "create_endpoint": _ENDPOINT_LINKS,
        "read_endpoint": _ENDPOINT_LINKS,
        "change_endpoint": {"read": ("read_endpoint", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT)},
        "rotate_secret": {"read": ("read_endpoint", _ENDPOINT), "test": ("test_endpoint", _ENDPOINT)},
        "list_endpoints": {
            "read": ("read_endpoint", _LISTED_ENDPOINT),
            "delete": ("delete_endpoint", _LISTED_ENDPOINT),
        },
        "test_endpoint": {
            "delivery": ("read_delivery", _DELIVERY),
            "redeliver": ("redeliver_one", _DELIVERY),
            "deliveries": ("list_endpoint_deliveries", _SAME_ENDPOINT),
        },
        "list_endpoint_deliveries": {
            "delivery": ("read_delivery", _LISTED_DELIVERY),
            "next": ("list_endpoint_deliveries", {**_SAME_ENDPOINT, "cursor": "$response.body#/next_cursor"}),
        },
        "list_dead_deliveries": {
            "delivery": ("read_delivery", _LISTED_DELIVERY),
            "redeliver": ("redeliver_one", _LISTED_DELIVERY),
        },
    }
)


def with_links(document: dict[str, Any]) -> dict[str, Any]:
    """Return the API's description with its links, which it is changed to have."""
    for operation in (operation for operations in document["paths"].values() for operation in operations.values()):
        links = {
            name: {"operationId": target, "parameters": dict(parameters)}
            for name, (target, parameters) in LINKS.get(operation["operationId"], {}).items()
        }
        for status, answer in operation["responses"].items():
            if links and status in ("200", "201", "202"):
                answer["links"] = links
    return document
