"""Inline images of a chat: stores `data:` URLs as uploads, which the chat's job names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.api.facades.calls import Call
from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.media import store_upload
from penstock.api.facades.openai.requests import ConversationMessage, ImageContent, image_of
from penstock.errors import InvalidRequest
from penstock.intake.inline_media import InlineImage, is_inline, read_image
from penstock.models import CatalogueEntry


async def store(call: Call, entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> Mapping[str, str]:
    """Store each inline image of a chat once; return `data:` URL -> upload reference.

    Raises `InvalidRequest` for a medium that is no image and for too many images, and the errors of `store_upload`.
    """
    return {
        url: await store_upload(call.api, call.tenant, image.data, image.name, image.media_type)
        for url, image in read(entry, messages).items()
    }


def read(entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> Mapping[str, InlineImage]:
    """Return each inline image of a chat by its `data:` URL, for a model that accepts images.

    Raises `InvalidRequest` for a medium that is no image and for too many images.
    """
    if capabilities_of(entry).isdisjoint((Capability.IMAGE_CHAT, Capability.IMAGE_EMBEDDING)):
        return {}
    found = dict(_inline(messages))
    most = entry.limits.max_items
    if most is not None and len(found) > most:
        raise InvalidRequest(f"the chat has {len(found)} images; {entry.name} accepts at most {most}")
    return {url: read_image(url, place) for url, place in found.items()}


def _inline(messages: Sequence[ConversationMessage]) -> Iterator[tuple[str, str]]:
    """Yield the `data:` URLs of a chat with their JSON pointers."""
    for at, message in enumerate(messages):
        for place, part in enumerate(message.content):
            url = None if isinstance(part, str) else image_of(part)
            if url is not None and is_inline(url):
                field = "image_url/url" if isinstance(part, ImageContent) else "file/file_data"
                yield url, f"/messages/{at}/content/{place}/{field}"
