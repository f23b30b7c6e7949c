"""Batch input: copies a batch's requests into an immutable JSONL object that belongs to the batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.isolation import ThreadIsolation
from penstock.batches import BatchKey, lines_of
from penstock.config import Settings
from penstock.errors import (
    InputError,
    InvalidRequest,
    Issue,
    MalformedBody,
    MediaChanged,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    ObjectExists,
    ObjectNotFound,
)
from penstock.intake.media import S3Object, UploadReference, media_bucket, parse_reference
from penstock.intake.partial import refusing
from penstock.json_body import parse_json
from penstock.storage.objects.base import ObjectStore
from penstock.storage.spool import own_folder

CONTENT_TYPE = "application/jsonl"


@dataclass(frozen=True, slots=True)
class StoredLines:
    """The stored JSONL object of a batch: its key, size and number of requests."""

    key: str
    size_bytes: int
    total: int


def store_array(
    objects: ObjectStore,
    settings: Settings,
    key: BatchKey,
    requests: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
) -> StoredLines:
    """Store requests, one per line.

    Raises `MediaTooLarge` past the limits, and `InvalidRequest` where neither `model` nor any request names a model.
    """
    if model is None:
        _require_model(any("model" in request for request in requests))
    if len(requests) > settings.max_batch_lines:
        raise _too_many_lines(settings.max_batch_lines)
    with own_folder(settings.spool_dir) as folder:
        path = folder / "lines"
        sha256, size_bytes = write_rows(path, requests, settings.max_batch_bytes)
        return _put(objects, key, path, sha256, size_bytes, len(requests))


def store_rows(
    objects: ObjectStore,
    settings: Settings,
    key: BatchKey,
    source: str,
    isolation: ThreadIsolation,
    write: Callable[[Path, Path], tuple[str, int]],
) -> StoredLines:
    """Store the requests that `write` makes of the object `source`, one per line, in a process of its own.

    `write` reads the first file, writes the second and returns its SHA-256 and size; it must be picklable. Raises its
    errors, `MediaTooLarge` past the limits, and `InvalidRequest` for a file without requests.
    """
    with own_folder(settings.spool_dir) as folder:
        copy, path = folder / "source", folder / "lines"
        objects.get_file(source, copy, limit_bytes=settings.upload_limit_bytes(key.tenant))
        sha256, size_bytes = isolation.run(copy.stat().st_size, write, copy, path)
        total = isolation.run(size_bytes, _count, path, *_limits(settings, key.tenant), False)
        return _put(objects, key, path, sha256, size_bytes, total)


def store_file(
    objects: ObjectStore,
    settings: Settings,
    key: BatchKey,
    reference: str,
    isolation: ThreadIsolation,
    *,
    model: str | None = None,
) -> StoredLines:
    """Store a copy of a JSONL file.

    Raises an `InputError` for a file that is missing, not allowed or too large, and `InvalidRequest` for a file without
    a line that is a JSON object in UTF-8, both pointing to `/file`; `InvalidRequest` where no model is named.
    """
    chunks = _bytes_of(objects, settings, key.tenant, reference)
    try:
        with own_folder(settings.spool_dir) as folder:
            path = folder / "lines"
            sha256, size_bytes = _copy(chunks, path, settings.max_batch_bytes)
            total = isolation.run(size_bytes, _count, path, *_limits(settings, key.tenant), model is None)
            return _put(objects, key, path, sha256, size_bytes, total)
    except InputError as error:
        raise type(error)(error.detail, errors=[Issue("/file", error.detail)]) from error


def _bytes_of(objects: ObjectStore, settings: Settings, tenant: str, reference: str) -> Iterator[bytes]:
    profile = None
    match parse_reference(reference, tenant=tenant, settings=settings):
        case UploadReference(name):
            store, etag = objects, None
        case S3Object(bucket, name, etag):
            store, profile = media_bucket(bucket, tenant, settings)
        case _:
            raise MediaRefused("a batch file must be an upload (media://) or an object (s3://)")
    try:
        with refusing(profile):
            if etag is not None and store.head(name).etag.strip('"') != etag.strip('"'):
                raise MediaChanged("the object changed: its etag is not the one in the reference")
            yield from store.read(name)
    except ObjectNotFound as error:
        raise MediaNotFound("there is no such upload or object, or its file has not arrived yet") from error


def write_rows(path: Path, requests: Iterable[Mapping[str, Any]], limit_bytes: int) -> tuple[str, int]:
    """Write requests into a new file, one per line; return its SHA-256 and size, or raise `MediaTooLarge`."""
    rows = (json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for request in requests)
    return _copy(rows, path, limit_bytes)


def _put(objects: ObjectStore, key: BatchKey, path: Path, sha256: str, size_bytes: int, total: int) -> StoredLines:
    name = f"{key.prefix}lines/{sha256}.jsonl"
    with suppress(ObjectExists):  # a repeated request stored the same bytes
        objects.put_file(name, path, content_type=CONTENT_TYPE, if_absent=True)
    return StoredLines(name, size_bytes, total)


def _limits(settings: Settings, tenant: str) -> tuple[int, int]:
    """Return the bytes of a line and the lines of a batch, at most."""
    return settings.body_limit_bytes(tenant), settings.max_batch_lines


def _copy(chunks: Iterable[bytes], path: Path, limit_bytes: int) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("xb") as file:
        for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > limit_bytes:
                raise MediaTooLarge(f"the batch exceeds the limit of {limit_bytes} bytes")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest(), size_bytes


def _count(path: Path, limit_bytes: int, max_lines: int, model_needed: bool) -> int:
    """Return the number of requests in a file: its lines that are not blank."""
    total, valid, is_text, names_model = 0, False, True, not model_needed
    with path.open("rb") as file:
        for line in lines_of(iter(lambda: file.read(1 << 20), b""), limit_bytes=limit_bytes):
            total += 1
            if not (valid and names_model) and line.data is not None and (found := _object_in(line.data)) is not None:
                valid, names_model = True, names_model or "model" in found
            is_text = is_text and (valid or line.data is None or _is_text(line.data))
            if total > max_lines:
                raise _too_many_lines(max_lines)
    if not (valid or is_text):
        raise _not_jsonl("the file is not UTF-8")
    if not valid:
        raise _not_jsonl("no line of the file is a JSON object" if total else "the file has no lines")
    _require_model(names_model)
    return total


def _require_model(named: bool) -> None:
    if not named:
        what = "no request of the batch names a model; set `model`, which applies to requests that name none"
        raise InvalidRequest(what, errors=[Issue("/model", "is missing")])


def _too_many_lines(max_lines: int) -> MediaTooLarge:
    return MediaTooLarge(f"the batch exceeds the limit of {max_lines} lines")


def _object_in(data: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(data)
    except MalformedBody:
        return None
    return found if isinstance(found, dict) else None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_jsonl(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what}; send JSONL with one JSON object per line", errors=[Issue("/file", what)])
