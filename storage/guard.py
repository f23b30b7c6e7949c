"""The guard: the one place that talks to addresses which users named, for inputs and for webhooks.

It resolves once, refuses a host unless every answer is public, and connects to the very address it checked, so that a
second answer of the name server changes nothing. `addresses.py` holds the rules.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import httpcore
import httpx
import structlog

from penstock.config import Settings
from penstock.errors import FetchFailed, MediaNotFound, MediaRefused, MediaTooLarge, MediaUnreadable
from penstock.storage.addresses import WebAddress, check_url, is_public, refusal
from penstock.storage.base import new_file

log = structlog.get_logger(__name__)

MAX_REDIRECTS = 3
#: Of a webhook receiver's answer: what is kept of its body.
MAX_ANSWER_BYTES = 64 << 10
USER_AGENT = "penstock"


_FAILED = "the server did not answer properly in time"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Answers that another try may change: timeouts, too early, too many; and every 5xx.
_PASSING = frozenset({408, 425, 429})
_HTTP_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    httpcore.ConnectionNotAvailable,
)

#: Looks a host up: (host, port) -> its addresses. Raises `OSError` or `UnicodeError` where there is none.
Resolver = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a fetch may take. A webhook has a total of its own."""

    connect_s: float = 10
    #: Between two pieces of the answer.
    idle_s: float = 30
    total_s: float = 3600


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came in: the bytes lie in the file that was asked for."""

    size_bytes: int
    etag: str | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """A webhook receiver's answer, whatever its status; of its body the first 64 KiB."""

    status: int
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class GuardedClient:
    """An HTTP client for addresses that users named. Safe to share between threads; keeps no connections.

    It takes nothing from the environment (no proxies, no .netrc), sends no cookies, decodes nothing.
    """

    settings: Settings
    resolver: Resolver = resolve
    patience: Patience = field(default_factory=Patience)
    #: None = the usual certificate authorities.
    tls: ssl.SSLContext | None = None

    def fetch(self, url: str, path: Path, limit_bytes: int) -> Fetched:
        """Download to a new file, over at most three redirects, each checked anew.

        Raises `MediaRefused`, `MediaNotFound` (4xx), `MediaTooLarge`, `MediaUnreadable` (an encoded body), and
        `FetchFailed` for what another try may mend. No file is left behind then.
        """
        ends = time.monotonic() + self.patience.total_s
        for _ in range(MAX_REDIRECTS + 1):
            address = self._checked(url, self.settings.fetch_any_public_host)
            headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
            with self._exchange("GET", address, headers, None, ends) as answer:
                answer_headers = _headers(answer)
                location = answer_headers.get("location")
                if answer.status not in _REDIRECTS or location is None:
                    return _save(answer, answer_headers, path, limit_bytes)
            url = _join(address, location)
        raise _logged("redirect.refused", url, refusal("too many redirects"))

    def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response:
        """Post to a webhook receiver and return its answer within the time; a redirect is returned, never followed.

        Host and User-Agent are the guard's own.
        Raises `MediaRefused`, and `FetchFailed` where no status came back.
        """
        address = self._checked(url, self.settings.webhook_any_public_host)
        with self._exchange("POST", address, headers, body, time.monotonic() + timeout_s) as answer:
            return Response(answer.status, _headers(answer), _beginning(answer))

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self.tls or httpx.create_ssl_context(trust_env=False)

    def _checked(self, url: str, any_public: bool) -> WebAddress:
        try:
            return check_url(url, self.settings.allowed_hosts, any_public)
        except MediaRefused as error:
            raise _logged("url.refused", url, error)  # noqa: B904  (it is the same error)

    def _addresses(self, address: WebAddress) -> Sequence[str]:
        try:
            found = self.resolver(address.host, address.port)
        except (OSError, UnicodeError) as error:
            log.info("resolve.failed", address=str(address), reason=str(error))
            raise FetchFailed(_FAILED) from error
        if not found:
            raise FetchFailed(_FAILED)
        if not address.exempt and not all(map(is_public, found)):
            raise _logged("address.refused", str(address), refusal(f"not every address is public: {', '.join(found)}"))
        return found

    @contextmanager
    def _exchange(
        self, method: str, address: WebAddress, headers: Mapping[str, str], body: bytes | None, ends: float
    ) -> Iterator[httpcore.Response]:
        backend = _PinnedBackend(self._addresses(address), ends)
        target = httpcore.URL(
            scheme=address.scheme.encode(),
            host=address.host.encode(),
            port=address.port,
            target=address.target.encode(),
        )
        timeouts = {"connect": self.patience.connect_s, "read": self.patience.idle_s, "write": self.patience.idle_s}
        try:
            with (
                httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
                pool.stream(
                    method,
                    target,
                    headers=[("Host", address.netloc), ("User-Agent", USER_AGENT), *headers.items()],
                    content=body,
                    extensions={"timeout": timeouts},
                ) as answer,
            ):
                yield answer
        except _HTTP_ERRORS as error:
            log.info("exchange.failed", address=str(address), reason=repr(error))
            raise FetchFailed(_FAILED) from error


