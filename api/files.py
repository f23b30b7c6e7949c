"""Files as responses: ranges, and headers that keep a browser from running what a job made."""

from __future__ import annotations

from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from penstock.storage.base import content_disposition


def download_headers(filename: str, *, etag: str) -> dict[str, str]:
    """Return the headers of a download that is saved as `filename`."""
    return {
        "Content-Disposition": content_disposition(filename),
        "ETag": f'"{etag}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-cache",
    }


class FileDownload(FileResponse):
    """A file with `Range` and `If-Range`, whose refusals are problems like all others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; raise `HTTPException` before anything was sent if its range cannot be had."""
        refusals: list[Message] = []

        async def unless_refused(message: Message) -> None:
            if message.get("status", 200) >= 400:
                refusals.append(message)
            if not refusals:
                await send(message)

        await super().__call__(scope, receive, unless_refused)
        if refusals:
            headers = {name.decode(): value.decode() for name, value in refusals[0]["headers"]}
            kept = {name: value for name, value in headers.items() if name == "content-range"}
            raise HTTPException(refusals[0]["status"], headers=kept)
