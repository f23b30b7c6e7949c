"""Forms: `multipart/form-data` within size and time limits. Their files lie in the scratch folder meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from penstock.api.body import limited, require_type
from penstock.config import Settings
from penstock.errors import MalformedBody
from penstock.storage.objects.base import CHUNK_BYTES
from penstock.storage.spool import own_folder

FORM = "multipart/form-data"
#: Texts of a form besides its files.
MAX_FIELDS = 50
#: Bytes that the boundaries and heads of a form may take.
FRAME_BYTES = 100_000


class _SpoolingParser(MultiPartParser):
    """Starlette's parser with its files in the scratch folder, where a disk is meant for them."""

    def __init__(self, folder: Path, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._folder = folder

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if (part := self._current_part.file) is not None:
            part.file.close()
            file: Any = NamedTemporaryFile(dir=self._folder, delete=False)  # noqa: SIM115
            part.file = self._files_to_close_on_error[-1] = file


@asynccontextmanager
async def read_form(
    request: Request, *, limit_bytes: int, settings: Settings, max_files: int = 1, max_text_bytes: int = 2**20
) -> AsyncIterator[FormData]:
    """Yield the request's form; the files at `path_of` its files exist during the block.

    Raises `UnsupportedContentType`, `PayloadTooLarge` (counted as the body arrives), `BodyTimeout`, `ClientLeft` or
    `MalformedBody`, which a text of more than `max_text_bytes` is, too.
    """
    require_type(request.headers.get("content-type", ""), FORM)
    with ExitStack() as held:
        folder = await asyncio.to_thread(held.enter_context, own_folder(settings.spool_dir / "uploads"))
        parser = _SpoolingParser(
            folder, request.headers, _combined(limited(request, limit_bytes, settings.body_idle_s)),
            max_files=max_files, max_fields=MAX_FIELDS, max_part_size=max_text_bytes,
        )  # fmt: skip
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise MalformedBody(f"the form is malformed: {error.message}") from error
        try:
            yield form
        finally:
            await form.close()


def path_of(file: UploadFile) -> Path:
    """Return the path at which a file of a form lies."""
    return Path(file.file.name or "")


async def _combined(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the chunks in larger ones: each write of a file costs a switch to a thread."""
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= CHUNK_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)