class _PinnedBackend(httpcore.NetworkBackend):
    """Connects to the addresses that were checked, whatever the host's name says by now, until `ends`."""

    def __init__(self, addresses: Sequence[str], ends: float) -> None:
        self._addresses = addresses
        self._ends = ends
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002  (the point of it)
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                left = _left(self._ends, timeout, httpcore.ConnectTimeout)
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _TimedStream(stream, self._ends)
        raise failure


class _TimedStream(httpcore.NetworkStream):
    """A connection that is over at `ends`, however little of its idle time it uses."""

    def __init__(self, stream: httpcore.NetworkStream, ends: float) -> None:
        self._stream = stream
        self._ends = ends

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._ends, timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._ends, timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(self._ends, timeout, httpcore.ConnectTimeout)
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, left), self._ends)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(ends: float, timeout: float | None, late: type[Exception]) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise late("the whole time is over")
    return left if timeout is None else min(left, timeout)


def _headers(answer: httpcore.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}


def _save(answer: httpcore.Response, headers: Mapping[str, str], path: Path, limit_bytes: int) -> Fetched:
    if answer.status != 200:
        passing = answer.status >= 500 or answer.status in _PASSING
        raise (FetchFailed if passing else MediaNotFound)(f"the server answered {answer.status}")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise MediaUnreadable("the server sent an encoded body although none was asked for")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise MediaTooLarge
    with new_file(path) as file:
        size = _copy(answer, file, limit_bytes)
    etag = headers.get("etag", "").removeprefix("W/").strip('"')
    return Fetched(size, etag or None, headers.get("content-type"))


def _copy(answer: httpcore.Response, file: BinaryIO, limit_bytes: int) -> int:
    size = 0
    for chunk in answer.iter_stream():
        size += len(chunk)
        if size > limit_bytes:
            raise MediaTooLarge
        file.write(chunk)
    return size


def _beginning(answer: httpcore.Response) -> bytes:
    # The status is what counts: a body that ends in the middle does not undo a delivery.
    body = bytearray()
    with suppress(*_HTTP_ERRORS):
        for chunk in answer.iter_stream():
            body += chunk
            if len(body) >= MAX_ANSWER_BYTES:
                break
    return bytes(body[:MAX_ANSWER_BYTES])


def _join(address: WebAddress, location: str) -> str:
    try:
        return str(httpx.URL(address.url).join(location))
    except httpx.InvalidURL as error:
        raise _logged("redirect.refused", str(address), refusal("the redirect's URL is malformed")) from error


def _logged(event: str, url: str, error: MediaRefused) -> MediaRefused:
    log.warning(event, address=re.split(r"[?#]", url)[0][:200], reason="; ".join(error.__notes__))
    return error
