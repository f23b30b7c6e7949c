"""Headers of the pages below `/docs`: they run their own scripts only, and no page embeds them."""

from __future__ import annotations

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGES = "/docs"
#: Swagger UI styles its elements in place and shows images as `data:`.
_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPT = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


class PageHeaders:
    """ASGI middleware that adds a content security policy, with the hashes of a page's own inline scripts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{PAGES}/"):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_safe(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                headers = MutableHeaders(scope=start)
                is_page = headers.get("content-type", "").startswith("text/html")
                headers["content-security-policy"] = policy(message.get("body", b"") if is_page else b"")
                headers["x-frame-options"] = "DENY"
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_safe)


def policy(page: bytes) -> str:
    """Return the content security policy of a page (empty for other content), which allows its inline scripts."""
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(page)]
    return _POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in digests))
