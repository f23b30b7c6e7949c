"""The local object store's own links: what presigned URLs are on S3."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from penstock.api.body import pieces
from penstock.api.files import FileDownload, download_headers
from penstock.api.services import Api, Services
from penstock.config import Settings
from penstock.errors import LinkRefused, MalformedBody, ObjectExists, PayloadTooLarge
from penstock.keys import Link, verify_link
from penstock.storage.base import CHUNK_BYTES, ObjectInfo, ObjectStore

router = APIRouter(prefix="/v1/local", include_in_schema=False)


@router.put("/{key:path}")
async def receive_object(key: str, request: Request, api: Api) -> Response:
    """Store what a signed link allows: exactly so many bytes of exactly this type."""
    link = _verified(api, "PUT", key, request)
    content_type = request.headers.get("content-type", "")
    if link.content_type != content_type or link.size_bytes is None:
        raise LinkRefused("send exactly the headers that came with the link")
    async with _received(request, api.settings, link.size_bytes) as path:
        info = await asyncio.to_thread(_put_once, api.objects, key, path, content_type)
    return Response(headers={"ETag": f'"{info.etag}"'})


@router.head("/{key:path}")
@router.get("/{key:path}")
async def send_object(key: str, request: Request, api: Api) -> Response:
    """Send the object that a signed link allows."""
    link = _verified(api, "GET", key, request)
    info = await asyncio.to_thread(api.objects.head, key)
    headers = download_headers(link.filename or key.rpartition("/")[2], etag=info.etag)
    return FileDownload(api.file(key), headers=headers, media_type=info.content_type)


def _put_once(objects: ObjectStore, key: str, path: Path, content_type: str) -> ObjectInfo:
    """Store the file unless its link was used before: what jobs may have been made on never changes.

    The same bytes again are the repeat of a lost answer; `ObjectExists` for others.
    """
    try:
        return objects.put_file(key, path, content_type=content_type, if_absent=True)
    except ObjectExists as error:
        if not _holds(objects, key, path):
            raise ObjectExists("another file was sent to this link before: ask for a new one") from error
        return objects.head(key)


def _holds(objects: ObjectStore, key: str, path: Path) -> bool:
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in objects.read(key)) and not file.read(1)


def _verified(api: Services, method: Literal["GET", "PUT"], key: str, request: Request) -> Link:
    if api.settings.secret is None:
        raise LinkRefused
    secret = api.settings.secret.get_secret_value()
    return verify_link(secret, method, key, request.query_params, at=time.time())


@asynccontextmanager
async def _received(request: Request, settings: Settings, size_bytes: int) -> AsyncIterator[Path]:
    """Give the body as a file of exactly this size, which ends with the block."""
    if int(request.headers.get("content-length", size_bytes)) > size_bytes:
        raise PayloadTooLarge(f"the link is for {size_bytes} bytes")
    folder = settings.spool_dir / "uploads"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "upload"
        try:
            await _write(pieces(request, idle_s=settings.body_idle_s), path, size_bytes)
        except ClientDisconnect as error:
            raise MalformedBody("the connection ended before the file did") from error
        yield path


async def _write(body: AsyncIterator[bytes], path: Path, size_bytes: int) -> None:
    received, waiting = 0, bytearray()
    async with await anyio.open_file(path, "wb") as file:
        async for chunk in body:
            received += len(chunk)
            if received > size_bytes:
                raise PayloadTooLarge(f"the link is for {size_bytes} bytes")
            waiting += chunk
            if len(waiting) >= CHUNK_BYTES:  # a thread is asked for each write: not for every few kilobytes
                await file.write(bytes(waiting))
                waiting.clear()
        await file.write(bytes(waiting))
    if received < size_bytes:
        raise MalformedBody(f"the link is for {size_bytes} bytes, {received} came")
