"""File responses: byte ranges, and headers that keep a browser from executing a job's output."""

from __future__ import annotations

from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from penstock.storage.objects.base import content_disposition


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
    """A file response with `Range` and `If-Range` whose errors are problem+json."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; raise `HTTPException` before the first byte where the range is not satisfiable."""
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
