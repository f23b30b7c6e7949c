"""Ray Serve's asynchronous inference: a queue in Redis, by Celery, and the client asks for the status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.processes import find
from benchmarks.peers.ray_serve import ENVIRONMENT
from benchmarks.peers.serving import SERVERS, Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port
from tests.support.valkey import ValkeyProcess, start_valkey


class RayQueue:
    """A running Ray Serve with a task consumer."""

    def __init__(self, server: Supervised, valkey: ValkeyProcess, port: int, place: Place) -> None:
        self._server, self._valkey, self._port, self._place = server, valkey, port, place

    def caller(self) -> Submit:
        """Return a submission of a task and a wait for its end."""
        work = self._place.work
        connection = Http(self._port, work.patience_s)

        def submit(job: dict[str, Any]) -> None:
            status, answer = connection.ask("POST", "/job", job)
            if status != 200:
                raise Lost(f"{status}: {answer}")
            task, ends = answer["id"], time.monotonic() + work.patience_s
            while answer["status"] != "SUCCESS":
                if answer["status"] == "FAILURE" or time.monotonic() > ends:
                    raise Lost(f"the task is {answer['status']}")
                time.sleep(work.poll_s)
                status, answer = connection.ask("GET", f"/job?id={task}")
                if status != 200:
                    raise Lost(f"{status}: {answer}")

        return submit

    def roots(self) -> list[int]:
        """Return the driver's process and the broker."""
        return [self._server.process.pid, self._valkey.pid]

    def worker(self) -> int:
        """Return the consumer's replica."""
        return find(self.roots(), "ServeReplica:default:Consumer")


@contextmanager
def serve(place: Place) -> Iterator[RayQueue]:
    """Run it inside the block."""
    port, valkey = free_port(), start_valkey(place.folder / "valkey")
    broker = {"PEER_BROKER": valkey.url, "PEER_VISIBILITY_S": place.work.visibility_s}
    try:
        with supervised(
            place, [place.python, SERVERS / "ray_queue_server.py", port], **ENVIRONMENT, **broker
        ) as server:
            wait_until(answers(port, "/-/routes"), server)
            yield RayQueue(server, valkey, port, place)
    finally:
        valkey.stop()
