"""Ray Serve's asynchronous inference: `ray_queue_server.py PORT`. Ends with its standard input.

`PEER_BROKER` is the address of Redis, `PEER_VISIBILITY_S` the seconds after which an unacknowledged task is sent again.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import ray
from ray import serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler
from starlette.requests import Request
from work import Work

CONFIG = TaskProcessorConfig(
    queue_name="peer",
    adapter_config=CeleryAdapterConfig(
        broker_url=os.environ["PEER_BROKER"], backend_url=os.environ["PEER_BROKER"],
        broker_transport_options={"visibility_timeout": int(os.environ["PEER_VISIBILITY_S"])},
    ),
    max_retries=3,
)  # fmt: skip


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 1})
@task_consumer(task_processor_config=CONFIG)
class Consumer:
    """One replica with the model."""

    def __init__(self) -> None:
        """Load the model."""
        self.work = Work()

    @task_handler(name="job")
    def job(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one job."""
        return self.work.run([order])[0]


@serve.deployment(num_replicas=1, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0})
class Door:
    """Takes jobs and gives their status; holds the consumer so that both are one application."""

    def __init__(self, consumer: Any) -> None:
        """Connect to the queue."""
        self.consumer = consumer
        self.adapter = instantiate_adapter_from_config(task_processor_config=CONFIG)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Submit a job (POST) or give the status of one (GET)."""
        if request.method == "POST":
            task = self.adapter.enqueue_task_sync(task_name="job", args=[await request.json()])
        else:
            task = self.adapter.get_task_status_sync(request.query_params["id"])
        return {"id": task.id, "status": task.status, "result": task.result}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning", object_store_memory=200_000_000)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Door.bind(Consumer.bind()), route_prefix="/job")
    sys.stdin.read()
