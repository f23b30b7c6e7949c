"""Requests under way in another engine, here a coroutine that waits for the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.processors.base import Output
from penstock.workers.engine.base import Continue, Done
from penstock.workers.engine.remote_requests import RemoteRequests, Request, Tell

WAIT_S = 20


class Elsewhere:
    """Another engine: answers when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.canceled: list[str] = []
        self.closed = False
        self.answers: dict[str, asyncio.Event] = {}
        self.loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Elsewhere]:
        self.loop = asyncio.get_running_loop()
        yield self
        self.closed = True

    async def ask(self, engine: Elsewhere, asked: str, tell: Tell) -> Output:
        assert engine is self
        self.begun.append(asked)
        try:
            if asked == "bad":
                raise InvalidInput("bad")
            tell(Output({"x": "half"}, partial=True))
            await self.answers.setdefault(asked, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.canceled.append(asked)
            raise
        return Output({"x": asked})

    def answer(self, asked: str) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(lambda: self.answers.setdefault(asked, asyncio.Event()).set())


class Woken:
    """Counts wakes, and waits for conditions between them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def __call__(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def wait_until(self, condition: object) -> None:
        assert callable(condition)
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def requests(elsewhere: Elsewhere, woken: Woken) -> Iterator[RemoteRequests[Elsewhere]]:
    with closing(RemoteRequests(elsewhere.opened, elsewhere.ask, places=2, name="test")) as requests:
        requests.listen(woken)
        yield requests
    assert elsewhere.closed


def test_a_request_begins_with_its_first_step_and_is_done_after_its_answer(
    requests: RemoteRequests[Elsewhere], elsewhere: Elsewhere, woken: Woken
) -> None:
    request = Request("a")
    assert requests.step([request]) == [Continue(request)]
    assert requests.free == 1
    woken.wait_until(lambda: request.awake)
    assert requests.step([request]) == [Continue(request, Output({"x": "half"}, partial=True))]
    assert not request.awake
    elsewhere.answer("a")
    woken.wait_until(lambda: request.awake)
    assert requests.step([request]) == [Done(Output({"x": "a"}))]
    assert requests.free == 2


def test_a_dropped_request_is_canceled_and_frees_its_place(
    requests: RemoteRequests[Elsewhere], elsewhere: Elsewhere, woken: Woken
) -> None:
    first, never_begun = Request("a"), Request("b")
    requests.step([first])
    woken.wait_until(lambda: first.awake)  # news that nobody took do not keep it
    requests.drop(first)
    requests.drop(never_begun)
    woken.wait_until(lambda: requests.free == 2)
    assert (elsewhere.begun, elsewhere.canceled) == (["a"], ["a"])
    requests.drop(first)  # again


def test_an_error_is_raised_for_its_request_alone(requests: RemoteRequests[Elsewhere], woken: Woken) -> None:
    bad, good = Request("bad"), Request("good")
    requests.step([bad, good])
    woken.wait_until(lambda: bad.ended and good.awake)
    for _ in range(2):
        with pytest.raises(InvalidInput):
            requests.step([good, bad])
    assert requests.step([good]) == [Continue(good, Output({"x": "half"}, partial=True))]


def test_closing_cancels_what_is_under_way(elsewhere: Elsewhere) -> None:
    requests = RemoteRequests(elsewhere.opened, elsewhere.ask, places=1, name="test")
    woken, request = Woken(), Request("a")
    requests.listen(woken)
    requests.step([request])
    woken.wait_until(lambda: request.awake)
    requests.close()
    assert (elsewhere.canceled, elsewhere.closed) == (["a"], True)


def test_an_engine_that_does_not_open_says_why() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ModelUnavailable("no memory")
        yield

    before = threading.active_count()
    with pytest.raises(ModelUnavailable, match="no memory"):
        RemoteRequests(broken, Elsewhere().ask, places=1, name="test")
    assert threading.active_count() == before
