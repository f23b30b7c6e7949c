"""LitServe: one worker process; pictures in batches of 8. It has no queue beyond its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.processes import tree
from benchmarks.peers.serving import SERVERS, Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port


class LitServe:
    """A running LitServe."""

    def __init__(self, server: Supervised, port: int, place: Place) -> None:
        self._server, self._port, self._place = server, port, place

    def caller(self) -> Submit:
        """Return a call of `/predict`."""
        connection = Http(self._port, self._place.work.patience_s)

        def submit(job: dict[str, Any]) -> None:
            status, answer = connection.ask("POST", "/predict", job)
            if status != 200:
                raise Lost(f"{status}: {answer}")

        return submit

    def roots(self) -> list[int]:
        """Return the server's process."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the child that holds most memory: the process of the model, or for no-op jobs the first."""
        children = [
            process for process in tree(self.roots())[1:] if "resource_tracker" not in " ".join(process.cmdline())
        ]
        return max(children, key=lambda process: process.memory_info().rss).pid


@contextmanager
def serve(place: Place) -> Iterator[LitServe]:
    """Run it inside the block."""
    port, work = free_port(), place.work
    command = [place.python, SERVERS / "litserve_server.py", port, work.batch, work.patience_s]
    with supervised(place, command) as server:
        wait_until(answers(port, "/health"), server)
        yield LitServe(server, port, place)
