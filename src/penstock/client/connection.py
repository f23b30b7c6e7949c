"""HTTP for both clients: addresses, timeouts, headers, and errors of the connection."""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx2

from penstock.client import protocol
from penstock.client.answers import ClientError, Unreachable
from penstock.client.protocol import Reply, Request

DEFAULT_URL = "http://127.0.0.1:8080"
PATIENCE_S = 60.0
#: Seconds of silence that end a stream of events: the service sends something every 15 s.
STREAM_IDLE_S = 45.0
_ANSWER_S, _CONNECT_S = 30.0, 5.0


def options(base_url: str) -> dict[str, Any]:
    """Return the options of an HTTP client for a service's address; raise `ClientError` for an invalid address."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{base_url!r} is not the address of a service: write http://host:port")
    # A service on this machine is never reached through the environment's proxy.
    return {"base_url": base_url, "trust_env": not _is_loopback(parts.hostname)}


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


def stream(request: Request, api_key: str | None) -> dict[str, Any]:
    """Return httpx2's arguments for a request, without its body."""
    events = request.headers.get("Accept") == "text/event-stream"
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query) or None,
        "headers": _headers(request, api_key),
        "timeout": httpx2.Timeout(STREAM_IDLE_S if events else _ANSWER_S + request.wait_s, connect=_CONNECT_S),
        # An artifact on S3 is a redirect to a signed URL.
        "follow_redirects": request.save is not None,
    }


def _headers(request: Request, api_key: str | None) -> dict[str, str]:
    own = {}
    if api_key is not None and request.path.startswith("/"):  # a whole URL is a signed one of an object store
        own["Authorization"] = f"Bearer {api_key}"
    if request.upload is not None:
        own["Content-Length"] = str(request.upload.size_bytes)
    elif request.save is not None:
        own["Accept-Encoding"] = "identity"  # a range counts stored bytes
    elif request.body is not None:
        own["Content-Type"] = "application/json"
    return {**own, **request.headers}


def body(request: Request) -> bytes | None:
    """Return the JSON body of a request; None without one."""
    return None if request.body is None else json.dumps(request.body).encode()


def events(response: httpx2.Response) -> httpx2.EventSource:
    """Return the events of a response; raise the error of a response without events, whose body was read before."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and kind == "text/event-stream":
        return httpx2.EventSource(response, max_event_size=None)  # the first event is the whole job
    if response.status_code >= 300 and (error := protocol.refusal(reply(response, response.content))):
        raise error
    raise Unreachable(reply(response, b"").foreign)


def reply(response: httpx2.Response, body: bytes) -> Reply:
    """Return a response as the protocol's reply."""
    address = f"{response.url.scheme}://{response.url.netloc.decode('ascii')}"
    return Reply(response.status_code, response.headers, body, address)


def no_answer(base_url: httpx2.URL, error: httpx2.TransportError) -> Unreachable:
    """Return the error of a service that does not answer."""
    reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    address = str(base_url).rstrip("/")
    return Unreachable(f"no answer from {address}: {reason}", address=address)
