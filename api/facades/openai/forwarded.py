"""Requests to models behind a server of the same protocol: parameters go on as they are, inline media as uploads.

The model's own schema says which parameters there are; the server answers for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from penstock.api.facades.calls import Call
from penstock.api.facades.capabilities import is_forwarded
from penstock.api.facades.media import store_upload
from penstock.api.facades.openai.requests import (
    ChatRequest,
    CompletionRequest,
    Generation,
    Head,
    Metadata,
    read_chat,
    read_completion,
)
from penstock.errors import InvalidRequest, Issue
from penstock.intake.inline_media import decode_base64
from penstock.jobs import is_reference
from penstock.json_body import validated
from penstock.models import CatalogueEntry, find
from penstock.requests import JobRequest

#: Parameters of the facade itself, and those without an effect on the answer.
_NOT_FORWARDED = frozenset({"model", "stream", "stream_options", "metadata", "user", "store", "service_tier"})
#: Part of a message -> the field in it with a medium.
_MEDIA: Mapping[str, str] = MappingProxyType(
    {"image_url": "url", "video_url": "url", "input_audio": "data", "file": "file_data"}
)
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/(?P<suffix>[\w.+-]+))(;[\w=.+-]+)*;base64,", re.IGNORECASE)
_MAX_SUFFIX = 16

OwnT = TypeVar("OwnT", bound=Generation)


class ForwardedHead(Head):
    """The parameters for the facade itself of a request that is forwarded."""

    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Either(Generic[OwnT]):
    """A request to a model of ours or of a server: its model decides which."""

    raw: Any
    #: The request as models of ours understand it; None if they do not.
    found: OwnT | None
    read: Callable[[Any], OwnT]

    def own(self) -> OwnT:
        """Return the request for a model of ours; raise `InvalidRequest`."""
        return self.read(self.raw) if self.found is None else self.found

    def head(self) -> ForwardedHead:
        """Return the facade's own parameters; raise `InvalidRequest`."""
        return validated(ForwardedHead, self.raw)

    async def forwarded_to(self, call: Call) -> CatalogueEntry | None:
        """Return the model if the request is to be forwarded; None for models of ours and unknown ones."""
        name = self.raw.get("model") if isinstance(self.raw, dict) else None
        entry = find(await call.api.models.read(name), name) if isinstance(name, str) else None
        return entry if entry is not None and is_forwarded(entry) else None


@dataclass(frozen=True, slots=True)
class Inline:
    """A medium within a request."""

    place: str
    data: bytes
    media_type: str
    suffix: str


def read_either_chat(body: Any) -> Either[ChatRequest]:
    """Return a chat for a model of either kind."""
    return _either(body, read_chat)


def read_either_completion(body: Any) -> Either[CompletionRequest]:
    """Return a completion for a model of either kind."""
    return _either(body, read_completion)


async def stored_job(call: Call, entry: CatalogueEntry, raw: Mapping[str, Any]) -> JobRequest:
    """Return the job of a forwarded request, with its inline media stored as uploads.

    Raises `InvalidRequest` for a medium that is neither a reference nor base64, and the errors of `store_upload`.
    """
    places = list(_inline(raw.get("messages")))
    most = entry.limits.max_items
    if most is not None and len(places) > most:
        raise InvalidRequest(f"the request has {len(places)} inline media; {entry.name} accepts at most {most}")
    found = [_decoded(part[field], part, where) for part, field, where in places]
    stored: dict[bytes, str] = {}
    for medium in found:
        if medium.data not in stored:
            name = f"inline.{medium.suffix}"
            stored[medium.data] = await store_upload(call.api, call.tenant, medium.data, name, medium.media_type)
    messages = deepcopy(raw.get("messages"))
    for (part, field, _), medium in zip(_inline(messages), found, strict=True):
        part[field] = stored[medium.data]
    return job(entry, {**raw, "messages": messages} if "messages" in raw else raw)


def job(entry: CatalogueEntry, raw: Mapping[str, Any]) -> JobRequest:
    """Return the job of a forwarded request; raise `InvalidRequest` for inline media and token ids."""
    for _, _, where in _inline(raw.get("messages")):
        why = "inline media are not supported here; give a URL, or upload the file first"
        raise InvalidRequest(why, errors=[Issue(where, why)])
    value = {name: given for name, given in raw.items() if name not in _NOT_FORWARDED and given is not None}
    if isinstance(prompt := value.get("prompt"), list) and len(prompt) == 1 and isinstance(prompt[0], str):
        value["prompt"] = prompt[0]
    return JobRequest(model=entry.name, input=value, metadata=validated(ForwardedHead, raw).metadata or {})


def _either(body: Any, read: Callable[[Any], OwnT]) -> Either[OwnT]:
    try:
        return Either(body, read(body), read)
    except InvalidRequest:  # raised again by `own`
        return Either(body, None, read)


def _inline(messages: Any) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the objects with an inline medium, the medium's field in each, and its JSON pointer."""
    for at, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for place, part in enumerate(content if isinstance(content, list) else ()):
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            field, inner = _MEDIA.get(kind, ""), part.get(kind) if kind in _MEDIA else None
            given = inner.get(field) if isinstance(inner, dict) else None
            if isinstance(inner, dict) and isinstance(given, str) and given and not is_reference(given):
                yield inner, field, f"/messages/{at}/content/{place}/{kind}/{field}"


def _decoded(given: str, part: Mapping[str, Any], where: str) -> Inline:
    match = _DATA_URL.match(given)
    if match is None and not isinstance(part.get("format"), str):
        raise InvalidRequest(errors=[Issue(where, "is neither a URL nor data:TYPE;base64,...")])
    if match is None:
        kind = part["format"].lower()
        return Inline(where, decode_base64(given, where), f"audio/{kind}"[:64], _suffix(kind))
    return Inline(where, decode_base64(given[match.end() :], where), match["type"].lower(), _suffix(match["suffix"]))


def _suffix(kind: str) -> str:
    found = re.sub(r"[^a-z0-9]", "", kind.lower())[:_MAX_SUFFIX]
    return found or "bin"
