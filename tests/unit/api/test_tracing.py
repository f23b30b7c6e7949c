"""Trace context: valid and invalid values of `traceparent`."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import structlog
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from penstock.api.tracing import Tracing, traceparent
from penstock.observation import log

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "given", [VALID, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-more"]
)
def test_what_is_valid_counts(given: str) -> None:
    assert traceparent(Headers({"traceparent": given})) == given


@pytest.mark.parametrize(
    "given",
    [
        "", "x", VALID.upper(), f" {VALID} x", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1", f"{VALID}-more", f"00-{TRACE[1:]}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-{'x' * 100}",
        f"{VALID}\n",
    ],
)  # fmt: skip
def test_what_is_malformed_is_ignored(given: str) -> None:
    assert traceparent(Headers({"traceparent": given})) is None


def test_two_are_none() -> None:
    raw = [(b"traceparent", VALID.encode()), (b"traceparent", VALID.encode())]
    assert traceparent(Headers(raw=raw)) is None


@pytest.mark.parametrize(("given", "told"), [(VALID, TRACE), ("x", None)])
async def test_log_lines_and_the_answer_name_the_trace(given: str, told: str | None) -> None:
    async def app(_: Scope, _receive: Receive, send: Send) -> None:
        structlog.get_logger().info("something")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    sent: list[Message] = []
    out = StringIO()
    log.configure(stream=out)
    try:
        await Tracing(app)({"type": "http", "headers": [(b"traceparent", given.encode())]}, receive, send)
        structlog.get_logger().info("later")
    finally:
        log.configure()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line.get("trace_id") for line in lines] == [told, None]
    assert dict(sent[0]["headers"]).get(b"traceparent") == (VALID.encode() if told else None)
