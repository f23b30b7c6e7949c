"""Raw Celery and celery-batches: an app for `celery -A celery_server worker`, and for clients to send tasks with.

`PEER_BROKER` is the address of Redis, `PEER_VISIBILITY_S` the seconds after which an unacknowledged task is sent again.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from celery import Celery
from celery_batches import Batches
from work import Work

app = Celery("peer", broker=os.environ["PEER_BROKER"], backend=os.environ["PEER_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get("PEER_PREFETCH", "1")),
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": int(os.environ["PEER_VISIBILITY_S"])},
    result_expires=3600,
)


@cache
def work() -> Work:
    """Return the work of this process."""
    return Work()


@app.task(name="one")
def one(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job."""
    return work().run([job])[0]


@app.task(name="many", base=Batches, flush_every=8, flush_interval=0.02)
def many(requests: list[Any]) -> None:
    """Run the jobs of a batch and store the answer of each."""
    answers = work().run([request.args[0] for request in requests])
    for request, answer in zip(requests, answers, strict=True):
        app.backend.mark_as_done(request.id, answer, request=request)
