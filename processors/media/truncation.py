"""Truncated audio and video: the last page (Ogg), element (Matroska, WebM) or box (MP4) of the file is incomplete.

Each of these parts declares its length, in live recordings too. A live recording that was cut off between two parts
is indistinguishable from one that was stopped there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from penstock.processors.media.ebml import CLUSTER, MAX_HEADER_BYTES, SEGMENT, read_element_header

#: Bytes of an Ogg page's header without its segment table.
_OGG_HEADER_BYTES = 27
#: Parts that are read at most. Half a day of audio has some 50,000 Ogg pages.
_MAX_PARTS = 1_000_000
#: The length of a part whose header is incomplete: more than any file has left.
_CUT_OFF = 1 << 64


class _Part(NamedTuple):
    """A page, element or box, from its first byte to the next part's."""

    size_bytes: int
    #: True where the next part must continue this one: a page, or the box that describes the following samples.
    continues: bool = False


#: Reads the part at the file's position; None where the rest of the file cannot be checked.
_ReadPart = Callable[[BinaryIO], _Part | None]


def find_truncation(file: BinaryIO, name: str) -> str | None:
    """Return the problem at the end of a file of FFmpeg's format `name`; None where none is known."""
    if name not in _PARTS:
        return None
    part_name, read_part = _PARTS[name]
    size, at, part = os.fstat(file.fileno()).st_size, 0, _Part(0)
    for _ in range(_MAX_PARTS):
        file.seek(at)
        following = None if at == size else read_part(file)
        if following is None:
            return f"its last {part_name} has no continuation" if part.continues else None
        part = following
        at += part.size_bytes
        if at > size:
            return f"its last {part_name} is incomplete"
    return None


def _read_page(file: BinaryIO) -> _Part | None:
    """Read an Ogg page. The flag of the last page is ignored: Android never sets it."""
    head = file.read(_OGG_HEADER_BYTES)
    if not head.startswith(b"OggS"[: len(head)]):
        return None  # players skip other data, such as a tag after the last page
    table = file.read(head[26]) if len(head) == _OGG_HEADER_BYTES else b""
    if len(head) < _OGG_HEADER_BYTES or len(table) < head[26]:
        return _Part(_CUT_OFF)
    return _Part(len(head) + len(table) + sum(table), continues=table.endswith(b"\xff"))


def _read_element(file: BinaryIO) -> _Part | None:
    """Read a Matroska element, or only the header of one of unknown length, which is followed by its children."""
    head = file.read(MAX_HEADER_BYTES)
    element = read_element_header(head)
    if element is None:  # zeros are padding
        return _Part(_CUT_OFF) if head[0] and len(head) < MAX_HEADER_BYTES else None
    unknown = element.content_bytes is None
    if (element.id == SEGMENT and not unknown) or (unknown and element.id not in (SEGMENT, CLUSTER)):
        return None  # `declared_length` checks a segment of known length
    return _Part(element.header_bytes + (element.content_bytes or 0))


def _read_box(file: BinaryIO) -> _Part | None:
    """Read an MP4 box of the top level."""
    head = file.read(16)
    size = int.from_bytes(head[:4])
    if size == 1 and len(head) == 16:
        size = int.from_bytes(head[8:])
    if not size or not head[4:8].isascii():
        return None  # a box of size 0 ends with the file
    return _Part(_CUT_OFF if len(head) < 8 or size < 8 else size, continues=head[4:8] == b"moof")


_PARTS: dict[str, tuple[str, _ReadPart]] = {
    "ogg": ("page", _read_page),
    "matroska": ("element", _read_element),
    "mov": ("box", _read_box),
}
