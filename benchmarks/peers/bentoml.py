"""BentoML tasks: one worker; the client asks for the status until the task has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.processes import tree
from benchmarks.peers.serving import Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port


class Bento:
    """A running `bentoml serve`."""

    def __init__(self, server: Supervised, port: int, place: Place) -> None:
        self._server, self._port, self._place = server, port, place

    def caller(self) -> Submit:
        """Return a submission of a task and a wait for its end."""
        work = self._place.work
        connection = Http(self._port, work.patience_s)

        def submit(job: dict[str, Any]) -> None:
            status, answer = connection.ask("POST", "/job/submit", {"order": job})
            if status != 200:
                raise Lost(f"{status}: {answer}")
            task, ends = answer["task_id"], time.monotonic() + work.patience_s
            while time.monotonic() < ends:
                status, answer = connection.ask("GET", f"/job/status?task_id={task}")
                if status != 200 or answer["status"] in ("failed", "canceled"):
                    raise Lost(f"{status}: {answer}")
                if answer["status"] == "completed":
                    connection.ask("GET", f"/job/get?task_id={task}")
                    return
                time.sleep(work.poll_s)
            raise Lost("it did not end in time")

        return submit

    def roots(self) -> list[int]:
        """Return the supervisor's process."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the child that holds most memory: the process of the model."""
        return max(tree(self.roots())[1:], key=lambda process: process.memory_info().rss).pid


@contextmanager
def serve(place: Place) -> Iterator[Bento]:
    """Run it inside the block."""
    port = free_port()
    command = [
        place.python, "-m", "bentoml", "serve", "bentoml_server:Peer", "--host", "127.0.0.1", "--port", port
    ]  # fmt: skip
    environment = {"BENTOML_HOME": place.folder / "home", "BENTOML_DO_NOT_TRACK": "True"}
    with supervised(place, command, **environment) as server:
        wait_until(answers(port, "/readyz"), server)
        yield Bento(server, port, place)
