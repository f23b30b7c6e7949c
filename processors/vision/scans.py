"""JPEG files before they are decoded: their scans are counted, and their data must suffice for the declared size.

A progressive JPEG is decoded once for each scan, so a file of 2 MB with 60,000 scans takes minutes. And the decoder
fills what is missing with grey, without an error.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

from penstock.errors import MediaTooLarge

#: Scans of an image, as in GDAL. Encoders write 10 of them, or 3 for each of up to 10 steps.
MAX_SCANS = 100

_MARKER = re.compile(rb"\xff[^\x00\xff]")
#: Markers without a length: restarts, and TEM.
_BARE = frozenset([*range(0xD0, 0xD8), 0x01])
_START_OF_SCAN, _END = 0xDA, 0xD9
#: Frames with Huffman codes: sequential, and progressive.
_SEQUENTIAL, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
#: Bits of a block, at least: a code for its mean, and in a sequential frame one for the end of its details.
_BITS = {_SEQUENTIAL[0]: 2, _SEQUENTIAL[1]: 2, _PROGRESSIVE: 1}


class _Segment(NamedTuple):
    """A marker segment; a scan's data ends where the next marker begins."""

    marker: int
    begin: int
    end: int


def check_scans(data: bytes | mmap) -> bool:
    """Return False if the data of a JPEG file are less than its declared size needs.

    Raises `MediaTooLarge` if it has more than `MAX_SCANS` scans.
    """
    scans = scan_bytes = bits = 0
    for segment in _segments(data):
        if segment.marker == _START_OF_SCAN:
            scans += 1
            if scans > MAX_SCANS:
                raise MediaTooLarge(f"The image has more than {MAX_SCANS} scans. Save it again, e.g. as a PNG.")
            scan_bytes += segment.end - segment.begin
        elif segment.marker in _BITS:
            bits = _BITS[segment.marker] * _blocks(data[segment.begin : segment.end])
    return 8 * scan_bytes >= bits


def _segments(data: bytes | mmap) -> Iterator[_Segment]:
    """Yield the segments of the first image, with the data that follows each header."""
    at = 2
    while (found := _MARKER.search(data, at)) is not None:
        marker, begin = data[found.end() - 1], found.end()
        at = begin
        if marker in _BARE:
            continue
        if marker == _END or begin + 2 > len(data):
            return
        at = begin + max(2, int.from_bytes(data[begin : begin + 2]))
        if marker != _START_OF_SCAN:
            yield _Segment(marker, begin + 2, at)
            continue
        following = _next_marker(data, at)
        yield _Segment(marker, at, following)
        at = following


def _next_marker(data: bytes | mmap, at: int) -> int:
    """Return where a scan's data ends."""
    for found in _MARKER.finditer(data, at):
        if data[found.end() - 1] not in _BARE:
            return found.start()
    return len(data)


def _blocks(frame: bytes) -> int:
    """Return the number of a frame's blocks of 8 x 8 samples, of all components; 0 for a damaged frame."""
    try:
        _, height, width, count = struct.unpack_from(">BHHB", frame)
        factors = [(frame[7 + 3 * number] >> 4, frame[7 + 3 * number] & 15) for number in range(count)]
    except (struct.error, IndexError):
        return 0
    if not factors or not all(min(pair) for pair in factors):
        return 0
    widest, highest = (max(each) for each in zip(*factors, strict=True))
    return sum(-(-width * x // (8 * widest)) * -(-height * y // (8 * highest)) for x, y in factors)
