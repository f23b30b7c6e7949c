"""Bodies of requests in OpenAI's protocol, with the bytes of their media apart.

A body has an empty text in place of each medium. A list names the places, and the engine gets the bytes as arrays. The
runner inserts the bytes as `data:` URLs (`filled`).
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from penstock.errors import InvalidInput, Issue, MediaUnreadable
from penstock.processors.openai.options import MediaKind
from penstock.processors.openai.request import ChatRequest

#: Returns the local file of a reference.
FileOf = Callable[[str], Path]


#: Part of a message -> the kind of its medium, and the word for several.
_KINDS: Mapping[str, tuple[MediaKind, str]] = MappingProxyType(
    {
        "image_url": ("image", "images"), "video_url": ("video", "videos"), "input_audio": ("audio", "recordings"),
        "file": ("file", "files"), "image_embeds": ("image", "images"),
    }
)  # fmt: skip
#: Bytes at the beginning of a file that tell its media type; the server decodes the files.
_HEAD_BYTES = 16
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"), (0, b"\xff\xd8\xff", "image/jpeg"), (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"), (0, b"II*\0", "image/tiff"), (0, b"MM\0*", "image/tiff"), (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"), (0, b"ID3", "audio/mp3"), (0, b"\xff\xfb", "audio/mp3"), (0, b"\xff\xf3", "audio/mp3"),
    (0, b"fLaC", "audio/flac"), (0, b"OggS", "audio/ogg"), (4, b"ftypM4A", "audio/m4a"),
    (4, b"ftyp", "video/mp4"), (0, b"\x1aE\xdf\xa3", "video/webm"), (0, b"%PDF-", "application/pdf"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Medium:
    """The file of a medium, and its place in a body."""

    #: Names and indices from the body to the text.
    at: tuple[str | int, ...]
    #: Text before the file's base64.
    before: str
    path: Path
    #: Bytes in place of the file's.
    data: bytes | None = None

    def bytes(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of the medium."""
        return np.fromfile(self.path, np.uint8) if self.data is None else np.frombuffer(self.data, np.uint8)

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return self.path.stat().st_size if self.data is None else len(self.data)


def part_of(body: Mapping[str, Any], medium: Medium) -> dict[str, Any]:
    """Return the object of a body that holds a medium."""
    inner: Any = body
    for name in medium.at[:-1]:
        inner = inner[name]
    found: dict[str, Any] = inner
    return found


def parameters(request: BaseModel) -> dict[str, Any]:
    """Return the parameters that a request sets."""
    return request.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def chat_body(request: ChatRequest, file: FileOf) -> tuple[dict[str, Any], list[Medium]]:
    """Return the body of a chat with its media; raise `MediaUnreadable` for a file of another kind."""
    body = parameters(request)
    prompt, images = body.pop("prompt", None), body.pop("images", None)
    if prompt is not None:
        body["messages"] = [{"role": "user", "content": _content(prompt, images)}]
    media: list[Medium] = []
    for at, message in enumerate(body["messages"]):
        parts = message.get("content")
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            media += [_moved(part, medium) for medium in _media(part, ("messages", at, "content", place), file)]
    return body, media


def check_media(media: Sequence[Medium], most: Mapping[MediaKind, int]) -> None:
    """Raise `InvalidInput` for the first medium beyond the limit of its kind; kinds without a limit pass."""
    counts = Counter[MediaKind]()
    for medium in media:
        kind, words = _KINDS[str(medium.at[-2])]
        counts[kind] += 1
        if kind in most and counts[kind] > most[kind]:
            total = sum(_KINDS[str(each.at[-2])][0] == kind for each in media)
            detail = f"{total} {words} were given; this model accepts at most {most[kind]} per job"
            raise InvalidInput(detail, errors=[Issue("/input/" + "/".join(map(str, medium.at)), detail)])


def filled(body: Mapping[str, Any], media: Sequence[tuple[Sequence[str | int], str, bytes]]) -> Mapping[str, Any]:
    """Insert media (place, text before, bytes) into a body in place, and return the body."""
    for at, before, data in media:
        inner: Any = body
        for name in at[:-1]:
            inner = inner[name]
        inner[at[-1]] = before + base64.b64encode(data).decode()
    return body


def _content(prompt: str, images: str | list[str] | None) -> str | list[dict[str, Any]]:
    if images is None:
        return prompt
    listed = [images] if isinstance(images, str) else images
    return [
        *({"type": "image_url", "image_url": {"url": image}} for image in listed),
        {"type": "text", "text": prompt},
    ]


def _media(part: Mapping[str, Any], at: tuple[str | int, ...], file: FileOf) -> Iterator[Medium]:
    """Yield the medium of a part, if it has one."""
    match part["type"]:
        case ("image_url" | "video_url") as kind:
            path = file(part[kind]["url"])
            yield Medium((*at, kind, "url"), f"data:{require_family(path, kind.removesuffix('_url'))};base64,", path)
        case "input_audio":
            yield Medium((*at, "input_audio", "data"), "", file(part["input_audio"]["data"]))
        case "image_embeds":
            yield Medium((*at, "image_embeds", "data"), "", file(part["image_embeds"]["data"]))
        case "file":
            path = file(part["file"]["file_data"])
            yield Medium((*at, "file", "file_data"), f"data:{media_type(path)};base64,", path)


def _moved(part: dict[str, Any], medium: Medium) -> Medium:
    """Empty a medium's place in its part, and complete what the protocol requires beside it."""
    kind, field = str(medium.at[-2]), str(medium.at[-1])
    part[kind][field] = ""
    if kind == "input_audio":
        part[kind].setdefault("format", require_family(medium.path, "audio").removeprefix("audio/"))
    if kind == "file":
        part[kind].setdefault("filename", medium.path.name)
    return medium


def media_type(path: Path) -> str:
    """Return the media type of a file; `application/octet-stream` for an unknown one."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    found = (kind for at, bytes_, kind in _SIGNATURES if head[at : at + len(bytes_)] == bytes_)
    return next(found, "application/octet-stream")


def require_family(path: Path, family: str) -> str:
    """Return the media type of a file of a family, such as `image`; raise `MediaUnreadable` for another file."""
    found = media_type(path)
    if not found.startswith(f"{family}/"):
        known = ", ".join(dict.fromkeys(kind for _, _, kind in _SIGNATURES if kind.startswith(f"{family}/")))
        raise MediaUnreadable(f"The file is no {family} of a known type ({known}).")
    return found
