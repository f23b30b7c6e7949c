"""Opening files of sound and film, with PyAV: only the reader that a file's first bytes name sees it.

FFmpeg's readers of lists (HLS, concat) open other files and addresses; none of them is among those that are known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
from av.container import InputContainer

from penstock.errors import MediaUnreadable
from penstock.processors.endings import broken_end
from penstock.processors.promises import Shortfall, decoded_shortfall, shortfall

#: First bytes -> FFmpeg's reader. What MP3 and MP4 begin with, `_format` knows.
_SIGNATURES = {
    b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mp3", b"\x1a\x45\xdf\xa3": "matroska", b"RF64": "wav", b"BW64": "wav",
}  # fmt: skip
_RIFF = {b"WAVE": "wav", b"AVI ": "avi"}
#: How the first box of MP4 and QuickTime files is called.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
#: PyAV's own errors are of FFmpeg, or what Python raises for a value that cannot be.
BROKEN = (av.error.FFmpegError, ValueError, OverflowError, IndexError, EOFError, UnicodeDecodeError)


@contextmanager
def opened(path: Path, what: str, taken: str) -> Iterator[InputContainer]:
    """Open a file of sound or film. `what` is what it should be, `taken` in which formats.

    Raises `MediaUnreadable` for one of another format, one that says that it is longer, and for what goes wrong while
    it is read.
    """
    name = _format_of(path)
    if name is None:
        raise MediaUnreadable(f"The file is no {what} that is taken here: {taken}.")
    try:
        with av.open(str(path), mode="r", format=name, metadata_errors="ignore") as container:
            _check_whole(path, name, container, what)
            yield container
    except BROKEN as error:
        raise MediaUnreadable(f"The {what} cannot be decoded: it is damaged, incomplete or of a rare kind.") from error


def _check_whole(path: Path, name: str, container: InputContainer, what: str) -> None:
    with path.open("rb") as file:
        _refuse(shortfall(file, name, container.duration / av.time_base if container.duration else None), what)
        broken = broken_end(file, name)
    if broken is not None:
        raise MediaUnreadable(f"The {what} is cut off: {broken}.")


def check_decoded(path: Path, what: str, decoded_s: float) -> None:
    """Raise `MediaUnreadable` where a file says that it is longer than all that could be decoded of it."""
    name = _format_of(path)
    with path.open("rb") as file:
        _refuse(decoded_shortfall(file, name or "", decoded_s), what)


def _refuse(lacking: Shortfall | None, what: str) -> None:
    if lacking is not None:
        raise MediaUnreadable(
            f"The {what} is cut off: it says {lacking.said_s:.1f} s and has about {lacking.there_s:.1f} s."
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
