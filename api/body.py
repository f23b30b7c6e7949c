"""Request bodies: strict JSON within size and time limits, with its OpenAPI description."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from penstock.api.admission.rate_limit import FREE_BYTES
from penstock.api.auth import tenant_of
from penstock.api.connection import while_connected
from penstock.api.encodings import decoded, decoder_of
from penstock.api.services import Services
from penstock.errors import BodyTimeout, ClientLeft, PayloadTooLarge, UnsupportedContentType
from penstock.json_body import Document, ModelT, is_small, read_document, validated
from penstock.media_types import essence

T = TypeVar("T")

#: Characters of a request's `Content-Type`, at most: parsers of its parameters take quadratic time.
MAX_TYPE_CHARS = 1000


async def body_chunks(request: Request, *, idle_s: float) -> AsyncIterator[bytes]:
    """Yield the chunks of the body; raise `BodyTimeout` after `idle_s` seconds without data, or `ClientLeft`."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise BodyTimeout(f"no data arrived for {idle_s:g} s") from error
        except ClientDisconnect as error:
            raise ClientLeft("the connection closed before the body was complete") from error
        if chunk is None:
            return
        yield chunk


async def read_json(
    request: Request, api: Services, read: Callable[[Any], T], *, path: str | None = None
) -> Document[T]:
    """Return the request's JSON as `read` returns it, with its fingerprint (`read_document`).

    A large body is read in a process of its own; then `read` must be picklable.

    Raises `UnsupportedContentType`, `PayloadTooLarge` (counted as the body arrives), `BodyTimeout`, `ClientLeft`, the
    errors of `Isolation.run` and of `read`, or `MalformedBody`: not UTF-8, not JSON, a duplicate name in an object, NaN
    or infinite numbers, integers of more than 64 bits, NUL or lone surrogates in a string, too many names, or nested
    too deeply.
    """
    require_type(request.headers.get("content-type", ""), "application/json")
    tenant = tenant_of(request)
    data = await _read(request, api, tenant)
    if is_small(data):
        return read_document(read, data, path)
    return await while_connected(request, api.isolation.run(tenant, len(data), read_document, read, data, path))


async def read_model(request: Request, api: Services, model: type[ModelT]) -> Document[ModelT]:
    """Return the request's JSON as the model; raise the errors of `read_json` and `InvalidRequest`."""
    return await read_json(request, api, partial(validated, model))


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that a route reads with `read_json`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": json_schema(model)}}}}


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model without references."""
    schema = model.model_json_schema()
    inlined: dict[str, Any] = _inline(schema, schema.pop("$defs", {}))
    return inlined


async def _read(request: Request, api: Services, tenant: str) -> bytes:
    data, settings = bytearray(), api.settings
    async for chunk in limited(request, settings.body_limit_bytes(tenant), settings.body_idle_s):
        data += chunk
        if len(data) > FREE_BYTES:
            await api.pace.wait(tenant, len(chunk))
    return bytes(data)


async def limited(request: Request, limit_bytes: int, idle_s: float) -> AsyncGenerator[bytes]:
    """Yield the chunks of the body, decoded as its `Content-Encoding` names it.

    Raises `UnsupportedContentType` for other codings than `ACCEPTED`, `PayloadTooLarge` where the body has more than
    `limit_bytes`, encoded or decoded, `MalformedBody` and the errors of `body_chunks`.
    """
    decoder = decoder_of(request.headers.getlist("content-encoding"))
    chunks = _counted(body_chunks(request, idle_s=idle_s), limit_bytes)
    async for chunk in chunks if decoder is None else _counted(decoded(chunks, decoder), limit_bytes):
        yield chunk


async def _counted(chunks: AsyncIterator[bytes], limit_bytes: int) -> AsyncGenerator[bytes]:
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise PayloadTooLarge(f"the body exceeds the limit of {limit_bytes} bytes")
        yield chunk


def require_type(given: str, *wanted: str) -> None:
    """Raise `UnsupportedContentType` unless the value of `Content-Type` is one of the wanted media types."""
    if len(given) > MAX_TYPE_CHARS or essence(given) not in wanted:
        raise UnsupportedContentType(f"the Content-Type is not supported; send {' or '.join(wanted)}")


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _inline(part, definitions) for key, part in schema.items()}
