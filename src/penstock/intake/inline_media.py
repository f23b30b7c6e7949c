"""Media within a request, as `data:` URLs (RFC 2397): read, and replaced by the references of uploads."""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_to_bytes

from penstock.config import Settings
from penstock.errors import InvalidRequest, Issue, MediaTooLarge
from penstock.intake.media import upload_key
from penstock.jobs import JobKey
from penstock.media_types import essence, is_media_type
from penstock.models import CatalogueEntry, media_references
from penstock.storage.objects.base import ObjectStore

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)
#: Media types of the images of chats -> file name suffix.
_IMAGES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/tiff": "tif",
        "image/bmp": "bmp", "image/avif": "avif", "image/heic": "heic", "image/heif": "heif",
    }
)  # fmt: skip
#: The same, with the media types that Python's table leaves out or that differ between systems.
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        **_IMAGES, "audio/wav": "wav", "audio/flac": "flac", "audio/ogg": "ogg", "text/csv": "csv", "text/plain": "txt",
        "application/vnd.apache.parquet": "parquet", "application/octet-stream": "bin",
    }
)  # fmt: skip
#: Kinds of media types that name their uploads.
_NAMED = frozenset({"image", "audio", "video", "text"})
_NO_BREAKS = str.maketrans("", "", "\r\n")


@dataclass(frozen=True, slots=True)
class InlineMedium:
    """A medium of a `data:` URL."""

    media_type: str
    data: bytes

    @property
    def name(self) -> str:
        """The name of the medium as an upload: `image.png`, `audio.wav`, `file.parquet`."""
        kind = self.media_type.partition("/")[0]
        suffix = _SUFFIXES.get(self.media_type) or (mimetypes.guess_extension(self.media_type) or ".bin")[1:]
        return f"{kind if kind in _NAMED else 'file'}.{suffix}"


@dataclass(frozen=True, slots=True)
class InlineUpload:
    """An upload in the place of an inline medium; its id depends on the job and the bytes alone."""

    upload_id: str
    medium: InlineMedium

    @property
    def reference(self) -> str:
        """The media reference of the upload."""
        return f"media://{self.upload_id}/{self.medium.name}"

    def put(self, objects: ObjectStore, tenant: str) -> None:
        """Store the upload; a repeated call stores the same bytes under the same key."""
        key = upload_key(tenant, self.upload_id, self.medium.name)
        objects.put_bytes(key, self.medium.data, content_type=self.medium.media_type)


@dataclass(frozen=True, slots=True)
class SeparatedInput:
    """A job's input with references in the place of its inline media, and the uploads that they name."""

    value: Mapping[str, Any]
    uploads: Sequence[InlineUpload] = ()


def is_inline(text: str) -> bool:
    """Return True for a `data:` URL."""
    return text[:5].lower() == "data:"


def read_medium(url: str, place: str) -> InlineMedium:
    """Return the medium of a `data:` URL, in base64 or percent-encoded.

    Raises an `InvalidRequest` that points to `place` for a malformed URL, invalid base64 and an empty medium.
    """
    head, comma, body = url.partition(",")
    kind = essence(head[len("data:") :]) or "text/plain"
    if not comma or not is_media_type(kind):
        raise InvalidRequest(errors=[Issue(place, "is no data: URL; send data:TYPE;base64,...")])
    if re.search(r";\s*base64\s*$", head, re.IGNORECASE):
        return InlineMedium(kind, decode_base64(body, place))
    if not body:
        raise InvalidRequest(errors=[Issue(place, "is empty")])
    return InlineMedium(kind, unquote_to_bytes(body))


def read_image(url: str, place: str) -> InlineMedium:
    """Return the image of a `data:` URL; raise an `InvalidRequest` that points to `place` for any other medium."""
    match = _DATA_URL.match(url)
    kind = match[1].lower() if match else ""
    if kind not in _IMAGES:
        why = f"is not a supported image; send data:TYPE;base64,... with one of the types {', '.join(_IMAGES)}"
        raise InvalidRequest(errors=[Issue(place, why)])
    return InlineMedium(kind, decode_base64(url.partition(",")[2], place))


