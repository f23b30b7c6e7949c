"""A web server with the schemes of access profiles and the faults of catalogues, on one port under several names.

* `data.example` wants the credentials of its `scheme`; `acme.blob.example` a signature, `bucket` keys of S3
* `sign.example` signs for containers, `login.example` is a login like that of Earthdata
* `other.example` wants nothing; redirects lead there
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.support.web_server import in_thread

NAMES = ("data.example", "acme.blob.example", "sign.example", "login.example", "other.example")
CONTENT = b"II*\0" + bytes(range(256)) * 8192
ETAG = '"first"'
USER, KEY_ID = "reader", "AKIDREADER"

Scheme = Literal["bearer", "basic", "header", "query", "planetary-computer", "earthdata", "earthdata-login", "s3"]
#: `throttle`, `drop` and `busy` pass after one request.
Fault = Literal["refuse", "redirect", "throttle", "drop", "busy", "long", "short"]
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass(frozen=True)
class Asked:
    """A request that the server got."""

    host: str
    method: str
    path: str
    headers: Mapping[str, str]

    def holds(self, secret: str) -> bool:
        """Return True if the request holds a secret, as it is or in a basic header."""
        pair = base64.b64encode(f"{USER}:{secret}".encode()).decode()
        text = f"{self.path} {json.dumps(dict(self.headers))}"
        return secret in text or pair in text


@dataclass
class AccessServer:
    """The state of the server."""

    scheme: Scheme
    secret: str
    #: Requests of the buckets must say that the reader pays.
    payer: bool = False
    fault: Fault | None = None
    content: bytes = CONTENT
    asked: list[Asked] = field(default_factory=list)
    #: Signatures and cookies that count; a test clears them.
    valid: set[str] = field(default_factory=set)
    #: Seconds for which a signature is valid by its own words.
    lasts_s: float = 3600
    #: Status of the signing service and the login.
    service_status: int = 200
    port: int = 0
    _count: int = 0

    @contextmanager
    def serve(self) -> Iterator[AccessServer]:
        """Serve on a free port."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.state = self  # type: ignore[attr-defined]
        self.port = server.server_port
        with in_thread(server):
            yield self

    def url(self, name: str, path: str = "") -> str:
        """Return an address at one of the names."""
        return f"http://{name}:{self.port}{path}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names with the port, for `allowed_hosts`."""
        return tuple(f"{name}:{self.port}" for name in NAMES)

    @property
    def reference(self) -> str:
        """The address of the file."""
        if self.scheme == "s3":
            return "s3://scenes/scene.tif"
        host = "acme.blob.example" if self.scheme == "planetary-computer" else "data.example"
        return self.url(host, "/scenes/scene.tif")

    def new(self, kind: str) -> str:
        """Return a new signature or cookie that counts."""
        self._count += 1
        made = f"{kind}{self._count}"
        self.valid.add(made)
        return made

    def at(self, host: str) -> list[Asked]:
        """Return the requests to a name."""
        return [each for each in self.asked if each.host == host]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _state(self) -> AccessServer:
        return self.server.state  # type: ignore[attr-defined, no-any-return]

    def do_GET(self) -> None:
        state, host = self._state, self.headers["Host"].partition(":")[0]
        state.asked.append(Asked(host, self.command, self.path, dict(self.headers)))
        match host:
            case "sign.example":
                self._sign()
            case "login.example":
                self._log_in()
            case "other.example":
                self._file()
            case _:
                self._guarded()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass

    def _guarded(self) -> None:
        state, query = self._state, {n: v[0] for n, v in parse_qs(urlsplit(self.path).query).items()}
        if state.scheme == "earthdata-login" and self.path.startswith("/login"):
            cookie = state.new("session")
            headers = {"Location": "/scenes/scene.tif", "Set-Cookie": f"{cookie}=1; Path=/; HttpOnly; Secure"}
            self._send(302 if query.get("code") in state.valid else 403, headers=headers)
        elif state.scheme == "earthdata-login" and not self._has_cookie():
            back = state.url("data.example", "/login")
            self._send(302, headers={"Location": state.url("login.example", f"/oauth/authorize?redirect_uri={back}")})
        elif state.fault == "refuse" or not self._is_known(query):
            self._send(403)
        else:
            self._faulty()

    def _has_cookie(self) -> bool:
        names = {part.strip().partition("=")[0] for part in self.headers.get("Cookie", "").split(";")}
        return bool(names & self._state.valid)

    def _is_known(self, query: Mapping[str, str]) -> bool:
        state, given = self._state, self.headers.get("Authorization", "")
        match state.scheme:
            case "bearer" | "earthdata":
                return given == f"Bearer {state.secret}"
            case "basic":
                return given == _basic(state.secret)
            case "header":
                return self.headers.get("X-Key") == state.secret
            case "query":
                return query.get("token") == state.secret
            case "planetary-computer":
                return query.get("sig") in state.valid
            case "s3":
                paid = not state.payer or self.headers.get("x-amz-request-payer") == "requester"
                return f"Credential={KEY_ID}/" in given and "/s3/aws4_request" in given and paid
            case _:
                return True

    def _sign(self) -> None:
        state = self._state
        ends = datetime.now(UTC) + timedelta(seconds=state.lasts_s)
        token = f"st=2026-01-01&se={ends:%Y-%m-%d}&sp=rl&sig={state.new('signature')}"
        body = json.dumps({"msft:expiry": ends.isoformat().replace("+00:00", "Z"), "token": token}).encode()
        self._send(state.service_status, body if state.service_status == 200 else b"", {"Retry-After": "11"})

    def _log_in(self) -> None:
        state, back = self._state, parse_qs(urlsplit(self.path).query).get("redirect_uri", [""])[0]
        if state.service_status != 200 or self.headers.get("Authorization") != _basic(state.secret):
            self._send(401 if state.service_status == 200 else state.service_status, b"<html>Log in</html>")
            return
        headers = {"Location": f"{back}?code={state.new('code')}", "Set-Cookie": "urs=own; Domain=.example; Path=/"}
        self._send(302, headers=headers)

    def _faulty(self) -> None:
        state, fault = self._state, None if self.command == "HEAD" else self._state.fault
        if fault in ("throttle", "drop", "busy"):
            state.fault = None
        match fault:
            case "redirect":
                self._send(302, headers={"Location": state.url("other.example", "/scene.tif?copied=1")})
            case "throttle":
                self._send(429, headers={"Retry-After": "7"})
            case "busy":
                self._send(503)
            case _:
                self._file(drops=fault == "drop")

    def _file(self, *, drops: bool = False) -> None:
        state, headers = self._state, {"ETag": ETAG, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        status, body = 200, state.content
        if wanted is not None:
            first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{len(body)}"
            body = body[first : last + 1]
        fault = None if self.command == "HEAD" else state.fault
        length = len(body) + {"short": -1, "long": 1}.get(fault or "", 0)
        self._send(status, body[: len(body) // 2] if drops else body[:length], headers, length)
        self.close_connection = True

    def _send(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}, length: int | None = None
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _basic(secret: str) -> str:
    return f"Basic {base64.b64encode(f'{USER}:{secret}'.encode()).decode()}"
