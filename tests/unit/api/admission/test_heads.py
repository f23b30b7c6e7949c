"""Heads of plain requests are read as the HTTP library reads them, or not at all."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api.admission.heads import head_of

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
#: Parts of heads, and of what breaks them.
PIECES = st.sampled_from(
    [
        b"POST ", b"PUT ", b"GET ", b"/v1/jobs", b"/v1/jobs?x=1", b"/%61", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n",
        b"\r", b"Host: a", b"host:a", b"Content-Length: 2", b"content-length:\t2 ", b"Content-Length: +2",
        b"Content-Length: 2, 2", b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Connection: close",
        b"Connection: keep-alive", b"Expect: 100-continue", b"Idempotency-Key: k", b"X:", b"X: \x00", b" folded",
        b"X : y", b"{}", b"\r\n\r\n", b"Authorization: Bearer x", b"X: a \t  b ",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map(b"".join))
@example(HEAD + b"\r\n{}")
@example(b"PUT /v1/jobs/a HTTP/1.1\r\nhost:a\r\ncontent-length: \t2\t \r\nX:\r\n\r\n")
def test_a_head_that_is_read_is_what_the_library_reads(data: bytes) -> None:
    head = head_of(data)
    if head is None:
        return
    library = h11.Connection(h11.SERVER)
    library.receive_data(data[: head.size_bytes])
    request = library.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method.decode(), request.target.decode()) == (head.method, head.path)
    assert dict(request.headers) == head.fields
    body = b"x" * head.body_bytes
    library.receive_data(body)
    events = [library.next_event(), library.next_event()]
    assert body == b"".join(bytes(event.data) for event in events if isinstance(event, h11.Data))
    assert library.trailing_data[0] == b""
    assert not library.they_are_waiting_for_100_continue


def test_the_usual_head_is_read() -> None:
    head = head_of(HEAD + b"Connection: keep-alive\r\nAuthorization: Bearer x\r\n\r\n{")
    assert head is not None
    assert (head.method, head.path, head.fields[b"authorization"], head.body_bytes) == (
        "POST", "/v1/jobs", b"Bearer x", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"Transfer-Encoding: chunked", b"Content-Length: 2", b"Host: b", b"Connection: close", b"Upgrade: websocket",
     b"Expect: 100-continue", b"traceparent: 00", b"Content-Length : 2", b" folded",
     b"Authorization: a\r\nAuthorization: b"],
)  # fmt: skip
def test_a_special_head_is_left_to_the_library(line: bytes) -> None:
    assert head_of(HEAD + line + b"\r\n\r\n{}") is None


def test_blanks_within_a_field_cost_no_more_than_letters() -> None:
    blanks = b"X: a" + b" " * 1000 + b"b"
    head = head_of(HEAD + blanks + b" \r\n\r\n{}")
    assert head is not None
    assert head.fields[b"x"] == blanks[3:]
    # With a square of its length this one took hours.
    assert head_of(HEAD + b"X: a" + b" " * 1_000_000 + b"b\r\n\r\n{}") is None


@pytest.mark.parametrize("rest", [b"", b"\r\n{}G", b"\r\n{}GET / HTTP/1.1\r\n\r\n"])
def test_part_of_a_head_and_more_than_one_request_are_left_to_the_library(rest: bytes) -> None:
    assert head_of(HEAD + rest) is None
