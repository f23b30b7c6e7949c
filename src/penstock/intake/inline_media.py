"""Images within a request, as `data:` URLs: read, and stored as uploads in a batch's lines."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.config import Settings
from penstock.errors import InvalidRequest, Issue, MediaTooLarge
from penstock.intake.media import upload_key
from penstock.jobs import JobKey
from penstock.models import CatalogueEntry, media_references
from penstock.storage.objects.base import ObjectStore

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)
#: Media type -> file name suffix.
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/tiff": "tif",
        "image/bmp": "bmp",
    }
)  # fmt: skip
_NO_BREAKS = str.maketrans("", "", "\r\n")


@dataclass(frozen=True, slots=True)
class InlineImage:
    """An image of a `data:` URL."""

    media_type: str
    data: bytes

    @property
    def name(self) -> str:
        """The name of the image as an upload."""
        return f"image.{_SUFFIXES[self.media_type]}"


def is_inline(text: str) -> bool:
    """Return True for a `data:` URL."""
    return text[:5].lower() == "data:"


def read_image(url: str, place: str) -> InlineImage:
    """Return the image of a `data:` URL; raise an `InvalidRequest` that points to `place` for any other medium."""
    match = _DATA_URL.match(url)
    kind = match[1].lower() if match else ""
    if kind not in _SUFFIXES:
        why = f"is not a supported image; send data:TYPE;base64,... with one of the types {', '.join(_SUFFIXES)}"
        raise InvalidRequest(errors=[Issue(place, why)])
    return InlineImage(kind, decode_base64(url.partition(",")[2], place))


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


def with_stored_images(
    entry: CatalogueEntry, key: JobKey, value: Mapping[str, Any], *, settings: Settings, objects: ObjectStore,
    require_room: Callable[[str, int], None],
) -> Mapping[str, Any]:  # fmt: skip
    """Return a job's input with an upload in the place of each inline image, or the input itself if it has none.

    The names of the uploads depend on the job and the bytes alone, so a repeated call stores no further ones.
    `require_room` gets the id and the bytes of an upload and raises an error where there is no room. Raises
    `InvalidRequest` for media that are no images and too many of them, and `MediaTooLarge` past the tenant's limit.
    """
    found = {place: url for place, url in media_references(entry.input_schema, value) if is_inline(url)}
    if not found:
        return value
    most = entry.limits.max_items
    if most is not None and len(set(found.values())) > most:
        raise InvalidRequest(f"the job has {len(set(found.values()))} images; {entry.name} accepts at most {most}")
    read = {url: read_image(url, f"/input{place}") for place, url in found.items()}
    limit_bytes = min(settings.upload_limit_bytes(key.tenant), entry.limits.max_bytes or 1 << 62)
    if any(len(image.data) > limit_bytes for image in read.values()):
        raise MediaTooLarge(f"the medium exceeds the limit of {limit_bytes} bytes")
    stored: dict[str, str] = {}
    for url, image in read.items():
        upload_id = str(uuid.uuid5(uuid.UUID(key.id), hashlib.sha256(image.data).hexdigest()))
        require_room(upload_id, len(image.data))
        objects.put_bytes(upload_key(key.tenant, upload_id, image.name), image.data, content_type=image.media_type)
        stored[url] = f"media://{upload_id}/{image.name}"
    changed = deepcopy(dict(value))
    for place, url in found.items():
        _put(changed, place, stored[url])
    return changed


def _put(value: Any, place: str, text: str) -> None:
    """Put a text into the place of a JSON pointer."""
    *path, last = [name.replace("~1", "/").replace("~0", "~") for name in place.split("/")[1:]]
    for name in path:
        value = value[int(name)] if isinstance(value, list) else value[name]
    value[int(last) if isinstance(value, list) else last] = text
