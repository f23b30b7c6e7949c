"""Multipart uploads: the rules that the service and its clients share. Pure.

A part's tag is the MD5 of its bytes in hexadecimal, as in S3. The whole file's tag is the MD5 of the parts' digests and
their number (`...-3`): it verifies a joined file without reading the file again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

#: Bytes of a part, at least (except the last), and number of parts, at most, in S3.
MIN_PART_BYTES = 5 << 20
MAX_PARTS = 10_000

_MD5 = re.compile("[0-9a-f]{32}")


def part_bytes_for(limit_bytes: int, *, wanted_bytes: int) -> int:
    """Return the part size for files of up to `limit_bytes`, `wanted_bytes` if possible."""
    return max(wanted_bytes, -(-limit_bytes // MAX_PARTS))


def part_sizes(size_bytes: int, part_bytes: int) -> list[int]:
    """Return the sizes of a file's parts, in order: all equal except the last."""
    full, rest = divmod(size_bytes, part_bytes)
    return [part_bytes] * full + ([rest] if rest else [])


def joined_etag(etags: Iterable[str]) -> str | None:
    """Return the tag of an object joined from parts with these tags; None if the tags are no MD5 digests."""
    digests = list(etags)
    if not all(map(_MD5.fullmatch, digests)):
        return None
    whole = hashlib.md5(b"".join(map(bytes.fromhex, digests)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"
