"""Inline images of a chat: stores `data:` URLs as uploads, which the chat's job names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from penstock.api.facades.calls import Call
from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.media import decode_base64, store_upload
from penstock.api.facades.openai.requests import ConversationMessage, ImageContent
from penstock.errors import InvalidRequest
from penstock.models import CatalogueEntry
from penstock.reports import Issue

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)
#: Media type -> file name suffix.
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/tiff": "tif",
        "image/bmp": "bmp",
    }
)  # fmt: skip


async def store(call: Call, entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> Mapping[str, str]:
    """Store each inline image of a chat once; return `data:` URL -> upload reference.

    Raises `InvalidRequest` for a medium that is no image and for too many images, and the errors of `store_upload`.
    """
    if capabilities_of(entry).isdisjoint((Capability.IMAGE_CHAT, Capability.IMAGE_EMBEDDING)):
        return {}
    found = dict(_inline(messages))
    most = entry.limits.max_items
    if most is not None and len(found) > most:
        raise InvalidRequest(f"the chat has {len(found)} images; {entry.name} accepts at most {most}")
    read = {url: (_kind(url, place), _bytes(url, place)) for url, place in found.items()}
    return {
        url: await store_upload(call.api, call.tenant, data, f"image.{_SUFFIXES[kind]}", kind)
        for url, (kind, data) in read.items()
    }


def _inline(messages: Sequence[ConversationMessage]) -> Iterator[tuple[str, str]]:
    """Yield the `data:` URLs of a chat with their JSON pointers."""
    for at, message in enumerate(messages):
        for place, part in enumerate(message.content):
            if isinstance(part, ImageContent) and part.image_url.url[:5].lower() == "data:":
                yield part.image_url.url, f"/messages/{at}/content/{place}/image_url/url"


def _kind(url: str, place: str) -> str:
    match = _DATA_URL.match(url)
    kind = match[1].lower() if match else ""
    if kind not in _SUFFIXES:
        why = f"is not a supported image; send data:TYPE;base64,... with one of the types {', '.join(_SUFFIXES)}"
        raise InvalidRequest(errors=[Issue(place, why)])
    return kind


def _bytes(url: str, place: str) -> bytes:
    return decode_base64(url.partition(",")[2], place)
