"""Request bodies: JSON read strictly, within limits, and described for OpenAPI."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from penstock.api.errors import issues
from penstock.config import Settings
from penstock.errors import BodyTimeout, InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedContentType

#: How deeply arrays and objects may be nested.
MAX_DEPTH = 64

ModelT = TypeVar("ModelT", bound=BaseModel)


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
    not UTF-8, not JSON, NaN or infinite numbers, NUL or lone surrogates in a string, nested too deeply.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedContentType("send application/json")
    return parse_json(await _read(request, settings.max_body_bytes, settings.body_idle_s))


def parse_json(data: bytes) -> Any:
    """Return strict JSON as Python data; raise `MalformedBody`."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        _check(value)
    except UnicodeDecodeError as error:
        raise MalformedBody("the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error.msg} at line {error.lineno}, {error.colno}") from error
    except RecursionError as error:
        raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise MalformedBody("the body holds a number that is too long") from error
    return value


def validated(model: type[ModelT], value: Any) -> ModelT:
    """Return the body as the model; raise `InvalidRequest` with a pointer for each field that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(errors=issues(error.errors(include_url=False, include_context=False))) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of the canonical form of a body: equal for equal JSON, whatever its layout."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says of a route that reads this model with `read_json`."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inline(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, limit_bytes: int, idle_s: float) -> bytes:
    data = bytearray()
    async for piece in pieces(request, idle_s=idle_s):
        data += piece
        if len(data) > limit_bytes:
            raise PayloadTooLarge(f"a body may hold {limit_bytes} bytes")
    return bytes(data)


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not JSON")


def _check(value: Any) -> None:
    depth, level = 0, _containers([value])
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedBody(f"the body is nested more than {MAX_DEPTH} deep")
        level = [part for item in level for part in _containers(item)]


def _containers(values: list[Any] | dict[str, Any]) -> list[list[Any] | dict[str, Any]]:
    """Return the arrays and objects directly inside; raise `MalformedBody` for the rest if it is no JSON."""
    inside = [*values, *values.values()] if isinstance(values, dict) else values
    for value in inside:
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise MalformedBody("the body holds a number that is too large")
    return [value for value in inside if isinstance(value, list | dict)]


def _check_text(text: str) -> None:
    # A lone surrogate is legal in JSON's escapes and in no encoding.
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise MalformedBody("a string holds a character that is not text")


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    return {key: _inline(part, definitions) for key, part in schema.items()}
