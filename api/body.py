"""Request bodies: JSON read strictly, forms with files, both within limits, and described for OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser

from penstock.api.auth import tenant_of
from penstock.config import Settings
from penstock.documents import parse_json
from penstock.errors import BodyTimeout, MalformedBody, PayloadTooLarge, UnsupportedContentType

#: Of a form, beside its file.
MAX_FIELDS = 50


async def pieces(request: Request, *, idle_s: float) -> AsyncIterator[bytes]:
    """Yield the request's body as it comes; `BodyTimeout` where nothing more came for `idle_s`."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                piece = await anext(stream, None)
        except TimeoutError as error:
            raise BodyTimeout(f"nothing came for {idle_s:g} s") from error
        if piece is None:
            return
        yield piece


async def read_json(request: Request, *, settings: Settings) -> Any:
    """Return the request's JSON.

    Raises `UnsupportedContentType`, `PayloadTooLarge` (counted while it streams in), `BodyTimeout` or `MalformedBody`:
    not UTF-8, not JSON, a name twice in one object, NaN or infinite numbers, integers of more than 64 bits, NUL or lone
    surrogates in a string, nested too deeply.
    """
    _require_type(request, "application/json")
    limit_bytes = settings.body_limit_bytes(tenant_of(request))
    return parse_json(await _read(request, limit_bytes, settings.body_idle_s))


@asynccontextmanager
async def read_form(request: Request, *, limit_bytes: int, settings: Settings) -> AsyncIterator[FormData]:
    """Give the request's form; what is long of its files lies on disk, and is gone after the block.

    Raises `UnsupportedContentType`, `PayloadTooLarge` (counted while it streams in), `BodyTimeout` or `MalformedBody`.
    """
    _require_type(request, "multipart/form-data")
    stream = _counted(request, limit_bytes, settings.body_idle_s)
    try:
        form = await MultiPartParser(request.headers, stream, max_files=1, max_fields=MAX_FIELDS).parse()
    except MultiPartException as error:
        raise MalformedBody(f"the form cannot be read: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says of a route that reads this model with `read_json`."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inline(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, limit_bytes: int, idle_s: float) -> bytes:
    data = bytearray()
    async for piece in _counted(request, limit_bytes, idle_s):
        data += piece
    return bytes(data)


async def _counted(request: Request, limit_bytes: int, idle_s: float) -> AsyncGenerator[bytes]:
    size_bytes = 0
    async for piece in pieces(request, idle_s=idle_s):
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise PayloadTooLarge(f"a body may hold {limit_bytes} bytes")
        yield piece


def _require_type(request: Request, wanted: str) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise UnsupportedContentType(f"send {wanted}")


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _inline(part, definitions) for key, part in schema.items()}
