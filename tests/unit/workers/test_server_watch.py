from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.errors import ModelUnavailable
from penstock.models import CatalogueEntry, Model
from penstock.workers.served_models import ServedModels
from penstock.workers.server_watch import ServerWatch

MODEL = Model(
    name="llama", title="Llama", runner="openai-server", processor="openai-chat", source="http://h/v1", revision="1"
)
ENTRY = CatalogueEntry(
    name="llama", title="Llama", revision="1", queue="default", input_schema={}, outputs=(), execution_timeout_s=1,
    queue_ttl_s=1, max_attempts=1, ready=False,
)  # fmt: skip


class Server:
    """A server that the test takes away, and the news of the watch."""

    def __init__(self) -> None:
        self.away: str | None = None
        self.news = threading.Semaphore(0)

    def ask(self, model: Model) -> None:
        assert model is MODEL
        if self.away is not None:
            raise ModelUnavailable(self.away)


@pytest.fixture
def served() -> ServedModels:
    served = ServedModels()
    served.put(MODEL, ENTRY)
    return served


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch(served: ServedModels, server: Server) -> Iterator[ServerWatch]:
    with closing(ServerWatch(served, server.ask, server.news.release, every_s=0.01)) as watch:
        yield watch


def test_a_model_is_ready_while_its_server_answers_and_says_why_not(
    served: ServedModels, server: Server, watch: ServerWatch
) -> None:
    assert served.preparing()
    server.away = "the server at http://h/v1 does not answer"
    watch.add(MODEL)
    assert server.news.acquire(timeout=20)
    [entry] = served.entries()
    assert (entry.ready, entry.note, entry.problem) == (False, server.away, None)
    assert not served.preparing()  # a worker may leave meanwhile
    assert list(served.runnable()) == ["llama"]
    server.away = None
    assert server.news.acquire(timeout=20)
    assert served.ready() == {"llama"}
    assert served.entries()[0].note is None
    server.away = "gone"
    assert server.news.acquire(timeout=20)
    assert served.ready() == set()


def test_a_watch_without_models_ends(watch: ServerWatch) -> None:
    watch.close()
