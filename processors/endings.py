"""Whether sound and film that is made of parts ends with a whole one: Ogg's pages, Matroska's elements, MP4's boxes.

Every part says how long it is, in files that were written live too, so that a cut through one shows. A live recording
that was cut between two parts cannot be told from one that was stopped there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import BinaryIO

_PAGE = b"OggS"
#: Of a page's header, without the table of its segments.
_PAGE_BYTES = 27
#: More are not looked at: half a day of sound has some 50,000 pages.
_MOST_PARTS = 1_000_000
_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


def broken_end(file: BinaryIO, name: str) -> str | None:
    """Return what is wrong with the end of a file of FFmpeg's format `name`; None if nothing is, as far as is known."""
    return _ENDS[name](file) if name in _ENDS else None


def _ogg(file: BinaryIO) -> str | None:
    """Go through the pages. That none says to be the last means nothing: what Android writes never does."""
    size, at, goes_on = _size(file), 0, False
    for _ in range(_MOST_PARTS):
        if at == size:
            return "its last page goes on on another one" if goes_on else None
        file.seek(at)
        head = file.read(_PAGE_BYTES)
        if head[:4] != _PAGE[: len(head)]:
            return None  # players skip what is no page, such as a tag behind the last one
        table = file.read(head[26]) if len(head) == _PAGE_BYTES else b""
        at += _PAGE_BYTES + len(table) + sum(table)
        if len(head) < _PAGE_BYTES or len(table) < head[26] or at > size:
            return "its last page is not whole"
        goes_on = table[-1:] == b"\xff"
    return None


def _matroska(file: BinaryIO) -> str | None:
    """Go through the elements, and into those whose length nobody knew when they were begun."""
    size, at = _size(file), 0
    for _ in range(_MOST_PARTS):
        if at == size:
            break
        file.seek(at)
        head = file.read(12)
        told = _element(head)
        if told is None:
            # Of zeros or other padding no more can be told.
            return "its last element is not whole" if head[0] and len(head) < 12 else None
        kind, header_bytes, content_bytes = told
        if kind == _SEGMENT and content_bytes is not None:
            return None  # it says how long all of it is
        if content_bytes is None and kind not in (_SEGMENT, _CLUSTER):
            return None
        at += header_bytes + (content_bytes or 0)
        if at > size:
            return "its last element is not whole"
    return None


def _element(head: bytes) -> tuple[int, int, int | None] | None:
    """Return an element's id, the length of its header and that of what it holds, None where that is not known.

    The whole is None where these bytes do not begin with a whole header.
    """
    id_bytes = _length(head, 4)
    if id_bytes is None:
        return None
    size_bytes = _length(head[id_bytes:], 8)
    if size_bytes is None:
        return None
    kind, end = int.from_bytes(head[:id_bytes]), id_bytes + size_bytes
    most = (1 << 7 * size_bytes) - 1
    number = int.from_bytes(head[id_bytes:end]) & most
    return kind, end, None if number == most else number


def _length(start: bytes, most: int) -> int | None:
    """Return how many bytes EBML's number has that begins here; None where they are not all there, or too many."""
    if not start or not start[0]:
        return None
    length = 9 - start[0].bit_length()
    return length if length <= min(most, len(start)) else None


def _mov(file: BinaryIO) -> str | None:
    """Go through the boxes, not into them."""
    size, at = _size(file), 0
    for _ in range(_MOST_PARTS):
        if at == size:
            break
        file.seek(at)
        head = file.read(16)
        told = int.from_bytes(head[:4])
        if told == 1 and len(head) == 16:
            told = int.from_bytes(head[8:])
        if not told or not head[4:8].isascii():
            return None  # the last box, which goes on to the end of the file, or what is none
        if len(head) < 8 or told < 8 or at + told > size:
            return "its last box is not whole"
        at += told
    return None


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


_ENDS: Mapping[str, Callable[[BinaryIO], str | None]] = MappingProxyType(
    {"ogg": _ogg, "matroska": _matroska, "mov": _mov}
)
