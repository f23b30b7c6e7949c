"""Framing: refusals reach clients that are still sending, and ambiguous lengths end their connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from penstock.api import framing
from penstock.api.framing import Framing

START: Message = {"type": "http.response.start", "status": 413, "headers": []}
END: Message = {"type": "http.response.body", "body": b"too large"}


def scope_of(*headers: tuple[bytes, bytes], target: str = "/v1/jobs") -> Scope:
    """Return the scope of a POST."""
    return {"type": "http", "method": "POST", "path": target, "raw_path": target.encode(), "headers": [*headers]}


class Wire:
    """A client and what it has seen; `parts` are those of its body."""

    def __init__(self, *parts: Message) -> None:
        self.parts = [*parts]
        self.seen: list[Any] = []

    async def receive(self) -> Message:
        """Return the next part, or wait for it for ever."""
        if not self.parts:
            await asyncio.Event().wait()
        self.seen.append("read")
        return self.parts.pop(0)

    async def send(self, message: Message) -> None:
        """Note a part of the response."""
        self.seen.append(message.get("body", message.get("status")))


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({**START, "headers": []})
    await send(END)


def part(*, more_body: bool) -> Message:
    return {"type": "http.request", "body": b"x", "more_body": more_body}


async def test_the_rest_of_a_body_is_read_after_its_refusal_and_before_the_end() -> None:
    wire = Wire(part(more_body=True), part(more_body=False))
    await Framing(refuse)(scope_of((b"content-length", b"2")), wire.receive, wire.send)
    assert wire.seen == [413, b"too large", "read", "read", b""]


async def test_a_client_that_leaves_ends_the_wait_for_its_body() -> None:
    wire = Wire(part(more_body=True), {"type": "http.disconnect"})
    await Framing(refuse)(scope_of((b"transfer-encoding", b"chunked")), wire.receive, wire.send)
    assert wire.seen == [413, b"too large", "read", "read", b""]


async def test_a_client_that_sends_no_more_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "LINGER_S", 0.01)
    wire = Wire(part(more_body=True))
    await Framing(refuse)(scope_of((b"content-length", b"9")), wire.receive, wire.send)
    assert wire.seen == [413, b"too large", "read", b""]


async def test_a_body_that_was_read_or_is_none_is_not_asked_for_again() -> None:
    async def read(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await refuse(_scope, receive, send)

    wire = Wire(part(more_body=False))
    await Framing(read)(scope_of((b"content-length", b"1")), wire.receive, wire.send)
    await Framing(refuse)(scope_of(), wire.receive, wire.send)
    assert wire.seen == ["read", 413, b"too large", 413, b"too large"]


@pytest.mark.parametrize("names", [(b"content-length",), (b"content-length", b"transfer-encoding")])
async def test_two_lengths_end_the_connection(names: tuple[bytes, ...]) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(name, b"1") for name in names]
    await Framing(refuse)(scope_of(*headers), Wire(part(more_body=False)).receive, send)
    assert ((b"connection", b"close") in sent[0]["headers"]) == (len(names) == 2)


async def test_a_target_with_a_host_becomes_a_path_of_this_host() -> None:
    seen: list[Scope] = []

    async def note(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    wire = Wire()
    await Framing(note)(scope_of((b"host", b"b"), target="HTTP://a:1/v1/%6aobs"), wire.receive, wire.send)
    await Framing(note)(scope_of((b"host", b"b"), target="http://a"), wire.receive, wire.send)
    assert [(each["path"], each["headers"]) for each in seen] == [
        ("/v1/jobs", [(b"host", b"a:1")]), ("/", [(b"host", b"a")]),
    ]  # fmt: skip
