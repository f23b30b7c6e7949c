"""Opening audio and video files with PyAV, each with the one FFmpeg demuxer that its first bytes name.

FFmpeg's playlist demuxers (HLS, concat) open other files and URLs; none of them is used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
from av.container import InputContainer

from penstock.errors import MediaUnreadable
from penstock.processors.media.declared_length import Shortfall, decoded_shortfall, shortfall
from penstock.processors.media.truncation import find_truncation

#: First bytes -> FFmpeg's format. `_format` knows those of MP3 and MP4.
_SIGNATURES = {
    b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mp3", b"\x1a\x45\xdf\xa3": "matroska", b"RF64": "wav", b"BW64": "wav",
}  # fmt: skip
_RIFF = {b"WAVE": "wav", b"AVI ": "avi"}
#: Types of the first box of MP4 and QuickTime files.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
#: Errors of PyAV: FFmpeg's own, and Python's for impossible values.
BROKEN = (av.error.FFmpegError, ValueError, OverflowError, IndexError, EOFError, UnicodeDecodeError)


@contextmanager
def opened(path: Path, what: str, supported: str) -> Iterator[InputContainer]:
    """Open an audio or video file. `what` and `supported` name its kind and the supported formats in errors.

    Raises `MediaUnreadable` for another format, a truncated file, and any error while the file is read.
    """
    name = _format_of(path)
    if name is None:
        raise MediaUnreadable(f"The file is not a supported {what}: supported are {supported}.")
    try:
        with av.open(str(path), mode="r", format=name, metadata_errors="ignore") as container:
            _check_complete(path, name, container, what)
            yield container
    except BROKEN as error:
        raise MediaUnreadable(f"The {what} cannot be decoded: it is damaged, incomplete or of a rare kind.") from error


def _check_complete(path: Path, name: str, container: InputContainer, what: str) -> None:
    with path.open("rb") as file:
        _refuse(shortfall(file, name, container.duration / av.time_base if container.duration else None), what)
        problem = find_truncation(file, name)
    if problem is not None:
        raise MediaUnreadable(f"The {what} is cut off: {problem}.")


def check_decoded(path: Path, what: str, decoded_s: float) -> None:
    """Raise `MediaUnreadable` where less was decoded of a file than its header declares."""
    name = _format_of(path)
    with path.open("rb") as file:
        _refuse(decoded_shortfall(file, name or "", decoded_s), what)


def _refuse(found: Shortfall | None, what: str) -> None:
    if found is not None:
        raise MediaUnreadable(
            f"The {what} is cut off: its header declares {found.declared_s:.1f} s and the file holds about "
            f"{found.present_s:.1f} s."
        )


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
