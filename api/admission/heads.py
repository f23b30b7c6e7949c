"""Heads of plain requests, read without an HTTP library, so that a refusal costs less than the library.

Only the usual form is read: HTTP/1.1, a plain path, `Host` and `Content-Length`, no field twice. The HTTP library reads
everything else and may reject it. A head that is read here is the one that the library reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Bytes of a head, at most.
MAX_HEAD_BYTES = 16_384
#: Bytes of a body, at most; the connection discards the body of a refused request.
MAX_BODY_BYTES = 1_000_000

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(
    rb"(POST|PUT) (/[A-Za-z0-9/_.~-]*) HTTP/1\.1\r\n((?:" + _TOKEN + rb":[\t\x20-\x7e]*\r\n)+)\r\n", re.DOTALL
)
_SIZE = re.compile(rb"[0-9]{1,7}")
#: Fields that change the framing, the connection or the response.
_SPECIAL = frozenset(
    {b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection", b"keep-alive", b"te", b"trailer"}
    | {b"traceparent", b"http2-settings"}
)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a POST or PUT."""

    method: str
    path: str
    #: The fields by their names in lower case; none is repeated.
    fields: dict[bytes, bytes]
    #: Size of the head, with the empty line at its end.
    size_bytes: int
    #: Size of the body.
    body_bytes: int


def head_of(data: bytes) -> Head | None:
    """Return the head of the one request that the data begins; None where the HTTP library must read the data."""
    found = _HEAD.match(data, 0, MAX_HEAD_BYTES)
    if found is None:
        return None
    pairs = [line.split(b":", 1) for line in found[3].split(b"\r\n")[:-1]]
    fields = {name.lower(): value.strip(b" \t") for name, value in pairs}
    if len(fields) < len(pairs) or not _SPECIAL.isdisjoint(fields) or b"host" not in fields:
        return None
    if not _SIZE.fullmatch(fields.get(b"content-length", b"")):
        return None
    if fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    head = Head(found[1].decode(), found[2].decode(), fields, found.end(), int(fields[b"content-length"]))
    is_alone = len(data) <= head.size_bytes + head.body_bytes
    return head if is_alone and head.body_bytes <= MAX_BODY_BYTES else None
