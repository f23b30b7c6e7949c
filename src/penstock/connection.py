"""How both clients speak HTTP: where to, for how long, and what an answer or its absence means."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx

from penstock import wire
from penstock.answers import ClientError, Unreachable
from penstock.wire import Reply, Request

DEFAULT_URL = "http://127.0.0.1:8080"
PATIENCE_S = 60.0
#: The service says something at least every 15 s on a stream of events.
STREAM_IDLE_S = 45.0
_ANSWER_S, _CONNECT_S = 30.0, 5.0


def options(base_url: str) -> dict[str, Any]:
    """Return what a service's address asks of an HTTP client; `ClientError` for what is none."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{base_url!r} is not the address of a service: http://host:port is meant")
    # A proxy of the environment is never meant for a service on this machine.
    return {"base_url": base_url, "trust_env": not _is_loopback(parts.hostname)}


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def checked_key(api_key: str | None) -> str | None:
    """Return the API key as it is sent; `ClientError` for what no header takes, such as a line break inside."""
    key = (api_key or "").strip()
    if not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
        raise ClientError("the API key (PENSTOCK_API_KEY) holds characters that no key has")
    return key or None


def stream(request: Request, api_key: str | None) -> dict[str, Any]:
    """Return a request as httpx takes it, without its body."""
    events = request.headers.get("Accept") == "text/event-stream"
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query) or None,
        "headers": _headers(request, api_key),
        "timeout": httpx.Timeout(STREAM_IDLE_S if events else _ANSWER_S + request.wait_s, connect=_CONNECT_S),
        # An artifact on S3 is a redirect to a signed link.
        "follow_redirects": request.save is not None,
    }


def _headers(request: Request, api_key: str | None) -> dict[str, str]:
    own = {}
    if api_key is not None and request.path.startswith("/"):  # a whole URL leads to an object store, signed in itself
        own["Authorization"] = f"Bearer {api_key}"
    if request.upload is not None:
        own["Content-Length"] = str(request.upload.size_bytes)
    elif request.save is not None:
        own["Accept-Encoding"] = "identity"  # a range is of the bytes as they are stored
    elif request.body is not None:
        own["Content-Type"] = "application/json"
    return {**own, **request.headers}


def body(request: Request) -> bytes | None:
    """Return a request's body, unless it is an upload."""
    return None if request.body is None else json.dumps(request.body).encode()


def streaming(response: httpx.Response) -> httpx.Response:
    """Return a response that is a stream of events, or raise the refusal in it; what is no stream was read before."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and kind == "text/event-stream":
        return response
    if response.status_code >= 300 and (
        error := wire.refusal(Reply(response.status_code, response.headers, response.content))
    ):
        raise error
    raise Unreachable(f"the answer is no stream of events (HTTP {response.status_code}): is this a Penstock service?")


@contextmanager
def cut_off(response: httpx.Response, after_s: float) -> Iterator[None]:
    """End the reading of a response in this block after so many seconds; httpx counts its timeouts from each piece."""
    stream = response.extensions.get("network_stream")
    if stream is None or after_s == math.inf:
        yield
        return
    timer = threading.Timer(after_s, _shut, [stream.get_extra_info("socket")])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # it was closed meanwhile
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # the thread that reads sees the end


def no_answer(base_url: httpx.URL, error: httpx.TransportError) -> Unreachable:
    """Return the error of a service that is not there."""
    reason = str(error) or type(error).__name__
    return Unreachable(f"no answer from {str(base_url).rstrip('/')}: {reason}")
