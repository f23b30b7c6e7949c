"""What files of sound and film say of their own length, so that one that was cut off is told from a short one.

Readers stop where a file ends and call that the end. Most files say in their header how many bytes follow; those that
were written to a pipe say nothing, and neither do most that a camera or a browser writes live.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

#: Headers are a little wrong in files that are whole: what lacks less than both is taken.
_SHARE, _SECONDS = 0.02, 1.0
#: What writers to pipes put where the number of bytes would stand: the largest numbers, with or without a sign.
_OPEN_END_BYTES = 0x7FFF_0000
#: The length of a chunk whose real one stands in another.
_TOLD_ELSEWHERE = 0xFFFF_FFFF
#: Before the samples of a WAV file; more are not looked at.
_MOST_CHUNKS = 64
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
#: Where a frame of MPEG audio has its encoder's note, by version and channels.
_NOTE_PLACES = (36, 21, 13)


class Promise(NamedTuple):
    """How long a file says it is."""

    size_bytes: int
    #: None = the reader knows.
    duration_s: float | None = None


class Shortfall(NamedTuple):
    """How long a file that was cut off says it is, and about how much of that is there."""

    said_s: float
    there_s: float


def shortfall(file: BinaryIO, name: str, duration_s: float | None) -> Shortfall | None:
    """Return by how much a file of FFmpeg's format `name` is shorter than it says; None if it is not, or says nothing.

    `duration_s` is what its reader takes from the header.
    """
    promise = _PROMISES[name](file) if name in _PROMISES else None
    said = duration_s if promise is None or promise.duration_s is None else promise.duration_s
    if promise is None or not said or promise.size_bytes <= 0:
        return None
    return _lacking(said, said * min(1.0, os.fstat(file.fileno()).st_size / promise.size_bytes))


def decoded_shortfall(file: BinaryIO, name: str, decoded_s: float) -> Shortfall | None:
    """Return by how much less was decoded than a file of FLAC says, which does not tell how many bytes that takes."""
    said = _flac_s(file) if name == "flac" else None
    return None if said is None else _lacking(said, decoded_s)


def _lacking(said_s: float, there_s: float) -> Shortfall | None:
    return Shortfall(said_s, there_s) if said_s - there_s > max(_SECONDS, _SHARE * said_s) else None


def _wav(file: BinaryIO) -> Promise | None:
    rate = long = 0
    for name, size in _chunks(file):
        if name == b"ds64" and size >= 16:  # of RF64 and BW64, which may be longer than four bytes can say
            long = int.from_bytes(file.read(16)[8:], "little")
        elif name == b"fmt " and size >= 12:
            rate = int.from_bytes(file.read(12)[8:], "little")
        elif name == b"data":
            told = long if size == _TOLD_ELSEWHERE else size
            if not rate or not 0 < told < (_OPEN_END_BYTES if told == size else 1 << 63):
                return None
            return Promise(file.tell() + told, told / rate)
    return None


def _flac_s(file: BinaryIO) -> float | None:
    """Return what the first block says: 20 bits of samples a second, 8 of their kind, 36 of how many there are."""
    file.seek(18)
    block = file.read(8)
    rate, samples = int.from_bytes(block[:3]) >> 4, int.from_bytes(block[3:]) & (1 << 36) - 1
    return samples / rate if len(block) == 8 and rate and samples else None


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the chunks of a RIFF file, which is then at the beginning of what each holds."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        size = int.from_bytes(head[4:], "little")
        yield head[:4], size
        at += 8 + size + size % 2


def _avi(file: BinaryIO) -> Promise | None:
    """Look at the first part of a film; what is longer than a gigabyte or so has several."""
    file.seek(0)
    head = file.read(52)
    if len(head) < 52 or head[24:28] != b"avih":
        return None
    (size,), (frame_us,), (frames,) = (struct.unpack_from("<I", head, place) for place in (4, 32, 48))
    return Promise(size + 8, frames * frame_us / 1e6) if 0 < size < _OPEN_END_BYTES else None


def _matroska(file: BinaryIO) -> Promise | None:
    file.seek(0)
    if file.read(4) != _EBML or (size := _variable(file)) is None:
        return None
    file.seek(size, os.SEEK_CUR)
    if file.read(4) != _SEGMENT or (size := _variable(file)) is None:
        return None
    return Promise(file.tell() + size)


def _variable(file: BinaryIO) -> int | None:
    """Return EBML's number of one to eight bytes; None where it says that nobody knows."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    most = (1 << 7 * length) - 1
    number = int.from_bytes(first + rest) & most
    return None if len(rest) < length - 1 or number == most else number


def _mp3(file: BinaryIO) -> Promise | None:
    """Read the note that encoders leave in the first frame: Xing's, which LAME's and FFmpeg's are too, or VBRI."""
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:
        footer = 10 * bool(head[5] & 0x10)
        start = 10 + footer + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(start)
    frame = file.read(64)
    for place in _NOTE_PLACES:
        if frame[place : place + 4] in (b"Xing", b"Info") and len(frame) >= place + 16:
            flags, first, second = struct.unpack_from(">III", frame, place + 4)
            size = (second if flags & 1 else first) if flags & 2 else 0
            return Promise(start + size) if size else None
    if frame[36:40] == b"VBRI" and len(frame) >= 50:
        return Promise(start + int.from_bytes(frame[46:50]))
    return None


_PROMISES: Mapping[str, Callable[[BinaryIO], Promise | None]] = {
    "wav": _wav,
    "avi": _avi,
    "matroska": _matroska,
    "mp3": _mp3,
}
