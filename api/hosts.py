"""The host check: without API keys, only requests to this service's own names and from its own pages are served.

Otherwise a page could reach the service under a name of its own that resolves to loopback (DNS rebinding).
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.errors import error_response, status_of
from penstock.config import Settings, is_loopback
from penstock.errors import HostRefused, OriginRefused, PenstockError

#: Methods that change nothing.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: A host name, an IPv4 or a bracketed IPv6 address, and a port (RFC 9112, without the forms that nobody needs here).
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?")
MAX_PORT = 65535


class HostCheck:
    """ASGI middleware that refuses other hosts and cross-origin writes, on every path."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._own = urlsplit(settings.base_url).hostname
        self._origins = frozenset(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it in the error format of its interface."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(Request(scope), refusal, status_of(refusal))(scope, receive, send)

    def _refusal(self, scope: Scope) -> PenstockError | None:
        """Return the error for a request of another host or origin; None for one that is served."""
        headers = Headers(scope=scope)
        host = headers.get("host")
        # Only programs send no host.
        if host is not None and not self._is_served(host):
            return HostRefused(f"the host name {host[:300]!r} is not served here; set public_url if it should be")
        is_named = headers.get("origin") in self._origins
        if scope["method"] not in _SAFE and not is_named and _is_cross_origin(headers):
            return OriginRefused(
                "the request comes from another origin's page; "
                "without API keys only this service's pages may change data (and those of cors_origins)"
            )
        return None

    def _is_served(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (is_loopback(name) or name == self._own)


def host_name(host: str) -> str | None:
    """Return the name or address in a `Host` in lower case, without brackets; None for an invalid value."""
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > MAX_PORT:
        return None
    return found["name"].strip("[]").lower()


def _is_cross_origin(headers: Headers) -> bool:
    """Return True for a browser's request from another origin's page. Programs send neither of these headers."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")
