"""Opening audio and video files with PyAV, each with the one FFmpeg demuxer that its first bytes name.

FFmpeg's playlist demuxers (HLS, concat) open other files and URLs; none of them is used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.packet import Packet

from penstock.errors import MediaUnreadable

#: First bytes -> FFmpeg's format. `_format` knows those of MP3 and MP4.
_SIGNATURES = {
    b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mp3", b"\x1a\x45\xdf\xa3": "matroska", b"RF64": "wav", b"BW64": "wav",
}  # fmt: skip
_RIFF = {b"WAVE": "wav", b"AVI ": "avi"}
#: Types of the first box of MP4 and QuickTime files.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
#: Tolerated errors of a declared duration: a share of it, and seconds. The larger one counts.
_SHARE, _SECONDS = 0.02, 1.0
#: The smallest size that writers to pipes put in place of an unknown one.
_PLACEHOLDER_BYTES = 0x7FFF_0000
#: The largest frame of MPEG audio, and the Xing (or Info) and VBRI headers, which count the frames after their own.
_MP3_FRAME_BYTES = 1441
_MP3_COUNT = re.compile(
    rb"\xff[\xe0-\xff]..(?:(?:.{9}|.{17}|.{32})(?:Xing|Info)...[\x01\x03\x05\x07\x09\x0b\x0d\x0f]|.{32}VBRI.{10})(.{4})",
    re.DOTALL,
)
#: Errors of PyAV: FFmpeg's own, and Python's for impossible values.
BROKEN = (av.error.FFmpegError, ValueError, OverflowError, IndexError, EOFError, UnicodeDecodeError)


@contextmanager
def opened(path: Path, what: str, supported: str) -> Iterator[InputContainer]:
    """Open an audio or video file. `what` and `supported` name its kind and the supported formats in errors.

    Raises `MediaUnreadable` for another format, and any error while the file is read.
    """
    name = _format_of(path)
    if name is None:
        raise MediaUnreadable(f"The file is not a supported {what}: supported are {supported}.")
    try:
        with av.open(str(path), mode="r", format=name, metadata_errors="ignore") as container:
            yield container
    except BROKEN as error:
        raise MediaUnreadable(f"The {what} cannot be decoded: it is damaged, incomplete or of a rare kind.") from error


def packets(container: InputContainer, path: Path, what: str) -> Iterator[Packet[Any]]:
    """Yield the packets of all tracks of a file; raise `MediaUnreadable` at the end of a truncated one.

    FFmpeg reports the end of a truncated file as an ordinary end. The file is truncated if it holds clearly less than
    its header declares, or if it is an MP4 whose last packet is incomplete. Ogg, live recordings, and MP3 without a
    Xing or VBRI header declare nothing.
    """
    first, ends = None, dict.fromkeys(range(len(container.streams)), 0)
    for packet in container.demux():
        first = first or packet
        if packet.pts is not None:
            index = packet.stream.index
            ends[index] = max(ends[index], packet.pts + (packet.duration or 0))
        # FFmpeg also marks the end of a WAV file from a pipe, which declares an impossible size.
        if packet.is_corrupt and container.format.name.startswith("mov"):
            raise MediaUnreadable(f"The {what} is cut off: its last packet is incomplete.")
        yield packet
    present_s = max((float(end * (container.streams[index].time_base or 0)) for index, end in ends.items()), default=0)
    declared_s = _mp3_s(first, path) if container.format.name == "mp3" else _declared_s(container, path)
    if declared_s - present_s > max(_SECONDS, _SHARE * declared_s):
        raise MediaUnreadable(
            f"The {what} is cut off: its header declares {declared_s:.1f} s and the file holds about {present_s:.1f} s."
        )


def _declared_s(container: InputContainer, path: Path) -> float:
    """Return the duration that a file declares; 0 where it declares none."""
    duration_s = (container.duration or 0) / av.time_base
    with path.open("rb") as file:
        head = file.read(8)
    if not head.startswith(b"RIFF"):
        return duration_s
    # FFmpeg lowers the duration of a truncated WAV or AVI file to the share that the file holds.
    declared_bytes = int.from_bytes(head[4:], "little") + 8
    return duration_s * declared_bytes / path.stat().st_size if declared_bytes < _PLACEHOLDER_BYTES else 0.0


def _mp3_s(first: Packet[Any] | None, path: Path) -> float:
    """Return the duration by the header before the first packet; 0 without one. FFmpeg's may be an estimate."""
    if first is None or first.pos is None or not first.duration or first.time_base is None:
        return 0.0
    with path.open("rb") as file:
        file.seek(max(0, first.pos - _MP3_FRAME_BYTES))
        count = _MP3_COUNT.search(file.read(min(first.pos, _MP3_FRAME_BYTES)))
    return float(int.from_bytes(count[1]) * first.duration * first.time_base) if count else 0.0


def _format_of(path: Path) -> str | None:
    with path.open("rb") as file:
        return _format(file.read(16))


def _format(start: bytes) -> str | None:
    if start[:4] == b"RIFF":
        return _RIFF.get(start[8:12])
    if start[4:8] in _BOXES:
        return "mov"
    # The sync word of MPEG audio: eleven bits, then a layer that is not reserved.
    if len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0 and start[1] & 0x06:
        return "mp3"
    return next((name for signature, name in _SIGNATURES.items() if start.startswith(signature)), None)
