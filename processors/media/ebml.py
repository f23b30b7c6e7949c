"""Headers of EBML elements, of which Matroska and WebM files consist (RFC 8794)."""

from __future__ import annotations

from typing import NamedTuple

HEADER, SEGMENT, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
#: Bytes of the longest header: an id of four and a size of eight.
MAX_HEADER_BYTES = 12


class ElementHeader(NamedTuple):
    """The header of one element."""

    id: int
    header_bytes: int
    #: None = unknown when the element was begun.
    content_bytes: int | None


def read_element_header(start: bytes) -> ElementHeader | None:
    """Return the header that `start` begins with; None where it is cut off or none."""
    id_bytes = _number_bytes(start, 4)
    size_bytes = _number_bytes(start[id_bytes:], 8) if id_bytes else None
    if id_bytes is None or size_bytes is None:
        return None
    end, unknown = id_bytes + size_bytes, (1 << 7 * size_bytes) - 1
    content_bytes = int.from_bytes(start[id_bytes:end]) & unknown
    return ElementHeader(int.from_bytes(start[:id_bytes]), end, None if content_bytes == unknown else content_bytes)


def _number_bytes(start: bytes, most: int) -> int | None:
    """Return the length of the variable-size number that `start` begins with; None where it is cut off or too long."""
    length = 9 - start[0].bit_length() if start else 9
    return length if length <= min(most, len(start)) else None
