"""Forms: `multipart/form-data` within size and time limits. Their files lie in the scratch folder meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from penstock.api.body import limited, require_type
from penstock.config import Settings
from penstock.errors import MalformedBody, UnsupportedContentType
from penstock.media_types import is_media_type
from penstock.storage.objects.base import CHUNK_BYTES
from penstock.storage.spool import own_folder

FORM = "multipart/form-data"
#: Texts of a form besides its files.
MAX_FIELDS = 50
#: Bytes that the boundaries and heads of a form may take.
FRAME_BYTES = 100_000
#: The charset of a form's texts. A charset names any codec of Python; some take quadratic time, and none may be tried.
_CHARSETS = frozenset({b"utf-8", b"utf8"})
#: A quoted text, or one that never ends: each byte is looked at once.
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_EXTENDED_NAME = re.compile(rb";[ \t]*filename[ \t]*\*", re.IGNORECASE)
#: A name in any alphabet, percent-encoded UTF-8 (RFC 8187).
_UTF8_NAME = re.compile(rb";[ \t]*filename\*[ \t]*=[ \t]*utf-8'[a-z0-9-]*'([^; \t]+)", re.IGNORECASE)


class _SpoolingParser(MultiPartParser):
    """Starlette's parser with its files in the scratch folder. It is strict about a form's end, texts and names."""

    def __init__(self, folder: Path, headers: Headers, chunks: AsyncGenerator[bytes], **options: Any) -> None:
        super().__init__(headers, self._whole(chunks), **options)
        self._folder = folder
        self._ended = False

    async def _whole(self, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the chunks; raise `MultiPartException` if the closing boundary was not in them."""
        async for chunk in chunks:
            yield chunk
        if not self._ended:
            raise MultiPartException("its closing boundary is missing")

    def on_end(self) -> None:
        self._ended = True

    def on_part_end(self) -> None:
        if self._current_part.file is None:
            what = f"the text of the field {self._current_part.field_name!r}"
            _require_text(bytes(self._current_part.data), what, "; a file needs a filename")
        super().on_part_end()

    def on_headers_finished(self) -> None:
        extended = _extended_name(self._current_part.content_disposition or b"")
        if extended is not None:  # the base class reads `filename` alone
            self._current_part.content_disposition = (self._current_part.content_disposition or b"") + b"; filename="
        super().on_headers_finished()
        if extended is not None and self._current_part.file is not None:
            self._current_part.file.filename = extended
        _, options = parse_options_header(self._current_part.content_disposition)
        _require_text(options[b"name"], "the name of a field")
        part = self._current_part.file
        if part is None and _EXTENDED_NAME.search(_QUOTED.sub(b"", self._current_part.content_disposition or b"")):
            name = self._current_part.field_name
            raise MultiPartException(
                f"the part {name!r} has filename* alone, which is not filename*=UTF-8''NAME "
                "(percent-encoded); send that, or filename"
            )
        if part is not None:
            if part.content_type and not is_media_type(part.content_type):
                name = self._current_part.field_name
                raise MultiPartException(f"the Content-Type of the part {name!r} is not a media type")
            part.file.close()
            file: Any = NamedTemporaryFile(dir=self._folder, delete=False)  # noqa: SIM115
            part.file = self._files_to_close_on_error[-1] = file


@asynccontextmanager
async def read_form(
    request: Request, *, limit_bytes: int, settings: Settings, max_files: int = 1, max_text_bytes: int = 2**20
) -> AsyncIterator[FormData]:
    """Yield the request's form; the files at `path_of` its files exist during the block.

    Raises `UnsupportedContentType`, also for a charset other than UTF-8, `PayloadTooLarge` (counted as the body
    arrives), `BodyTimeout`, `ClientLeft` or `MalformedBody`, which a text of more than `max_text_bytes` is, too.
    """
    given = request.headers.get("content-type", "")
    require_type(given, FORM)
    _require_utf8(given)
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


def _extended_name(disposition: bytes) -> str | None:
    """Return the decoded `filename*` of a `Content-Disposition`; None without a valid one."""
    found = _UTF8_NAME.search(_QUOTED.sub(b"", disposition))
    try:
        return None if found is None else unquote_to_bytes(found[1]).decode()
    except UnicodeDecodeError:
        return None


def _require_text(data: bytes, what: str, hint: str = "") -> None:
    """Raise `MultiPartException` for what is not UTF-8; Starlette's parser reads it as Latin-1."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise MultiPartException(f"{what} is not UTF-8{hint}") from error


def _require_utf8(content_type: str) -> None:
    """Raise `UnsupportedContentType` for a charset other than UTF-8, as Starlette's parser reads it."""
    _, options = parse_options_header(content_type)
    if options.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise UnsupportedContentType("the charset of the form is not supported; send UTF-8, or no charset")


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
