"""Connections of the HTTP API: uvicorn's protocol, with the door of admission control in front of it.

A refusal by the middleware costs 0.3 to 0.9 ms of processor time, most of it for reading the head and for a new
connection. Ten times the load that the API takes would leave no time for jobs (`docs/decisions/0046-overload.md`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from http import HTTPStatus

import h11
from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.api.admission.control import DOOR, Door, Visit
from penstock.api.admission.heads import Head, head_of
from penstock.api.connection import LONGEST_WAIT_S, no_turn
from penstock.api.errors import problem
from penstock.api.lingering import LingeringTransport
from penstock.api.short_cycle import CLOSING, ShortCycle
from penstock.errors import PenstockError
from penstock.patience import after_waiting
from penstock.reports import ErrorReport

#: Path of the submissions that reach the app without the HTTP library.
SHORT_PATH = "/v1/jobs"
#: States of a client that may still be sending, so that a connection which closes at once would lose the response.
_UNREAD = frozenset({h11.SEND_BODY, h11.ERROR})
_PHRASES = {each.value: each.phrase.encode() for each in HTTPStatus}
#: Bytes of a submission that are kept while it waits at the door.
MAX_HELD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _Held:
    """A submission whose head has arrived."""

    visit: Visit
    head: Head
    since_s: float
    data: bytes
    #: Size of the whole request.
    size_bytes: int

    @property
    def is_short(self) -> bool:
        """True for one submission of a job, all of which has arrived."""
        return self.visit.path == SHORT_PATH and self.visit.method == "POST" and len(self.data) == self.size_bytes


class Protocol(H11Protocol):
    """One connection. Refuses what the door refuses, and passes everything else to uvicorn's protocol."""

    #: A submission that waits at the door.
    _held: _Held | None = None
    #: Bytes of a refused request's body that have not arrived yet.
    _left_bytes = 0
    #: Data that arrived before the response to a short request was complete.
    _early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection that closes without losing a response."""
        self._lingering = LingeringTransport(transport, self.loop, lambda: self.conn.their_state in _UNREAD)
        super().connection_made(self._lingering)

    def data_received(self, data: bytes) -> None:
        """Refuse the request that begins here, or pass the data on."""
        if self._lingering.is_closing():
            return
        data = self._without_refused_body(data)
        if not data:
            return
        if self._early or (isinstance(self.cycle, ShortCycle) and not self.cycle.response_complete):
            self._early += data
            self.flow.pause_reading()
            return
        if self._held is not None:
            self._hold(self._held, data)
            return
        door = self._door
        head = head_of(data) if door is not None and self._is_between_requests else None
        visit = None if door is None or head is None else door.visit(head)
        if door is None or head is None or visit is None:
            super().data_received(data)
            return
        self._unset_keepalive_if_required()
        self._held = _Held(visit, head, self.loop.time(), data, head.size_bytes + head.body_bytes)
        door.turnstile.admit(self)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem, unless a response is under way, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            report = ErrorReport("bad_request", "Bad Request", f"The request cannot be read: {msg}", retryable=False)
            self.transport.write(self._written(problem(report, HTTPStatus.BAD_REQUEST, {"connection": "close"})))
        self.conn.send_failed()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    @property
    def is_refused(self) -> bool:
        """True where the submission that waits is refused at the moment."""
        return self._held is not None and self._door is not None and self._refusal(self._held, self._door) is not None

    def answer(self) -> None:
        """Refuse the submission that waits, or pass it on where it is not refused any more."""
        held, door = self._held, self._door
        if held is None or door is None or self.transport.is_closing():
            return
        left_bytes = held.size_bytes - len(held.data)
        error = self._refusal(held, door) if left_bytes >= 0 else None
        if error is None:
            self._pass_on()
            return
        self._held, self._left_bytes = None, left_bytes
        response = door.response(held.visit, error, self.loop.time() - held.since_s)
        self.transport.write(self._written(response))
        self.server_state.total_requests += 1
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _refusal(self, held: _Held, door: Door) -> PenstockError | None:
        """Return the error for a submission at the door, None for one that may pass."""
        is_late = self.loop.time() - held.since_s >= LONGEST_WAIT_S
        return no_turn() if is_late else door.refusal(held.visit)

    @property
    def _door(self) -> Door | None:
        door = self.app_state.get(DOOR)
        return door if isinstance(door, Door) else None

    @property
    def _is_between_requests(self) -> bool:
        """True where the next byte begins a request, and its response may be written."""
        return (
            self.conn.our_state is h11.IDLE
            and self.conn.their_state is h11.IDLE
            and not self.conn.trailing_data[0]
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
        )

    def _hold(self, held: _Held, data: bytes) -> None:
        """Keep more data of a request that waits, or pass all of it on where it is too much."""
        self._held = replace(held, data=held.data + data)
        if len(self._held.data) > MAX_HELD_BYTES:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            with after_waiting(self.loop.time() - held.since_s):
                if held.is_short:
                    self._begin(held)
                else:
                    super().data_received(held.data)

    def _begin(self, held: _Held) -> None:
        """Pass a short request to the app without the HTTP library, which takes a fifth of a submission's time."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": held.head.method,
            "root_path": self.root_path,
            "path": self.root_path + held.head.path,
            "raw_path": (self.root_path + held.head.path).encode("ascii"),
            "query_string": b"",
            "headers": list(held.head.fields.items()),
            "state": self.app_state.copy(),
        }
        cycle = ShortCycle(scope, held.data[held.head.size_bytes :], self._answer)
        self.cycle = cycle  # type: ignore[assignment]  # it has what H11Protocol uses of its own
        task = self.loop.create_task(cycle.run(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _answer(self, status: int, fields: list[tuple[bytes, bytes]], content: bytes) -> None:
        """Write the response to a short request, and go on with what has arrived meanwhile."""
        self.transport.write(self._response_bytes(status, fields, content))
        self.on_response_complete()
        early, self._early = self._early, b""
        if CLOSING in fields:
            self.transport.close()
        elif early:
            self.data_received(early)

    def _without_refused_body(self, data: bytes) -> bytes:
        body_bytes = min(self._left_bytes, len(data))
        self._left_bytes -= body_bytes
        return data[body_bytes:]

    def _written(self, response: Response) -> bytes:
        return self._response_bytes(response.status_code, response.raw_headers, bytes(response.body))

    def _response_bytes(self, status: int, fields: Sequence[tuple[bytes, bytes]], content: bytes) -> bytes:
        lines = [b"%s: %s\r\n" % field for field in (*self.server_state.default_headers, *fields)]
        return b"".join((_status_line(status), *lines, b"\r\n", content))


@cache
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n" % (status, _PHRASES.get(status, b""))
