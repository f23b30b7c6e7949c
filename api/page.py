"""Pages: the static files at `/ui`, bundled from `api/ui` by `make setup`, and those of FastAPI below `/docs`.

All have a strict content security policy: they run their own scripts only, and no page embeds them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.storage.objects.base import ObjectStore

PATH = "/ui"
DOCS = "/docs"
BUNDLE = Path(__file__).parent / "ui" / "dist"
#: `{store}`: the origin of the object store's signed links. Decoders of compressed rasters are WebAssembly out of
#: `data:`, and run in workers made of blobs.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; worker-src 'self' blob:; "
    "img-src 'self' blob: data:{store}; media-src 'self' blob:{store}; connect-src 'self' data:{store}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Swagger UI styles its elements in place and shows images as `data:`. `{scripts}`: the hashes of a page's own scripts.
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPT = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)
_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Penstock</title>
<h1>The page is not built</h1>
<p>The service runs, but the files of this page are missing. Install Node.js 18 or newer, then run
<code>make page</code> in the repository. The API works without the page: its documentation is at
<a href="/docs">/docs</a>.</p></html>
"""

log = structlog.get_logger(__name__)


class Page:
    """ASGI app that serves the bundle, or says how to build it.

    `objects` is the store whose signed links the page follows; None where they lead to this service.
    """

    def __init__(self, objects: ObjectStore | None, bundle: Path = BUNDLE) -> None:
        self._bundle = bundle
        self._objects = objects
        self._store: str | None = None
        self._files: ASGIApp = GZipMiddleware(StaticFiles(directory=bundle, html=True, check_dir=False))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file of the page."""
        built = (self._bundle / "index.html").is_file()
        answer = self._files if built else HTMLResponse(_NOT_BUILT, 503)
        policy = _POLICY.format(store=await self._store_origin())

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                _secure(message, policy)["cache-control"] = "no-cache"
            await send(message)

        await answer(scope, receive, send_safe)

    async def _store_origin(self) -> str:
        """Return the origin of signed links after a blank; empty for this service and unknown ones."""
        if self._objects is None:
            return ""
        if self._store is None:
            try:
                link = await asyncio.to_thread(self._objects.presign_get, "page", filename="page", expires_s=60)
            except PenstockError as error:
                log.warning("page.store_unknown", code=error.code)
                return ""
            parts = urlsplit(link)
            self._store = f" {parts.scheme}://{parts.netloc}"
        return self._store


class DocsHeaders:
    """ASGI middleware that adds a content security policy to `/docs`, with the hashes of a page's inline scripts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(f"{DOCS}/"):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_safe(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                is_page = MutableHeaders(scope=start).get("content-type", "").startswith("text/html")
                _secure(start, _docs_policy(message.get("body", b"") if is_page else b""))
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_safe)


def _docs_policy(page: bytes) -> str:
    """Return the content security policy of a page (empty for other content), which allows its inline scripts."""
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(page)]
    return _DOCS_POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in digests))


def _secure(start: Message, policy: str) -> MutableHeaders:
    """Add the policy to the start of a response; return its headers."""
    headers = MutableHeaders(scope=start)
    headers["content-security-policy"] = policy
    headers["x-frame-options"] = "DENY"
    headers["x-content-type-options"] = "nosniff"
    headers["referrer-policy"] = "no-referrer"
    return headers
