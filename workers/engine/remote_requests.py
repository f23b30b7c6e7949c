"""Requests that another engine computes: tasks of one event loop, in a thread of its own.

A runner of `Elsewhere` keeps one `RemoteRequests` and passes it its prompts. The engine's scheduler begins requests and
takes the answers that are there; it never waits for one. The other engine is a server, or a library with an event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import ProcessorFailed
from penstock.processors.base import Output
from penstock.workers.engine.base import Continue, Done, Step

#: Seconds between two hand-overs of partial outputs: a server may send a thousand pieces of text in a second.
PARTIALS_EVERY_S = 0.03
#: Seconds that requests may take to end when the engine closes.
CLOSE_S = 5.0

Engine = TypeVar("Engine")
#: Hands over everything so far of a request's output.
Tell = Callable[[Output], None]
#: Asks an engine, and returns the final output. Canceled when the request is dropped.
Ask = Callable[[Engine, Any, Tell], Awaitable[Output]]


@dataclass(eq=False, slots=True)
class Request:
    """A prompt's request: the state of the engine's item. It begins with its first step."""

    asked: Any
    task: asyncio.Task[Output] | None = None
    begun: bool = False
    #: The latest partial output, and True once it may be handed over.
    partial: Output | None = None
    told: bool = False
    output: Output | None = None
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """True when the engine has answered or failed."""
        return self.output is not None or self.error is not None

    @property
    def awake(self) -> bool:
        """True if there is something to hand over."""
        return self.told or self.ended


class RemoteRequests(Generic[Engine]):
    """The requests of one model, at most `places` at a time. Construction opens the engine; `close` closes it."""

    def __init__(
        self, opening: Callable[[], AbstractAsyncContextManager[Engine]], ask: Ask[Engine], *, places: int, name: str,
        close_s: float = CLOSE_S,
    ) -> None:  # fmt: skip
        """Open the engine in the loop's thread; raise its error. It may take `close_s` seconds to close."""
        self._ask = ask
        self._close_s = close_s
        self._places = places
        self._lock = threading.Lock()
        self._active: set[Request] = set()
        #: Requests with partial outputs that were not told yet. Belongs to the loop.
        self._news: set[Request] = set()
        self._wake: Callable[[], None] = lambda: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._opened = opening()
        try:
            self._engine = self._in_loop(self._opened.__aenter__())
        except BaseException:
            self._end_loop()
            raise

    @property
    def free(self) -> int:
        """The number of requests that may begin."""
        with self._lock:
            return self._places - len(self._active)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` from the loop's thread when a request has news or a place is free."""
        self._wake = wake

    def step(self, requests: Sequence[Request]) -> list[Step]:
        """Begin the requests that did not, and return what has come; raise the error of a request that failed."""
        failed = next((request.error for request in requests if request.error is not None), None)
        if failed is not None:
            raise failed
        return [self._advance(request) for request in requests]

    def drop(self, request: Request) -> None:
        """End a request at once; its place is free when it has ended."""
        if request.begun and not request.ended:
            self._call(self._cancel, request)

    def close(self) -> None:
        """End all requests and the engine."""
        try:
            self._in_loop(self._end(), self._close_s)
        finally:
            self._end_loop()

    def _advance(self, request: Request) -> Step:
        if not request.begun:
            request.begun = True
            with self._lock:
                self._active.add(request)
            self._call(self._begin, request)
        elif request.output is not None:
            return Done(request.output)
        with self._lock:
            if not request.told:
                return Continue(request)
            partial, request.partial, request.told = request.partial, None, False
        return Continue(request, partial)

    # In the loop's thread

    def _begin(self, request: Request) -> None:
        def tell(output: Output) -> None:
            with self._lock:
                request.partial = output
            if not self._news:
                self._loop.call_later(PARTIALS_EVERY_S, self._hand_over)
            self._news.add(request)

        async def asking() -> Output:
            return await self._ask(self._engine, request.asked, tell)

        request.task = self._loop.create_task(asking())
        request.task.add_done_callback(lambda task: self._ended(request, task))

    def _hand_over(self) -> None:
        with self._lock:
            for request in self._news:
                request.told = request.partial is not None
        self._news.clear()
        self._wake()

    def _ended(self, request: Request, task: asyncio.Task[Output]) -> None:
        if task.cancelled():
            request.error = ProcessorFailed("the request was dropped")
        elif (error := task.exception()) is not None:
            request.error = error
        else:
            request.output = task.result()
        with self._lock:
            self._active.discard(request)
        self._wake()

    @staticmethod
    def _cancel(request: Request) -> None:
        if request.task is not None:
            request.task.cancel()

    async def _end(self) -> None:
        tasks = [request.task for request in self._active if request.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._opened.__aexit__(None, None, None)

    # From other threads

    def _call(self, function: Callable[[Request], None], request: Request) -> None:
        self._loop.call_soon_threadsafe(function, request)

    def _in_loop(self, work: Any, timeout_s: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()
