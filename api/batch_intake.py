"""The requests of a batch, from where they come into an object of the batch's own, which nobody changes any more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.batches import BatchKey, lines_of
from penstock.config import Settings
from penstock.documents import parse_json
from penstock.errors import (
    InputError,
    InvalidRequest,
    MalformedBody,
    MediaChanged,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    ObjectExists,
    ObjectNotFound,
)
from penstock.reports import Issue
from penstock.storage.base import ObjectStore
from penstock.storage.media import S3Object, Upload, parse_reference
from penstock.storage.objects import open_store
from penstock.storage.spool import own_folder

CONTENT_TYPE = "application/jsonl"


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Where a batch's requests lie, and how many there are."""

    key: str
    size_bytes: int
    total: int


def take_in_array(
    objects: ObjectStore,
    settings: Settings,
    key: BatchKey,
    requests: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
) -> TakenIn:
    """Store requests, one to a line; raise `InvalidRequest` where `model` is None and none of them names one."""
    if model is None:
        _require_model(any("model" in request for request in requests))
    return take_in_rows(objects, settings, key, requests)


def take_in_rows(
    objects: ObjectStore, settings: Settings, key: BatchKey, requests: Iterable[Mapping[str, Any]]
) -> TakenIn:
    """Store requests as they come, one to a line; raise `MediaTooLarge` past the limits, `InvalidRequest` for none."""
    rows = (json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for request in requests)
    return _take_in(objects, settings, key, rows)


def take_in_file(
    objects: ObjectStore, settings: Settings, key: BatchKey, reference: str, *, model: str | None = None
) -> TakenIn:
    """Store a copy of a JSONL file.

    Raises an `InputError` for a file that is not there, not allowed or too large, `InvalidRequest` for one that is not
    JSONL at all: without a line, or without a single one that is a JSON object in UTF-8. All point to `/file`. Where
    `model` is None and no line names one either, that is an `InvalidRequest` too.
    """
    chunks = _bytes_of(objects, settings, key.tenant, reference)
    try:
        return _take_in(objects, settings, key, chunks, model_needed=model is None)
    except InputError as error:
        raise type(error)(error.detail, errors=[Issue("/file", error.detail)]) from error


def _bytes_of(objects: ObjectStore, settings: Settings, tenant: str, reference: str) -> Iterator[bytes]:
    match parse_reference(reference, tenant=tenant, settings=settings):
        case Upload(name):
            store, etag = objects, None
        case S3Object(bucket, name, etag):
            store = open_store(f"s3://{bucket}", settings)
        case _:
            raise MediaRefused("a batch is read from an upload (media://) or an object (s3://)")
    try:
        if etag is not None and store.head(name).etag.strip('"') != etag.strip('"'):
            raise MediaChanged("the object is not of the etag that the reference names")
        yield from store.read(name)
    except ObjectNotFound as error:
        raise MediaNotFound("there is no such upload or object, or its file was not sent yet") from error


def _take_in(
    objects: ObjectStore, settings: Settings, key: BatchKey, chunks: Iterable[bytes], *, model_needed: bool = False
) -> TakenIn:
    with own_folder(settings.spool_dir) as folder:
        path = folder / "lines"
        sha256, size_bytes = _copy(chunks, path, settings.max_batch_bytes)
        total = _count(path, settings, key.tenant, model_needed=model_needed)
        name = f"{key.prefix}lines/{sha256}.jsonl"
        with suppress(ObjectExists):  # the same bytes, of the same request
            objects.put_file(name, path, content_type=CONTENT_TYPE, if_absent=True)
    return TakenIn(name, size_bytes, total)


def _copy(chunks: Iterable[bytes], path: Path, limit_bytes: int) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("xb") as file:
        for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > limit_bytes:
                raise MediaTooLarge(f"a batch may have {limit_bytes} bytes")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest(), size_bytes


def _count(path: Path, settings: Settings, tenant: str, *, model_needed: bool) -> int:
    """Return how many requests a file holds: its lines that are not blank."""
    total, sound, is_text, names_model = 0, False, True, not model_needed
    limit_bytes = settings.body_limit_bytes(tenant)
    with path.open("rb") as file:
        for line in lines_of(iter(lambda: file.read(1 << 20), b""), limit_bytes=limit_bytes):
            total += 1
            if not (sound and names_model) and line.data is not None and (found := _object_in(line.data)) is not None:
                sound, names_model = True, names_model or "model" in found
            is_text = is_text and (sound or line.data is None or _is_text(line.data))
            if total > settings.max_batch_lines:
                raise MediaTooLarge(f"a batch may have {settings.max_batch_lines} lines")
    if not (sound or is_text):
        raise _not_jsonl("the file is not UTF-8")
    if not sound:
        raise _not_jsonl("no line of the file is a JSON object" if total else "the file has no lines")
    _require_model(names_model)
    return total


def _require_model(named: bool) -> None:
    if not named:
        what = "no request of the batch names a model: name one here, for those that name none"
        raise InvalidRequest(what, errors=[Issue("/model", "is missing")])


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
    return InvalidRequest(f"{what}: JSONL is meant, a JSON object to a line", errors=[Issue("/file", what)])