def decode_base64(text: str, place: str) -> bytes:
    """Return the bytes of base64, with or without line breaks (`base64 FILE` writes some).

    Raises an `InvalidRequest` that points to `place` for invalid or empty base64.
    """
    try:
        data = base64.b64decode(text.translate(_NO_BREAKS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(errors=[Issue(place, "is not base64")]) from error
    if not data:
        raise InvalidRequest(errors=[Issue(place, "is empty")])
    return data


def separated(entry: CatalogueEntry, key: JobKey, value: Mapping[str, Any], *, settings: Settings) -> SeparatedInput:
    """Return a job's input without its inline media, of which nothing is stored yet; the input itself if it has none.

    Raises `InvalidRequest` for malformed media and too many of them, and `MediaTooLarge` past `max_inline_bytes` and
    the limits of the tenant and the model.
    """
    found = {place: url for place, url in media_references(entry.input_schema, value) if is_inline(url)}
    if not found:
        return SeparatedInput(value)
    most, distinct = entry.limits.max_items, set(found.values())
    if most is not None and len(distinct) > most:
        raise InvalidRequest(f"the job has {len(distinct)} inline media; {entry.name} accepts at most {most}")
    uploads = {url: _upload(key, read_medium(url, f"/input{place}")) for place, url in found.items()}
    _check_sizes(entry, key.tenant, {place: len(uploads[url].medium.data) for place, url in found.items()}, settings)
    changed = deepcopy(dict(value))
    for place, url in found.items():
        _put(changed, place, uploads[url].reference)
    return SeparatedInput(changed, tuple({upload.upload_id: upload for upload in uploads.values()}.values()))


def with_stored_media(
    entry: CatalogueEntry, key: JobKey, value: Mapping[str, Any], *, settings: Settings, objects: ObjectStore,
    require_room: Callable[[str, int], None],
) -> Mapping[str, Any]:  # fmt: skip
    """Return a job's input with a stored upload in the place of each inline medium.

    `require_room` gets the id and the bytes of an upload and raises an error where there is no room. Raises the errors
    of `separated`.
    """
    found = separated(entry, key, value, settings=settings)
    for upload in found.uploads:
        require_room(upload.upload_id, len(upload.medium.data))
        upload.put(objects, key.tenant)
    return found.value


def _upload(key: JobKey, medium: InlineMedium) -> InlineUpload:
    digest = hashlib.sha256(medium.data).hexdigest()
    return InlineUpload(str(uuid.uuid5(uuid.UUID(key.id), digest)), medium)


def _check_sizes(entry: CatalogueEntry, tenant: str, sizes: Mapping[str, int], settings: Settings) -> None:
    """Raise `MediaTooLarge` past the limit of one medium, or of the inline media of a job together."""
    limit_bytes = min(settings.upload_limit_bytes(tenant), entry.limits.max_bytes or 1 << 62)
    for place, size_bytes in sizes.items():
        if size_bytes > limit_bytes:
            why = f"the medium exceeds the limit of {limit_bytes} bytes"
            raise MediaTooLarge(why, errors=[Issue(f"/input{place}", why)])
    total_bytes, most_bytes = sum(sizes.values()), settings.max_inline_bytes
    if total_bytes > most_bytes:
        raise MediaTooLarge(
            f"the data: URLs of the job hold {total_bytes} bytes; at most {most_bytes} are allowed (max_inline_bytes): "
            "upload the files (POST /v1/uploads) and send their media:// references",
            errors=[Issue(f"/input{place}", "is larger than the media in a request may be") for place in sizes],
        )


def _put(value: Any, place: str, text: str) -> None:
    """Put a text into the place of a JSON pointer."""
    *path, last = [name.replace("~1", "/").replace("~0", "~") for name in place.split("/")[1:]]
    for name in path:
        value = value[int(name)] if isinstance(value, list) else value[name]
    value[int(last) if isinstance(value, list) else last] = text
