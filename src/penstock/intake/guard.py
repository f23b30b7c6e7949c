"""The guard: the only code that connects to addresses from users, for inputs and webhooks.

The guard resolves a host once, rejects the host unless all its addresses are public, and connects to exactly these
addresses: a later answer of the name server has no effect. `addresses.py` has the rules.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import httpcore2
import httpx2
import structlog

from penstock.client.retries import retry_after_s
from penstock.config import Settings
from penstock.errors import (
    FetchFailed,
    MediaChanged,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    MediaUnreadable,
    Unreached,
)
from penstock.intake.addresses import WebAddress, check_url, is_public, joined, operator_address, refusal
from penstock.intake.connections import (
    Bounds,
    LeastRate,
    PinnedBackend,
    Resolver,
    look_up,
    no_check,
)
from penstock.intake.credentials import Credentials, is_passing
from penstock.storage.objects.base import new_file

log = structlog.get_logger(__name__)

#: Bytes of a webhook receiver's or a signing service's response that are kept.
MAX_ANSWER_BYTES = 64 << 10
USER_AGENT = "penstock"

#: Scheme and host of a URL, which may be malformed, for the log.
_ORIGIN = re.compile(r"(?i)[a-z]{1,20}://[^/?#@\\\s]{1,200}(?![^/?#\\\s])")
_FAILED = "the server did not respond properly in time"
#: Reasons shown for hosts that the operator allowed; the first match counts.
_REASONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((ConnectionRefusedError,), "the connection was refused"),
    ((socket.gaierror, UnicodeError), "the host's name was not found"),
    ((ssl.SSLError,), "the TLS handshake failed"),
    ((TimeoutError, httpcore2.TimeoutException), "the server did not respond in time"),
    ((httpcore2.ConnectError,), "the connection could not be made"),
    ((Exception,), "the server did not respond properly"),
)
_CONTENT_RANGE = re.compile(r"bytes (?P<start>\d{1,18})-(?P<last>\d{1,18})/(?P<size>\d{1,18})")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Redirects after which a request keeps its method and its body.
_REPEATS = frozenset({307, 308})
#: Seconds that a signing service may take.
_SERVICE_S = 30.0
_HTTP_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.UnsupportedProtocol,
    httpcore2.ConnectionNotAvailable,
)


def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host with the system's resolver."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The time limits of a fetch. A webhook has its own total limit."""

    connect_s: float = 10
    #: Seconds between two parts of the response.
    idle_s: float = 30
    total_s: float = 3600
    #: Seconds of waiting over which the least rate of a server holds: servers that begin late still pass.
    rate_window_s: float = 30


@dataclass(frozen=True, slots=True)
class Fetched:
    """A download: its bytes lie in the requested file."""

    size_bytes: int
    etag: str | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """A range of a file on the web, or the whole file from a server without ranges."""

    #: Size of the whole file.
    size_bytes: int
    #: Strong etag of the file; None if the server gives none: further ranges could then be of another version.
    etag: str | None
    #: Received bytes.
    received_bytes: int
    #: True if the server sent the whole file.
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A response with any status; that of a webhook receiver is cut to 64 KiB."""

    status: int
    #: Headers, with names in lower case.
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the server wants to be asked again, if it says so."""
        return retry_after_s(self.headers.get("retry-after"))


