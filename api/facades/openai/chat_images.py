"""Inline images of a chat, as `data:` URLs: checked by their places in it. The job's submission stores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.openai.requests import ConversationMessage, ImageContent, image_of
from penstock.errors import InvalidRequest
from penstock.intake.inline_media import is_inline, read_image
from penstock.models import CatalogueEntry


def check(entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> None:
    """Check each inline image of a chat for a model that accepts images.

    Raises `InvalidRequest` for a medium that is no image and for too many images.
    """
    if capabilities_of(entry).isdisjoint((Capability.IMAGE_CHAT, Capability.IMAGE_EMBEDDING)):
        return
    found = dict(_inline(messages))
    most = entry.limits.max_items
    if most is not None and len(found) > most:
        raise InvalidRequest(f"the chat has {len(found)} images; {entry.name} accepts at most {most}")
    for url, place in found.items():
        read_image(url, place)


def _inline(messages: Sequence[ConversationMessage]) -> Iterator[tuple[str, str]]:
    """Yield the `data:` URLs of a chat with their JSON pointers."""
    for at, message in enumerate(messages):
        for place, part in enumerate(message.content):
            url = None if isinstance(part, str) else image_of(part)
            if url is not None and is_inline(url):
                field = "image_url/url" if isinstance(part, ImageContent) else "file/file_data"
                yield url, f"/messages/{at}/content/{place}/{field}"
