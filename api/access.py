"""The access table: the scope that each route of the API requires of an API key.

A route without a row in the table is refused to every key, and a test fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from penstock.api_keys import Scope

#: The scope of routes that need no key.
OPEN = None

#: The scope of routes that need a valid key with any scope.
ANY_KEY: Final = "any"

#: (verb, path) -> required scope. HEAD requires the scope of GET.
SCOPES: Mapping[tuple[str, str], Scope | Literal["any"] | None] = MappingProxyType(
    {
        ("GET", "/"): OPEN,
        ("GET", "/docs"): OPEN,
        ("GET", "/docs/oauth2-redirect"): OPEN,
        ("GET", "/livez"): OPEN,
        ("GET", "/readyz"): OPEN,
        # Signed links need no key.
        ("GET", "/v1/local/{key}"): OPEN,
        ("PUT", "/v1/local/{key}"): OPEN,
        ("GET", "/v1/tiles/{tenant}/{job_id}/{kind}/{name}"): OPEN,
        ("GET", "/v1/key"): ANY_KEY,
        ("GET", "/v1/events"): Scope.READ,
        ("GET", "/v1/usage"): Scope.READ,
        ("GET", "/v1/tenants"): Scope.ADMIN,
        # The lines of a worker are of the jobs of all tenants.
        ("GET", "/v1/workers/{worker_id}/logs"): Scope.ADMIN,
        ("GET", "/v1/models"): Scope.READ,
        ("GET", "/v1/models/{name}"): Scope.READ,
        ("GET", "/v1/jobs"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/events"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/artifacts/{name}"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/output"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/deliveries"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/logs"): Scope.READ,
        ("GET", "/v1/jobs/{job_id}/links"): Scope.READ,
        ("POST", "/v1/jobs"): Scope.SUBMIT,
        ("PUT", "/v1/jobs/{job_id}"): Scope.SUBMIT,
        ("DELETE", "/v1/jobs/{job_id}"): Scope.SUBMIT,
        ("POST", "/v1/jobs/{job_id}/cancel"): Scope.SUBMIT,
        ("POST", "/v1/jobs/{job_id}/retry"): Scope.SUBMIT,
        ("POST", "/v1/uploads"): Scope.SUBMIT,
        ("GET", "/v1/uploads/{upload_id}/{name}"): Scope.SUBMIT,
        ("DELETE", "/v1/uploads/{upload_id}/{name}"): Scope.SUBMIT,
        ("POST", "/v1/uploads/{upload_id}/{name}/parts"): Scope.SUBMIT,
        ("POST", "/v1/uploads/{upload_id}/{name}/complete"): Scope.SUBMIT,
        ("GET", "/v1/batches"): Scope.READ,
        ("GET", "/v1/batches/{batch_id}"): Scope.READ,
        ("GET", "/v1/batches/{batch_id}/artifacts/{name}"): Scope.READ,
        ("POST", "/v1/batches"): Scope.SUBMIT,
        ("POST", "/v1/batches/{batch_id}/cancel"): Scope.SUBMIT,
        ("DELETE", "/v1/batches/{batch_id}"): Scope.SUBMIT,
        ("POST", "/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver"): Scope.WEBHOOKS,
        ("GET", "/v1/deliveries/dead-letters"): Scope.WEBHOOKS,
        ("POST", "/v1/deliveries/dead-letters/redeliver"): Scope.WEBHOOKS,
        ("GET", "/v1/deliveries/{delivery_id}"): Scope.WEBHOOKS,
        ("POST", "/v1/deliveries/{delivery_id}/redeliver"): Scope.WEBHOOKS,
        ("POST", "/v1/webhook-endpoints"): Scope.WEBHOOKS,
        ("GET", "/v1/webhook-endpoints"): Scope.WEBHOOKS,
        ("GET", "/v1/webhook-endpoints/{endpoint_id}"): Scope.WEBHOOKS,
        ("PATCH", "/v1/webhook-endpoints/{endpoint_id}"): Scope.WEBHOOKS,
        ("DELETE", "/v1/webhook-endpoints/{endpoint_id}"): Scope.WEBHOOKS,
        ("POST", "/v1/webhook-endpoints/{endpoint_id}/rotate"): Scope.WEBHOOKS,
        ("POST", "/v1/webhook-endpoints/{endpoint_id}/test"): Scope.WEBHOOKS,
        ("GET", "/v1/webhook-endpoints/{endpoint_id}/deliveries"): Scope.WEBHOOKS,
        ("GET", "/v1/subscriptions"): Scope.READ,
        ("GET", "/v1/subscriptions/{name}"): Scope.READ,
        ("GET", "/v1/subscriptions/{name}/stac/{path}"): Scope.READ,
        ("POST", "/v1/subscriptions"): Scope.SUBMIT,
        ("POST", "/v1/subscriptions/{name}/pause"): Scope.SUBMIT,
        ("POST", "/v1/subscriptions/{name}/resume"): Scope.SUBMIT,
        ("DELETE", "/v1/subscriptions/{name}"): Scope.SUBMIT,
        # Facades create jobs, uploads and batches.
        ("POST", "/pooling"): Scope.SUBMIT,
        ("POST", "/score"): Scope.SUBMIT,
        ("POST", "/v1/score"): Scope.SUBMIT,
        ("POST", "/rerank"): Scope.SUBMIT,
        ("POST", "/v1/rerank"): Scope.SUBMIT,
        ("POST", "/v2/rerank"): Scope.SUBMIT,
        ("POST", "/classify"): Scope.SUBMIT,
        ("GET", "/openai/v1/models"): Scope.READ,
        ("GET", "/openai/v1/models/{name}"): Scope.READ,
        ("POST", "/openai/v1/chat/completions"): Scope.SUBMIT,
        ("POST", "/openai/v1/responses"): Scope.SUBMIT,
        ("GET", "/openai/v1/responses/{response_id}"): Scope.READ,
        ("POST", "/openai/v1/responses/{response_id}/cancel"): Scope.SUBMIT,
        ("POST", "/openai/v1/completions"): Scope.SUBMIT,
        ("POST", "/openai/v1/embeddings"): Scope.SUBMIT,
        ("POST", "/openai/v1/images/generations"): Scope.SUBMIT,
        ("POST", "/openai/v1/images/edits"): Scope.SUBMIT,
        ("POST", "/openai/v1/audio/transcriptions"): Scope.SUBMIT,
        ("POST", "/openai/v1/audio/translations"): Scope.SUBMIT,
        ("POST", "/openai/v1/files"): Scope.SUBMIT,
        ("GET", "/openai/v1/files"): Scope.READ,
        ("GET", "/openai/v1/files/{file_id}"): Scope.READ,
        ("GET", "/openai/v1/files/{file_id}/content"): Scope.READ,
        ("DELETE", "/openai/v1/files/{file_id}"): Scope.SUBMIT,
        ("POST", "/openai/v1/batches"): Scope.SUBMIT,
        ("GET", "/openai/v1/batches"): Scope.READ,
        ("GET", "/openai/v1/batches/{batch_id}"): Scope.READ,
        ("POST", "/openai/v1/batches/{batch_id}/cancel"): Scope.SUBMIT,
        ("POST", "/runpod/v2/{endpoint}/run"): Scope.SUBMIT,
        ("POST", "/runpod/v2/{endpoint}/runsync"): Scope.SUBMIT,
        ("GET", "/runpod/v2/{endpoint}/status/{job_id}"): Scope.READ,
        ("GET", "/runpod/v2/{endpoint}/stream/{job_id}"): Scope.READ,
        ("POST", "/runpod/v2/{endpoint}/cancel/{job_id}"): Scope.SUBMIT,
        ("POST", "/runpod/v2/{endpoint}/retry/{job_id}"): Scope.SUBMIT,
        ("GET", "/runpod/v2/{endpoint}/health"): Scope.READ,
        ("POST", "/runpod/v2/{endpoint}/purge-queue"): Scope.SUBMIT,
        # Static documents, the same for every tenant.
        ("GET", "/ogc"): OPEN,
        ("GET", "/ogc/"): OPEN,
        ("GET", "/ogc/conformance"): OPEN,
        ("GET", "/ogc/processes"): Scope.READ,
        ("GET", "/ogc/processes/{process_id}"): Scope.READ,
        ("GET", "/ogc/jobs"): Scope.READ,
        ("GET", "/ogc/jobs/{job_id}"): Scope.READ,
        ("GET", "/ogc/jobs/{job_id}/results"): Scope.READ,
        ("GET", "/ogc/jobs/{job_id}/results/{output}"): Scope.READ,
        ("POST", "/ogc/processes/{process_id}/execution"): Scope.SUBMIT,
        ("DELETE", "/ogc/jobs/{job_id}"): Scope.SUBMIT,
        ("POST", "/v1/events/s3"): Scope.EVENTS,
        ("GET", "/metrics"): Scope.MONITOR,
        ("GET", "/v1/workers"): Scope.MONITOR,
        ("GET", "/v1/drops"): Scope.MONITOR,
        ("GET", "/v1/queues"): Scope.MONITOR,
        ("GET", "/v1/queues/{name}"): Scope.MONITOR,
        ("POST", "/v1/queues/{name}/pause"): Scope.ADMIN,
        ("POST", "/v1/queues/{name}/drain"): Scope.ADMIN,
        ("POST", "/v1/queues/{name}/resume"): Scope.ADMIN,
        ("POST", "/v1/queues/{name}/purge"): Scope.ADMIN,
        ("GET", "/v1/queues/{name}/dead-letters"): Scope.ADMIN,
        ("POST", "/v1/queues/{name}/dead-letters/requeue"): Scope.ADMIN,
    }
)

#: Routes that also accept the key as the password of basic authentication: Ceph's gateway supports nothing else.
BASIC = frozenset({("POST", "/v1/events/s3")})


def is_declared(verb: str, path: str) -> bool:
    """Return True where the table has a row for a route."""
    return _row(verb, path) in SCOPES


def scope_of(verb: str, path: str) -> Scope | Literal["any"] | None:
    """Return the scope that a declared route requires, or `ANY_KEY`, or `OPEN`."""
    return SCOPES[_row(verb, path)]


def accepts_basic(verb: str, path: str) -> bool:
    """Return True where a route also accepts its key as a password."""
    return _row(verb, path) in BASIC


def _row(verb: str, path: str) -> tuple[str, str]:
    return ("GET" if verb == "HEAD" else verb), path
