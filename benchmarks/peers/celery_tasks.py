"""Raw Celery (`acks_late`, one child process), with celery-batches for pictures; the result lies in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.exceptions import TimeoutError as NotInTime

from benchmarks.measuring import Lost, tree
from benchmarks.peers.load import Submit
from benchmarks.peers.serving import Place, Supervised, supervised, wait_until
from tests.support.valkey import ValkeyProcess, start_valkey


class CeleryTasks:
    """A running worker."""

    def __init__(self, server: Supervised, valkey: ValkeyProcess, place: Place) -> None:
        self._server, self._valkey, self._place = server, valkey, place
        self._app = Celery("peer-client", broker=valkey.url, backend=valkey.url, set_as_current=False)
        self._app.conf.result_backend_thread_safe = True

    def caller(self) -> Submit:
        """Return a call of a task and a wait for its result."""
        name, patience_s = task_of(self._place), self._place.work.patience_s

        def submit(job: dict[str, Any]) -> None:
            result = self._app.send_task(name, args=[job])
            try:
                result.get(timeout=patience_s)
            except NotInTime as error:
                raise Lost("it did not end in time") from error
            except Exception as error:  # the task's own, made by Celery
                raise Lost(f"{type(error).__name__}: {error}") from error

        return submit

    def roots(self) -> list[int]:
        """Return the worker's process and the broker."""
        return [self._server.process.pid, self._valkey.pid]

    def worker(self) -> int:
        """Return the child that runs tasks."""
        return tree([self._server.process.pid])[1].pid


def task_of(place: Place) -> str:
    """Return the task: batches where the work has them."""
    return "many" if place.work.name == "picture" else "one"


@contextmanager
def serve(place: Place) -> Iterator[CeleryTasks]:
    """Run it inside the block."""
    valkey = start_valkey(place.folder / "valkey")
    many = place.work.batch > 1 and task_of(place) == "many"
    environment = {
        "PEER_BROKER": valkey.url, "PEER_VISIBILITY_S": place.work.visibility_s,
        "PEER_PREFETCH": 2 * place.work.batch if many else 1,
    }  # fmt: skip
    command = [
        place.python, "-m", "celery", "-A", "celery_server", "worker", "--concurrency", "1", "--loglevel", "warning",
        "--without-gossip", "--without-mingle",
    ]  # fmt: skip
    try:
        with supervised(place, command, **environment) as server:
            service = CeleryTasks(server, valkey, place)
            wait_until(lambda: bool(service._app.control.ping(timeout=1)), server)
            yield service
    finally:
        valkey.stop()
