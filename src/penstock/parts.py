"""Uploads in parts: what the service and its clients must agree on. Pure.

A part's tag is the MD5 of its bytes in hexadecimal, as S3 has it; the whole's is the MD5 of the parts' digests and
their number (`...-3`), so that nobody need read a joined file again to know that it is the one that was sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

#: S3 takes no smaller part, but for the last, and not more of them.
MIN_PART_BYTES = 5 << 20
MAX_PARTS = 10_000

_MD5 = re.compile("[0-9a-f]{32}")


def part_bytes_for(limit_bytes: int, *, wanted_bytes: int) -> int:
    """Return the size of parts in which a file of up to `limit_bytes` can be sent."""
    return max(wanted_bytes, -(-limit_bytes // MAX_PARTS))


def part_sizes(size_bytes: int, part_bytes: int) -> list[int]:
    """Return the sizes of a file's parts, in order: all of one size but the last."""
    full, rest = divmod(size_bytes, part_bytes)
    return [part_bytes] * full + ([rest] if rest else [])


def joined_etag(etags: Iterable[str]) -> str | None:
    """Return the tag of an object made of parts with these tags; None where a store's tags say nothing of the bytes."""
    digests = list(etags)
    if not all(map(_MD5.fullmatch, digests)):
        return None
    whole = hashlib.md5(b"".join(map(bytes.fromhex, digests)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"
