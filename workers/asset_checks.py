"""Comparison of a fetched file with the size and the checksum that its STAC item declares."""

from __future__ import annotations

import hashlib
from typing import Final

from penstock.errors import FetchFailed
from penstock.intake.local_media import LocalMedia
from penstock.processors.links import LinkedFile

#: Algorithms of multihashes, by the two or four digits of their code: https://github.com/multiformats/multicodec
_ALGORITHMS: Final = {"11": "sha1", "12": "sha256", "13": "sha512", "16": "sha3_256", "d501": "md5"}


def check_file(described: LinkedFile, file: LocalMedia, size_bytes: int | None) -> None:
    """Raise `FetchFailed` for a file with another size or checksum than its item declares.

    `size_bytes` is the whole size of a partial file, of which no checksum is compared; None = the file is whole. A
    checksum of another algorithm is not compared.
    """
    source = file.source
    found = size_bytes
    if found is None:
        found = len(source) if isinstance(source, bytes) else source.stat().st_size
    if described.size_bytes is not None and described.size_bytes != found:
        raise FetchFailed(f"the file has {found:,} bytes; its STAC item declares {described.size_bytes:,} (file:size)")
    declared = None if size_bytes is not None or described.checksum is None else multihash(described.checksum)
    if declared is None:
        return
    algorithm, digest = declared
    if isinstance(source, bytes):
        own = hashlib.new(algorithm, source, usedforsecurity=False).hexdigest()
    else:
        with source.open("rb") as opened:
            own = hashlib.file_digest(opened, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if own != digest:
        raise FetchFailed(f"the file's {algorithm} is not the one that its STAC item declares (file:checksum)")


def multihash(text: str) -> tuple[str, str] | None:
    """Return the algorithm and the digest, in hexadecimal, of a multihash; None for one that is not compared."""
    text = text.lower()
    for code, algorithm in _ALGORITHMS.items():
        size = hashlib.new(algorithm, usedforsecurity=False).digest_size
        head = f"{code}{size:02x}"
        if text.startswith(head) and len(text) == len(head) + 2 * size:
            return algorithm, text.removeprefix(head)
    return None
