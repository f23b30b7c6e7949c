"""RunPod's local worker (`--rp_serve_api`), by `/runsync`: one process, one job at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.serving import SERVERS, Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port


class RunPod:
    """A running local worker."""

    def __init__(self, server: Supervised, port: int, place: Place) -> None:
        self._server, self._port, self._place = server, port, place

    def caller(self) -> Submit:
        """Return a call of `/runsync`."""
        connection = Http(self._port, self._place.work.patience_s)

        def submit(job: dict[str, Any]) -> None:
            status, answer = connection.ask("POST", "/runsync", {"input": job})
            if status != 200 or answer.get("status") != "COMPLETED":
                raise Lost(f"{status}: {answer}")

        return submit

    def roots(self) -> list[int]:
        """Return the only process."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the only process."""
        return self._server.process.pid


@contextmanager
def serve(place: Place) -> Iterator[RunPod]:
    """Run it inside the block."""
    port = free_port()
    flags = ["--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", port, "--rp_log_level", "ERROR"]
    with supervised(place, [place.python, SERVERS / "runpod_server.py", *flags]) as server:
        wait_until(answers(port, "/openapi.json"), server)
        yield RunPod(server, port, place)
