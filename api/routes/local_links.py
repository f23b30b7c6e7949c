"""Signed links to the local object store: the counterpart of S3's presigned URLs."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from hashlib import file_digest, md5
from pathlib import Path
from typing import Literal

import anyio
from fastapi import APIRouter, Request, Response

from penstock.api.body import body_chunks
from penstock.api.routes.artifacts import FileDownload, download_headers
from penstock.api.services import Api, Services
from penstock.config import Settings
from penstock.errors import LinkRefused, MalformedBody, ObjectExists, PayloadTooLarge
from penstock.storage.objects.base import CHUNK_BYTES, ObjectInfo, ObjectStore
from penstock.storage.objects.local import LocalStore
from penstock.storage.signing import SignedLink, verify_link
from penstock.storage.spool import own_folder

router = APIRouter(prefix="/v1/local", include_in_schema=False)


@router.put("/{key:path}")
async def receive_object(key: str, request: Request, api: Api) -> Response:
    """Store an object under a signed link: exactly the signed size and content type."""
    link = _verified(api, "PUT", key, request)
    if link.part is not None:
        return await _receive_part(key, link.part, link, request, api)
    content_type = request.headers.get("content-type", "")
    if link.content_type != content_type or link.size_bytes is None:
        raise LinkRefused("the headers do not match the link; send exactly the headers that came with the link")
    async with _received(request, api.settings, link.size_bytes) as path:
        info = await asyncio.to_thread(_put_once, api.objects, key, path, content_type)
    return Response(headers={"ETag": f'"{info.etag}"'})


async def _receive_part(key: str, number: int, link: SignedLink, request: Request, api: Services) -> Response:
    async with _received(request, api.settings, link.size_bytes or 0) as path:
        digest = await asyncio.to_thread(_md5, path)
        given = request.headers.get("content-md5")
        if given is not None and given != base64.b64encode(digest).decode():
            raise MalformedBody("the body does not match its Content-MD5")
        part = await asyncio.to_thread(_local(api.objects).put_part, key, number, path, md5=digest.hex())
    return Response(headers={"ETag": f'"{part.etag}"'})


def _local(objects: ObjectStore) -> LocalStore:
    assert isinstance(objects, LocalStore)  # noqa: S101  (other stores serve their own links)
    return objects


def _md5(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, partial(md5, usedforsecurity=False)).digest()


@router.head("/{key:path}")
@router.get("/{key:path}")
async def send_object(key: str, request: Request, api: Api) -> Response:
    """Send the object of a signed link."""
    link = _verified(api, "GET", key, request)
    info = await asyncio.to_thread(api.objects.head, key)
    headers = download_headers(link.filename or key.rpartition("/")[2], etag=info.etag)
    return FileDownload(api.file(key), headers=headers, media_type=info.content_type)


def _put_once(objects: ObjectStore, key: str, path: Path, content_type: str) -> ObjectInfo:
    """Store the file where its link is unused: an object that jobs may refer to never changes.

    Accepts the same bytes again, as a retry after a lost response; raises `ObjectExists` for other bytes.
    """
    try:
        return objects.put_file(key, path, content_type=content_type, if_absent=True)
    except ObjectExists as error:
        if not _holds(objects, key, path):
            raise ObjectExists("another file was already sent to this link; request a new link") from error
        return objects.head(key)


def _holds(objects: ObjectStore, key: str, path: Path) -> bool:
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in objects.read(key)) and not file.read(1)


def _verified(api: Services, method: Literal["GET", "PUT"], key: str, request: Request) -> SignedLink:
    if api.settings.secret is None:
        raise LinkRefused
    secret = api.settings.secret.get_secret_value()
    return verify_link(secret, method, key, request.query_params, at=time.time())


@asynccontextmanager
async def _received(request: Request, settings: Settings, size_bytes: int) -> AsyncIterator[Path]:
    """Yield the body as a file of exactly this size, deleted after the block."""
    if int(request.headers.get("content-length", size_bytes)) > size_bytes:
        raise PayloadTooLarge(f"the link is for {size_bytes} bytes")
    with ExitStack() as held:
        scratch = await asyncio.to_thread(held.enter_context, own_folder(settings.spool_dir / "uploads"))
        path = scratch / "upload"
        await _write(body_chunks(request, idle_s=settings.body_idle_s), path, size_bytes)
        yield path


async def _write(body: AsyncIterator[bytes], path: Path, size_bytes: int) -> None:
    received, waiting = 0, bytearray()
    async with await anyio.open_file(path, "wb") as file:
        async for chunk in body:
            received += len(chunk)
            if received > size_bytes:
                raise PayloadTooLarge(f"the link is for {size_bytes} bytes")
            waiting += chunk
            if len(waiting) >= CHUNK_BYTES:  # each write costs a switch to a thread, so small chunks are combined
                await file.write(bytes(waiting))
                waiting.clear()
        await file.write(bytes(waiting))
    if received < size_bytes:
        raise MalformedBody(f"the file is incomplete: the link is for {size_bytes} bytes, {received} arrived")
