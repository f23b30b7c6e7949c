"""Lengths that the headers of audio and video files declare, to tell a truncated file from a short one.

FFmpeg reports the end of a truncated file as an ordinary end. Most headers declare how many bytes follow; files that
were written to a pipe, or live by a camera or a browser, declare none.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from penstock.processors.media.ebml import HEADER, MAX_HEADER_BYTES, SEGMENT, read_element_header

#: Tolerated errors of headers: a share of the declared duration, and seconds. The larger one counts.
_SHARE, _SECONDS = 0.02, 1.0
#: The smallest placeholder that writers to pipes put in place of an unknown size in bytes.
_PLACEHOLDER_BYTES = 0x7FFF_0000
#: The size of a chunk whose actual size is in the `ds64` chunk.
_IN_DS64 = 0xFFFF_FFFF
#: Chunks that are read at most before the samples of a WAV file.
_MAX_CHUNKS = 64
#: Offsets of the Xing header in a frame of MPEG audio, by version and channels.
_XING_OFFSETS = (36, 21, 13)


class DeclaredLength(NamedTuple):
    """The length of a file by its header."""

    size_bytes: int
    #: None = FFmpeg reads the duration.
    duration_s: float | None = None


class Shortfall(NamedTuple):
    """The declared duration of a truncated file, and the approximate duration that the file holds."""

    declared_s: float
    present_s: float


def shortfall(file: BinaryIO, name: str, duration_s: float | None) -> Shortfall | None:
    """Return the shortfall of a file of FFmpeg's format `name`; None for a complete file, or without a declared length.

    `duration_s` is FFmpeg's duration.
    """
    length = _READERS[name](file) if name in _READERS else None
    declared_s = duration_s if length is None or length.duration_s is None else length.duration_s
    if length is None or not declared_s or length.size_bytes <= 0:
        return None
    return _shortfall(declared_s, declared_s * min(1.0, os.fstat(file.fileno()).st_size / length.size_bytes))


def decoded_shortfall(file: BinaryIO, name: str, decoded_s: float) -> Shortfall | None:
    """Return the shortfall of a decoded FLAC file, whose header declares samples but no bytes; None otherwise."""
    declared_s = _flac_s(file) if name == "flac" else None
    return None if declared_s is None else _shortfall(declared_s, decoded_s)


def _shortfall(declared_s: float, present_s: float) -> Shortfall | None:
    missing_s = declared_s - present_s
    return Shortfall(declared_s, present_s) if missing_s > max(_SECONDS, _SHARE * declared_s) else None


def _wav(file: BinaryIO) -> DeclaredLength | None:
    rate = long = 0
    for name, size in _chunks(file):
        if name == b"ds64" and size >= 16:  # RF64 and BW64: sizes of eight bytes
            long = int.from_bytes(file.read(16)[8:], "little")
        elif name == b"fmt " and size >= 12:
            rate = int.from_bytes(file.read(12)[8:], "little")
        elif name == b"data":
            declared = long if size == _IN_DS64 else size
            if not rate or not 0 < declared < (_PLACEHOLDER_BYTES if declared == size else 1 << 63):
                return None
            return DeclaredLength(file.tell() + declared, declared / rate)
    return None


def _flac_s(file: BinaryIO) -> float | None:
    """Return the duration by the first block: 20 bits of sample rate, 8 of sample format, 36 of sample count."""
    file.seek(18)
    block = file.read(8)
    rate, samples = int.from_bytes(block[:3]) >> 4, int.from_bytes(block[3:]) & (1 << 36) - 1
    return samples / rate if len(block) == 8 and rate and samples else None


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each chunk of a RIFF file with the file at the start of the chunk's content."""
    at = 12
    for _ in range(_MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        size = int.from_bytes(head[4:], "little")
        yield head[:4], size
        at += 8 + size + size % 2


def _avi(file: BinaryIO) -> DeclaredLength | None:
    """Return the length of the first RIFF list; a video of more than about a gigabyte has several."""
    file.seek(0)
    head = file.read(52)
    if len(head) < 52 or head[24:28] != b"avih":
        return None
    (size,), (frame_us,), (frames,) = (struct.unpack_from("<I", head, place) for place in (4, 32, 48))
    return DeclaredLength(size + 8, frames * frame_us / 1e6) if 0 < size < _PLACEHOLDER_BYTES else None


def _matroska(file: BinaryIO) -> DeclaredLength | None:
    end = 0
    for expected in (HEADER, SEGMENT):
        file.seek(min(end, os.fstat(file.fileno()).st_size))  # a seek beyond 2**63 fails
        element = read_element_header(file.read(MAX_HEADER_BYTES))
        if element is None or element.id != expected or element.content_bytes is None:
            return None
        end += element.header_bytes + element.content_bytes
    return DeclaredLength(end)


def _mp3(file: BinaryIO) -> DeclaredLength | None:
    """Return the length by the header in the first frame: Xing (also written by LAME and FFmpeg) or VBRI."""
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:
        footer = 10 * bool(head[5] & 0x10)
        start = 10 + footer + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(start)
    frame = file.read(64)
    for offset in _XING_OFFSETS:
        if frame[offset : offset + 4] in (b"Xing", b"Info") and len(frame) >= offset + 16:
            flags, first, second = struct.unpack_from(">III", frame, offset + 4)
            size = (second if flags & 1 else first) if flags & 2 else 0
            return DeclaredLength(start + size) if size else None
    if frame[36:40] == b"VBRI" and len(frame) >= 50:
        return DeclaredLength(start + int.from_bytes(frame[46:50]))
    return None


_READERS: Mapping[str, Callable[[BinaryIO], DeclaredLength | None]] = {
    "wav": _wav,
    "avi": _avi,
    "matroska": _matroska,
    "mp3": _mp3,
}
