"""Pictures inside a chat, as `data:` URLs: they become uploads, which the chat's job names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from penstock.api.facades.abilities import Ability, abilities_of
from penstock.api.facades.calls import Call
from penstock.api.facades.media import decoded, take_in
from penstock.api.facades.openai.requests import ChatRequest, ImagePart
from penstock.errors import InvalidRequest
from penstock.models import CatalogueEntry
from penstock.reports import Issue

_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)
#: How files of each kind of picture end.
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/tiff": "tif",
        "image/bmp": "bmp",
    }
)  # fmt: skip


async def store(call: Call, entry: CatalogueEntry, wanted: ChatRequest) -> Mapping[str, str]:
    """Return the references of a chat's pictures that came inside it, by their URLs; each is stored once.

    Raises `InvalidRequest` for one that is no picture, and for more than the model takes, and what `take_in` does.
    """
    if Ability.PICTURES not in abilities_of(entry):
        return {}
    found = dict(_inside(wanted))
    most = entry.limits.max_items
    if most is not None and len(found) > most:
        raise InvalidRequest(f"{len(found)} pictures were given; {entry.name} takes at most {most} in a chat")
    read = {url: (_kind(url, place), _bytes(url, place)) for url, place in found.items()}
    return {
        url: await take_in(call.api, call.tenant, data, f"picture.{_SUFFIXES[kind]}", kind)
        for url, (kind, data) in read.items()
    }


def _inside(wanted: ChatRequest) -> Iterator[tuple[str, str]]:
    """Yield the `data:` URLs of a chat, and where each stands."""
    for at, message in enumerate(wanted.messages):
        for place, part in enumerate(message.content):
            if isinstance(part, ImagePart) and part.image_url.url[:5].lower() == "data:":
                yield part.image_url.url, f"/messages/{at}/content/{place}/image_url/url"


def _kind(url: str, place: str) -> str:
    match = _DATA_URL.match(url)
    kind = match[1].lower() if match else ""
    if kind not in _SUFFIXES:
        why = f"is no picture that is taken here: data:KIND;base64,... with the KIND {', '.join(_SUFFIXES)}"
        raise InvalidRequest(errors=[Issue(place, why)])
    return kind


def _bytes(url: str, place: str) -> bytes:
    return decoded(url.partition(",")[2], place)
