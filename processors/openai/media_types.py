"""Media types of files, by their first bytes. The server decodes the files: nothing is decoded here."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import MediaUnreadable

_HEAD_BYTES = 16
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"), (0, b"\xff\xd8\xff", "image/jpeg"), (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"), (0, b"II*\0", "image/tiff"), (0, b"MM\0*", "image/tiff"), (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"), (0, b"ID3", "audio/mp3"), (0, b"\xff\xfb", "audio/mp3"), (0, b"\xff\xf3", "audio/mp3"),
    (0, b"fLaC", "audio/flac"), (0, b"OggS", "audio/ogg"), (4, b"ftypM4A", "audio/m4a"),
    (4, b"ftyp", "video/mp4"), (0, b"\x1aE\xdf\xa3", "video/webm"), (0, b"%PDF-", "application/pdf"),
)  # fmt: skip


def media_type(path: Path) -> str:
    """Return the media type of a file; `application/octet-stream` for an unknown one."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    found = (kind for at, bytes_, kind in _SIGNATURES if head[at : at + len(bytes_)] == bytes_)
    return next(found, "application/octet-stream")


def require(path: Path, family: str) -> str:
    """Return the media type of a file of a family, such as `image`; raise `MediaUnreadable` for another file."""
    found = media_type(path)
    if not found.startswith(f"{family}/"):
        known = ", ".join(dict.fromkeys(kind for _, _, kind in _SIGNATURES if kind.startswith(f"{family}/")))
        raise MediaUnreadable(f"The file is no {family} of a known type ({known}).")
    return found