@dataclass(frozen=True)
class GuardedClient:
    """An HTTP client for addresses from users. Safe to share between threads; keeps no connections.

    It reads nothing from the environment (no proxies, no .netrc), sends no cookies, decodes nothing.
    """

    settings: Settings
    resolver: Resolver = resolve
    patience: TimeLimits = field(default_factory=TimeLimits)
    #: TLS settings; None = the usual certificate authorities.
    tls: ssl.SSLContext | None = None

    def least_rate(self) -> LeastRate:
        """Return the least rate of a server, for all requests for one file."""
        return LeastRate(self.settings.fetch_bytes_per_s, self.patience.rate_window_s)

    def fetch(
        self, url: str, path: Path, limit_bytes: int, *, tenant: str | None = None,
        check: Callable[[], None] = no_check,
    ) -> Fetched:  # fmt: skip
        """Download to a new file, over at most three redirects, each of which is checked.

        The access profiles of `tenant` apply; None = no credentials. `check` is called between two parts, at least
        every `idle_s`; any error it raises ends the download. A server below the least rate of `least_rate` is
        `FetchFailed` too, with the rate.
        Raises `MediaRefused` (also for refused credentials), `MediaNotFound` (4xx), `MediaTooLarge`, `MediaUnreadable`
        (an encoded body), and the retryable `FetchFailed` (`Unreached` if the reason may be shown). After an error the
        file does not exist.
        """
        with self._answer(url, {}, limit_bytes, tenant, check, self.least_rate()) as answer:
            return _save(answer, _headers(answer), path, limit_bytes)

    def fetch_part(
        self, url: str, file: BinaryIO, start: int, end: int, *, limit_bytes: int, etag: str | None = None,
        tenant: str | None = None, check: Callable[[], None] = no_check, rate: LeastRate | None = None,
    ) -> FetchedPart:  # fmt: skip
        """Download the bytes from `start` to before `end` to the same place of an open file, as `fetch` does.

        With `etag`, raise `MediaChanged` for a file that has another etag by now. A server without ranges sends the
        whole file, of at most `limit_bytes`; with `etag` this is an error. A file that ends before `end` gives fewer
        bytes. `rate` is the least rate of all requests for the file; None = of this request alone.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"} | ({} if etag is None else {"If-Match": f'"{etag}"'})
        with self._answer(url, headers, limit_bytes, tenant, check, rate or self.least_rate()) as answer:
            return _save_part(answer, _headers(answer), file, range(start, end), etag, limit_bytes)

    def ask(
        self, url: str, limit_bytes: int, *, tenant: str | None = None, body: bytes | None = None,
        check: Callable[[], None] = no_check,
    ) -> Response:  # fmt: skip
        """Return the response to a GET with any status, or to a POST of a JSON `body`, as `fetch` downloads it.

        Raises the errors of `fetch`; of the statuses, only refused credentials are an error.
        """
        headers = {"Accept": "application/json, */*"} | ({} if body is None else {"Content-Type": "application/json"})
        with self._answer(url, headers, limit_bytes, tenant, check, self.least_rate(), body) as answer:
            whole = bytearray()
            for chunk in answer.iter_stream():
                whole += chunk
                if len(whole) > limit_bytes:
                    raise MediaTooLarge.beyond(limit_bytes)
            return Response(answer.status, _headers(answer), bytes(whole))

    def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response:
        """Post to a webhook receiver and return its response within the time; redirects are returned, never followed.

        The guard sets Host and User-Agent.
        Raises `MediaRefused`, and `FetchFailed` if no status was received (`Unreached` if the reason may be shown).
        """
        address = self._checked(url, self.settings.webhook_any_public_host)
        bounds = Bounds(time.monotonic() + timeout_s)
        with self._exchange("POST", address, headers, body, bounds) as answer:
            bounds.expect(MAX_ANSWER_BYTES)
            return Response(answer.status, _headers(answer), _beginning(answer))

    @contextmanager
    def _answer(
        self, url: str, headers: Mapping[str, str], limit_bytes: int, tenant: str | None, check: Callable[[], None],
        rate: LeastRate, body: bytes | None = None,
    ) -> Iterator[httpcore2.Response]:  # fmt: skip
        """Yield the answer to a request over a few redirects, with a body of at most `limit_bytes`."""
        ends, session, redirects = time.monotonic() + self.patience.total_s, self._credentials.session(tenant), 0
        while redirects <= session.max_redirects:
            address = self._checked(url, self.settings.fetch_any_public_host, session.opens)
            bounds, made = Bounds(ends, check, rate=rate), session.request(address)
            sent = {"Accept": "*/*", "Accept-Encoding": "identity", **headers, **made.headers}
            method = "GET" if body is None else "POST"
            with self._exchange(method, replace(address, target=made.target), sent, body, bounds) as answer:
                if session.heard(address, answer.status, _cookies(answer)):
                    continue
                location = _headers(answer).get("location")
                if answer.status not in _REDIRECTS or location is None:
                    if (refused := session.refusal(address, answer.status)) is not None:
                        raise refused
                    bounds.expect(limit_bytes)
                    yield answer
                    return
                if body is not None and answer.status not in _REPEATS:
                    raise FetchFailed(f"the server redirected a POST with status {answer.status}")
            url, redirects = self._next(address, location), redirects + 1
        raise _logged("redirect.refused", url, refusal("too many redirects"))

    @cached_property
    def _credentials(self) -> Credentials:
        return Credentials(self.settings.access_profiles, self._ask_service)

    def _ask_service(self, url: str, headers: Mapping[str, str]) -> Response:
        """Return the response of a profile's service, whose address is the operator's, and so need not be public."""
        bounds, sent = Bounds(time.monotonic() + _SERVICE_S), {"Accept": "application/json", **headers}
        with self._exchange("GET", operator_address(url), sent, None, bounds) as answer:
            bounds.expect(MAX_ANSWER_BYTES)
            return Response(answer.status, _headers(answer), _beginning(answer))

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self.tls or httpx2.create_ssl_context(trust_env=False)

    def _checked(self, url: str, any_public: bool, opens: Callable[[WebAddress], bool] = lambda _: False) -> WebAddress:
        try:
            return check_url(url, self.settings.allowed_hosts, any_public, opens)
        except MediaRefused as error:
            raise _logged("url.refused", url, error)  # noqa: B904  (it is the same error)

    def _next(self, address: WebAddress, location: str) -> str:
        try:
            return joined(address.url, location)
        except MediaRefused as error:
            raise _logged("redirect.refused", address.url, error)  # noqa: B904  (it is the same error)

    def _addresses(self, address: WebAddress, bounds: Bounds) -> Sequence[str]:
        wait_s, begun_s = bounds.left_s(self.patience.connect_s, httpcore2.ConnectTimeout), time.monotonic()
        try:
            found = look_up(self.resolver, address.host, address.port, wait_s)
        except (OSError, UnicodeError) as error:
            log.info("resolve.failed", address=str(address), reason=repr(error))
            raise _failure(address, error) from error
        finally:
            bounds.waited(begun_s)
        if not found:
            raise _failure(address, socket.gaierror())
        if not address.exempt and not all(map(is_public, found)):
            raise _logged("address.refused", str(address), refusal(f"not every address is public: {', '.join(found)}"))
        return found

    @contextmanager
    def _exchange(
        self, method: str, address: WebAddress, headers: Mapping[str, str], body: bytes | None, bounds: Bounds
    ) -> Iterator[httpcore2.Response]:
        target = httpcore2.URL(
            scheme=address.scheme.encode(),
            host=address.host.encode(),
            port=address.port,
            target=address.target.encode(),
        )
        timeouts = {"connect": self.patience.connect_s, "read": self.patience.idle_s, "write": self.patience.idle_s}
        tls = self._tls if address.scheme == "https" else None
        try:
            backend = PinnedBackend(self._addresses(address, bounds), bounds)
            with (
                httpcore2.ConnectionPool(ssl_context=tls, network_backend=backend) as pool,
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
            raise _failure(address, error) from error


def _failure(address: WebAddress, error: Exception) -> FetchFailed:
    """Return the error for a missing response: with its reason only for hosts that the operator allowed."""
    if not address.exempt:
        return FetchFailed(_FAILED)
    causes = (*error.args, error)  # httpcore2's errors hold the system's, and its pool cuts off their `__cause__`
    return Unreached(next(said for kinds, said in _REASONS if any(isinstance(cause, kinds) for cause in causes)))


def _headers(answer: httpcore2.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}


def _cookies(answer: httpcore2.Response) -> list[str]:
    return [value.decode("latin-1") for name, value in answer.headers if name.lower() == b"set-cookie"]


def _save_part(
    answer: httpcore2.Response, headers: Mapping[str, str], file: BinaryIO, part: range, etag: str | None,
    limit_bytes: int,
) -> FetchedPart:  # fmt: skip
    if answer.status == 412 or (etag is not None and answer.status == 200):
        raise MediaChanged("the file has changed since its first bytes were fetched")
    strong = headers.get("etag", "")
    found = strong.strip('"') if strong.startswith('"') else None
    if answer.status == 200:
        _check_body(answer, headers, limit_bytes)
        file.seek(0)
        size = _copy(answer, file, limit_bytes)
        return FetchedPart(size, found, size, whole=True)
    _check_body(answer, headers, limit_bytes, expected=206)
    sent = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if sent is None or int(sent["start"]) != part.start or not part.start <= int(sent["last"]) < part.stop:
        raise FetchFailed("the server sent another range than the one requested")
    if etag is not None and found != etag:
        raise MediaChanged("the file has changed since its first bytes were fetched")
    file.seek(part.start)
    received = _copy(answer, file, int(sent["last"]) + 1 - part.start)
    if received != int(sent["last"]) + 1 - part.start:
        raise FetchFailed("the server sent fewer bytes than it announced")
    return FetchedPart(int(sent["size"]), found, received)


def _check_body(
    answer: httpcore2.Response, headers: Mapping[str, str], limit_bytes: int, *, expected: int = 200
) -> None:
    """Raise the error for an answer with another status, with an encoded body, or with one that is too large."""
    if answer.status != expected:
        wait_s = retry_after_s(headers.get("retry-after"))
        kind = FetchFailed if is_passing(answer.status) else MediaNotFound
        raise kind(f"the server responded with status {answer.status}", retry_after_s=wait_s)
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise MediaUnreadable("the server sent an encoded body although none was requested")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise MediaTooLarge.beyond(limit_bytes)


def _save(answer: httpcore2.Response, headers: Mapping[str, str], path: Path, limit_bytes: int) -> Fetched:
    _check_body(answer, headers, limit_bytes)
    with new_file(path) as file:
        size = _copy(answer, file, limit_bytes)
    etag = headers.get("etag", "").removeprefix("W/").strip('"')
    return Fetched(size, etag or None, headers.get("content-type"))


def _copy(answer: httpcore2.Response, file: BinaryIO, limit_bytes: int) -> int:
    size = 0
    for chunk in answer.iter_stream():
        size += len(chunk)
        if size > limit_bytes:
            raise MediaTooLarge.beyond(limit_bytes)
        file.write(chunk)
    return size


def _beginning(answer: httpcore2.Response) -> bytes:
    # Only the status counts: a body that is cut off does not undo a delivery.
    body = bytearray()
    with suppress(*_HTTP_ERRORS):
        for chunk in answer.iter_stream():
            body += chunk
            if len(body) >= MAX_ANSWER_BYTES:
                break
    return bytes(body[:MAX_ANSWER_BYTES])


def _logged(event: str, url: str, error: MediaRefused) -> MediaRefused:
    asked = _ORIGIN.match(url)
    log.warning(event, address=asked[0] if asked else None, reason="; ".join(error.__notes__))
    return error
