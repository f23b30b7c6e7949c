"""Ray Serve with one replica: `ray_server.py PORT BATCH`. Ends with its standard input."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from work import Work

PORT, BATCH = map(int, sys.argv[1:])


@serve.deployment(num_replicas=1, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
class Peer:
    """One replica with the model; jobs that wait share a batch."""

    def __init__(self) -> None:
        """Load the model."""
        self.work = Work()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=0.005 if BATCH > 1 else 0.0)
    async def run(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run the jobs of a batch."""
        import asyncio

        return await asyncio.to_thread(self.work.run, jobs)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a request."""
        answer: dict[str, Any] = await self.run(await request.json())
        return answer


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning", object_store_memory=200_000_000)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Peer.bind(), route_prefix="/job")
    sys.stdin.read()
