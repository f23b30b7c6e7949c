"""Uploads, single and in parts, and downloads of several files at once."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.client.answers import Artifact, PenstockAPIError, Unreachable
from penstock.client.asynchronous.service import AsyncPart
from penstock.client.connection import reading
from penstock.client.downloads import Save, places
from penstock.client.options import OnBytes, key_header
from penstock.client.tasks import in_thread, together
from penstock.client.uploads import (
    COMPLETE_S,
    MULTIPART_FROM_BYTES,
    TransferProgress,
    Upload,
    UploadNote,
    check_unchanged,
    file_digest,
    file_size,
    has_arrived,
    parts_of,
    upload_body,
    upload_key,
)
from penstock.multipart import joined_etag

#: Files, or parts of a file, that are transferred at once.
AT_A_TIME = 4


class AsyncFiles(AsyncPart):
    """The methods that send and fetch files."""

    async def upload(self, path: str | Path, *, on_bytes: OnBytes | None = None) -> str:
        """Send a local file and return its `media://` reference. A large file is sent in parts, several at once.

        With a `state_dir` any process resumes an interrupted upload by sending the same file again.
        """
        return await self._upload(Path(path), on_bytes, None)

    async def _upload(self, path: Path, on_bytes: OnBytes | None, key: str | None) -> str:
        """Send a file and return its reference. The same `key` and bytes are sent once and get the same reference."""
        size = file_size(path)
        own = None if key is None else await in_thread(upload_key, path, key)
        if size > MULTIPART_FROM_BYTES:
            return await self._upload_large(path, on_bytes, own)
        body = upload_body(path, size)
        with reading(await self._service.send("POST", "/v1/uploads", headers=key_header(own), body=body)) as begun:
            media = str(begun["media"])
        if begun.get("uploaded"):
            return media
        try:
            await self._service.send(
                begun["method"], begun["url"], headers=begun["headers"], upload=Upload(path, size, on_bytes)
            )
        except PenstockAPIError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            # The link is private to this upload and S3 accepts one file on it: an earlier attempt has arrived.
        return media

    async def _upload_large(self, path: Path, on_bytes: OnBytes | None, key: str | None) -> str:
        note = UploadNote.of(self._service.state_dir, self._service.address, path) if key is None else UploadNote(key)
        media = await self._upload_parts(path, on_bytes, note.key)
        note.remove()
        return media

    async def _upload_parts(self, path: Path, on_bytes: OnBytes | None, key: str) -> str:
        """Send a file in parts, except those that arrived before under the same `key`; return its reference.

        Each part carries its MD5, and the service joins only the parts that were sent here.
        """
        before = path.stat()
        body = {**upload_body(path, before.st_size), "multipart": True}
        begun = await self._service.fetch("POST", "/v1/uploads", headers=key_header(key), body=body)
        media = str(begun["media"])
        if begun["uploaded"]:
            return media
        address = f"/v1/uploads/{media.removeprefix('media://')}"
        arrived = {part["number"]: part for part in begun["parts"]}
        progress = TransferProgress(on_bytes, before.st_size)
        parts = parts_of(path, before, begun["part_bytes"], progress)
        calls = [
            partial(self._upload_part, address, number, part, arrived.get(number), progress)
            for number, part in parts.items()
        ]
        try:
            etags = await together(calls, AT_A_TIME, progress.stop)
        except Exception as error:  # the change of the file explains the store's error
            check_unchanged(path, before, error)
            raise
        check_unchanged(path, before)
        body = {"size_bytes": before.st_size, "etag": joined_etag(etags)}
        await self._service.send("POST", f"{address}/complete", body=body, wait_s=COMPLETE_S)
        return media

    async def _upload_part(
        self, address: str, number: int, part: Upload, arrived: Mapping[str, Any] | None, progress: TransferProgress
    ) -> str:
        """Send a part unless it arrived before; return its ETag."""
        digest = await in_thread(part.md5)
        if has_arrived(part, digest, arrived):
            return digest
        body = {"number": number, "size_bytes": part.size_bytes}
        link = await self._service.fetch("POST", f"{address}/parts", body=body, stop=progress.stop)
        headers = {**link["headers"], "Content-MD5": base64.b64encode(bytes.fromhex(digest)).decode()}
        sent = await self._service.send(link["method"], link["url"], headers=headers, upload=part, stop=progress.stop)
        return str(sent.headers.get("etag", digest)).strip('"')

    async def _save(
        self, address: str, artifacts: Sequence[Artifact], folder: Path, on_bytes: OnBytes | None
    ) -> list[Path]:
        """Save the artifacts under `address` in a folder, several at once; complete files stay as they are."""
        progress = TransferProgress(on_bytes, sum(artifact.size_bytes for artifact in artifacts))
        paths = places(artifacts, folder)
        calls = [
            partial(self._save_one, address, Save(path, artifact, progress.of(artifact.name)), progress)
            for path, artifact in zip(paths, artifacts, strict=True)
        ]
        await together(calls, AT_A_TIME, progress.stop)
        return paths

    async def _save_one(self, address: str, save: Save, progress: TransferProgress) -> None:
        name, size, sha256 = save.artifact.name, save.artifact.size_bytes, save.artifact.sha256
        there = save.path.is_file() and save.path.stat().st_size == size
        if there and await in_thread(file_digest, save.path) == sha256:
            progress.report(name, size)
            return
        while True:
            before = progress.done(name)
            try:
                await self._service.save(f"{address}/{quote(name)}", save, progress.stop)
            except Unreachable:
                if progress.done(name) <= before:
                    raise  # a connection that keeps breaking is used as long as each attempt makes progress
            else:
                return
