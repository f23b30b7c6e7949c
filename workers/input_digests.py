"""Inputs of a result, and their digests: SHA-256 of each whole file, computed beside the job's other work.

A file is hashed while its bytes are still in memory: a small one at once, a larger one in a thread, since hashing
does not hold the interpreter. Partial files have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: Bytes of a file that is hashed at once.
SMALL_BYTES = 256 << 10
#: Bytes hashed between two looks at the end of the attempt.
_CHUNK_BYTES = 4 << 20
#: Seconds between two checks while a digest is waited for.
_CHECK_S = 0.2


@dataclass(frozen=True, slots=True)
class Input:
    """A medium of a job."""

    #: JSON pointer into the request; None for a file that a document of the request names.
    place: str | None
    #: The reference, for addresses on the web without the query, which may be a signature.
    reference: str
    size_bytes: int
    #: Digest of the whole file; None where only ranges were read.
    sha256: str | None
    #: Strong etag of the source; None for a file with a digest, and where the source has none.
    etag: str | None = None

    @classmethod
    def of(cls, place: str | None, reference: str, size_bytes: int, sha256: str | None, etag: str | None) -> Input:
        """Return the input of a reference; a weak etag says nothing about bytes and is left out."""
        strong = None if sha256 or etag is None or etag.startswith("W/") else etag
        return cls(place, _without_query(reference), size_bytes, sha256, strong)

    def to_json(self) -> dict[str, Any]:
        """Return the input without the fields that are None."""
        row = {name: getattr(self, name) for name in ("place", "reference", "size_bytes", "sha256", "etag")}
        return {name: value for name, value in row.items() if value is not None}


class InputDigests:
    """Digests of files, by reference. For one attempt and its thread."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._awaited: dict[str, Future[str | None]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def begin(self, reference: str, source: Path | bytes) -> None:
        """Begin to hash a whole file, or the bytes of a medium in memory."""
        if isinstance(source, Path) and source.stat().st_size > SMALL_BYTES:
            self.begin_large(reference, source)
        else:
            data = source if isinstance(source, bytes) else source.read_bytes()
            self._found[reference] = hashlib.sha256(data).hexdigest()

    def begin_large(self, reference: str, path: Path) -> None:
        """Begin to hash a file in a thread, whatever its size."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="digests")
        self._awaited[reference] = self._pool.submit(self._hash, path)

    def finish(self, check: Callable[[], None]) -> dict[str, str]:
        """Return the digests of the files, each in 64 hexadecimal digits; raise the errors of `check` meanwhile."""
        for reference, future in self._awaited.items():
            while not wait([future], _CHECK_S).done:
                check()
            if (found := future.result()) is not None:
                self._found[reference] = found
        self._awaited.clear()
        return dict(self._found)

    def close(self) -> None:
        """Stop, and close the files."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _hash(self, path: Path) -> str | None:
        """Return a file's digest; None if the attempt ended before."""
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                if self._closed:
                    return None
                digest.update(chunk)
        return digest.hexdigest()


def _without_query(reference: str) -> str:
    scheme, host, path, _, _ = urlsplit(reference)
    return urlunsplit((scheme, host, path, "", "")) if scheme in ("http", "https") else reference
