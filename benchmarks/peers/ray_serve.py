"""Ray Serve with one replica: requests that wait for their answer, with batches of 8 for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.processes import find
from benchmarks.peers.serving import SERVERS, Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0", "RAY_DEDUP_LOGS": "0"}


class RaySync:
    """A running Ray Serve."""

    def __init__(self, server: Supervised, port: int, place: Place) -> None:
        self._server, self._port, self._place = server, port, place

    def caller(self) -> Submit:
        """Return a call of the deployment."""
        connection = Http(self._port, self._place.work.patience_s)

        def submit(job: dict[str, Any]) -> None:
            status, answer = connection.ask("POST", "/job", job)
            if status != 200:
                raise Lost(f"{status}: {answer}")

        return submit

    def roots(self) -> list[int]:
        """Return the driver's process: the daemons of Ray are its children."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the replica's process."""
        return find(self.roots(), "ServeReplica:default:Peer")


@contextmanager
def serve(place: Place) -> Iterator[RaySync]:
    """Run it inside the block."""
    port = free_port()
    command = [place.python, SERVERS / "ray_server.py", port, place.work.batch]
    with supervised(place, command, **ENVIRONMENT) as server:
        wait_until(answers(port, "/-/healthz"), server)
        wait_until(answers(port, "/-/routes"), server)
        yield RaySync(server, port, place)
