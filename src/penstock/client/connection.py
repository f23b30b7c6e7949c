"""HTTP for both clients: addresses, headers, timeouts, the errors in answers and those of the connection."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, TypedDict

import httpx2

from penstock.client.answers import ClientError, PenstockAPIError, Unreachable
from penstock.client.retries import retry_after_s
from penstock.client.uploads import Upload

DEFAULT_URL = "http://127.0.0.1:8080"
PATIENCE_S = 60.0
#: Seconds that a request is held open while a job runs.
LONG_POLL_S = 30.0
#: Seconds between calls of `on_job` and `on_batch`.
REPORT_EVERY_S = 1.0
#: Seconds of silence that end a stream of events: the service sends something every 15 s.
STREAM_IDLE_S = 45.0
_ANSWER_S, _CONNECT_S = 30.0, 5.0
#: Retryable error codes of an object store.
_S3_RETRYABLE = frozenset({"InternalError", "RequestTimeout", "SlowDown", "ServiceUnavailable", "BadDigest"})


class RequestOptions(TypedDict, total=False):
    """Options of a request beside its method and its path, which may be a whole URL."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    #: A JSON document.
    body: Any
    #: A local file as the body.
    upload: Upload
    #: Extra seconds for the answer, on top of the usual timeout.
    wait_s: float
    #: Set to end the tries of the request.
    stop: threading.Event


def held(wait_s: float) -> RequestOptions:
    """Return the options of a request that the service holds open for so many seconds; empty for 0."""
    return {"query": {"wait": f"{wait_s:g}"}, "wait_s": wait_s} if wait_s else {}


def options(base_url: str) -> dict[str, Any]:
    """Return the options of an HTTP client for a service's address; raise `ClientError` for an invalid address."""
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ClientError(f"{base_url!r} is not the address of a service: write http://host:port")
    # A service on this machine is never reached through the environment's proxy.
    return {"base_url": url, "trust_env": not _is_loopback(url.host)}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def checked_key(api_key: str | None) -> str | None:
    """Return the API key for the header; raise `ClientError` for characters that no header can carry."""
    key = (api_key or "").strip()
    if not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
        raise ClientError("the API key (PENSTOCK_API_KEY) contains characters that no key has")
    return key or None


def arguments(method: str, path: str, request: RequestOptions, api_key: str | None) -> dict[str, Any]:
    """Return httpx2's arguments for a request, without an upload's body."""
    headers, own = request.get("headers", {}), {}
    upload, body = request.get("upload"), request.get("body")
    if api_key is not None and path.startswith("/"):  # a whole URL is a signed one of an object store
        own["Authorization"] = f"Bearer {api_key}"
    if upload is not None:
        own["Content-Length"] = str(upload.size_bytes)
    elif body is not None:
        own["Content-Type"] = "application/json"
    events = headers.get("Accept") == "text/event-stream"
    answer_s = STREAM_IDLE_S if events else _ANSWER_S + request.get("wait_s", 0.0)
    return {
        "method": method,
        "url": path,
        "params": dict(request.get("query", {})) or None,
        "headers": {**own, **headers},
        "content": None if body is None else json.dumps(body).encode(),
        "timeout": httpx2.Timeout(answer_s, connect=_CONNECT_S),
    }


def events(response: httpx2.Response) -> httpx2.EventSource:
    """Return the events of a response; raise the error of a response without events, whose body was read before."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and kind == "text/event-stream":
        return httpx2.EventSource(response, max_event_size=None)  # the first event is the whole job
    if response.status_code != 200:
        check(response)
    raise Unreachable(_foreign(response))


def check(response: httpx2.Response) -> None:
    """Raise the `PenstockAPIError` in a response that was read; return for a success."""
    status, headers = response.status_code, response.headers
    if status < 300:
        return
    if status < 400:  # redirected: by a proxy to https, or by an object store to another region
        address = headers.get("location", "").partition("?")[0]  # the query may be a signature
        raise PenstockAPIError({"detail": f"the answer leads elsewhere ({address}): use it"}, status=status)
    try:
        found = json.loads(response.content)
    except ValueError:
        found = None
    known = isinstance(found, dict) and isinstance(found.get("code"), str)
    problem = found if known else _s3_problem(response) or {"detail": _foreign(response)}
    raise PenstockAPIError(problem, status=status, retry_after_s=retry_after_s(headers.get("retry-after")))


def _s3_problem(response: httpx2.Response) -> dict[str, Any]:
    """Return an object store's XML error as a problem; empty for any other body."""
    code = re.search(rb"<Code>(\w+)</Code>", response.content)
    if code is None:
        return {}
    name = code[1].decode()
    retryable = {"retryable": True} if name in _S3_RETRYABLE else {}
    detail = f"the object store answered {name} (HTTP {response.status_code})"
    return {"code": f"s3_{name}", "detail": detail, **retryable}


@contextmanager
def reading(response: httpx2.Response) -> Iterator[Any]:
    """Give the block a response's JSON; raise `Unreachable` where the block cannot read it: it is not Penstock's."""
    try:
        yield json.loads(response.content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreachable(_foreign(response)) from error


def _foreign(response: httpx2.Response) -> str:
    """Return the sentence about an answer that is not Penstock's: another server's, or a proxy's."""
    kinds = (response.headers.get("content-type", "").partition(";")[0], response.headers.get("server", ""))
    what = ", ".join([f"HTTP {response.status_code}", *(kind[:40] for kind in kinds if kind)])
    return (
        f"{response.url.scheme}://{response.url.netloc.decode('ascii')} is not Penstock, or stands before it: its "
        f"answer ({what}) is none of Penstock's; check the service's address (PENSTOCK_URL)"
    )


def no_answer(base_url: httpx2.URL, error: httpx2.RequestError) -> Unreachable:
    """Return the error of a service that does not answer, or whose answer is cut, garbled or redirected in a circle."""
    reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    address = str(base_url).rstrip("/")
    return Unreachable(f"no answer from {address}: {reason}", address=address)
