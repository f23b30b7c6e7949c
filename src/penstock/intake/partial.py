"""Files of which only some ranges are fetched: sparse local files with the size of the source.

All ranges come from one version of the source: its etag is pinned with the first range, and a source that changes
later is `MediaChanged`. A source without a strong etag, or without ranges, is fetched whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from penstock.errors import FetchFailed, InvalidInput, MediaRefused, MediaTooLarge
from penstock.intake.connections import LeastRate, no_check
from penstock.intake.guard import GuardedClient
from penstock.storage.objects.base import ObjectStore, ObjectStoreRefused, new_file

#: Bytes that are fetched first. The header of a Cloud Optimized GeoTIFF usually fits.
HEAD_BYTES = 64 * 1024
#: Files up to this size are fetched whole: further requests would cost more than bytes.
SMALL_BYTES = 2**20
#: Ranges with a smaller gap are fetched by one request.
GAP_BYTES = 16 * 1024
#: Ranges that may be asked for, of one file.
MAX_RANGES = 100_000
#: First bytes of TIFF and BigTIFF files; other formats are fetched whole.
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

Range = tuple[int, int]


class Source(Protocol):
    """A file elsewhere that can be read by range."""

    def begin(self, file: BinaryIO) -> tuple[int, str | None, bool]:
        """Read the first bytes to a file. Return the source's size, its etag, and True if that was all of it."""
        ...

    def read(self, file: BinaryIO, start: int, end: int, etag: str) -> None:
        """Read a range of the version with this etag to the same place of a file."""
        ...


@dataclass(frozen=True, slots=True)
class WebSource:
    """A file on the web, read through the guard."""

    guard: GuardedClient
    url: str
    limit_bytes: int
    #: Tenant whose access profiles apply; None = no credentials.
    tenant: str | None = None
    check: Callable[[], None] = no_check
    #: Least rate of the server, over all ranges of the file; None = of each range alone.
    rate: LeastRate | None = None

    def begin(self, file: BinaryIO) -> tuple[int, str | None, bool]:
        """Read the first bytes; a server without ranges sends the whole file."""
        part = self.guard.fetch_part(
            self.url, file, 0, HEAD_BYTES, limit_bytes=self.limit_bytes, tenant=self.tenant, check=self.check,
            rate=self.rate,
        )  # fmt: skip
        if not part.whole and part.received_bytes < min(HEAD_BYTES, part.size_bytes):
            raise FetchFailed("the server sent a part of the requested range only")
        return part.size_bytes, part.etag, part.whole or part.received_bytes == part.size_bytes

    def read(self, file: BinaryIO, start: int, end: int, etag: str) -> None:
        """Read a range."""
        part = self.guard.fetch_part(
            self.url, file, start, end, limit_bytes=end - start, etag=etag, tenant=self.tenant, check=self.check,
            rate=self.rate,
        )  # fmt: skip
        if part.received_bytes != end - start:
            raise FetchFailed("the server sent a part of the requested range only")


@contextmanager
def refusing(profile: str | None) -> Iterator[None]:
    """Raise `MediaRefused` for a bucket that refuses the credentials of an access profile: a retry cannot help."""
    try:
        yield
    except ObjectStoreRefused as error:
        if profile is None:
            raise
        raise MediaRefused(
            f"the bucket refused the credentials of the access profile {profile!r} ({error.detail})"
        ) from error


@dataclass(frozen=True, slots=True)
class StoreSource:
    """An object, read from its store."""

    store: ObjectStore
    key: str
    #: The version that the request names; None for the current one.
    etag: str | None = None
    #: Name of the access profile of its bucket, if there is one.
    profile: str | None = None

    def begin(self, file: BinaryIO) -> tuple[int, str | None, bool]:
        """Read the first bytes."""
        with refusing(self.profile):
            info = self.store.head(self.key)
        self.read(file, 0, min(HEAD_BYTES, info.size_bytes), self.etag or info.etag)
        return info.size_bytes, self.etag or info.etag, info.size_bytes <= HEAD_BYTES

    def read(self, file: BinaryIO, start: int, end: int, etag: str) -> None:
        """Read a range."""
        file.seek(start)
        left = end - start
        with refusing(self.profile):
            for chunk in self.store.read(self.key, start=start, end=end, etag=etag):
                left -= len(chunk)
                file.write(chunk)
        if left:
            raise FetchFailed("the store sent a part of the requested range only")


@dataclass(slots=True)
class PartialFile:
    """A local file of which some ranges hold the source's bytes; the others are holes."""

    path: Path
    source: Source
    size_bytes: int
    etag: str
    #: Limit of all fetched bytes together.
    limit_bytes: int
    fetched_bytes: int
    #: Ranges that are there, in order, without overlaps.
    there: list[Range] = field(default_factory=list)

    def require_size(self) -> None:
        """Raise `MediaTooLarge` for a file of which not all may be fetched."""
        if self.size_bytes > self.limit_bytes:
            raise MediaTooLarge.beyond(self.limit_bytes)

    def fill(self, ranges: Iterable[Range]) -> int:
        """Fetch the ranges that are missing, and return their bytes.

        Raises `InvalidInput` for too many ranges, `MediaTooLarge` past the limit, `MediaChanged`, and the source's
        errors.
        """
        wanted = [(max(0, start), min(end, self.size_bytes)) for start, end in ranges]
        if len(wanted) + len(self.there) > MAX_RANGES:
            raise InvalidInput(f"The area needs more than {MAX_RANGES:,} parts of the file.")
        missing = list(joined(without(joined(wanted), self.there), GAP_BYTES))
        count = sum(end - start for start, end in missing)
        if self.fetched_bytes + count > self.limit_bytes:
            needed = self.fetched_bytes + count
            raise MediaTooLarge(
                f"The area needs {needed:,} bytes of the file; at most {self.limit_bytes:,} are allowed."
            )
        with self.path.open("r+b") as file:
            for start, end in missing:
                self.source.read(file, start, end, self.etag)
                self.fetched_bytes += end - start
        self.there = list(joined([*self.there, *missing]))
        return count


def begin_partial(path: Path, source: Source, limit_bytes: int) -> tuple[PartialFile | None, str | None]:
    """Create a local file with the first bytes of a source; return the partial file and the source's etag.

    The partial file is None if the source is fetched whole: a small file, a file that is no TIFF, and a source without
    a strong etag or without ranges.
    """
    with new_file(path) as file:
        size, etag, whole = source.begin(file)
        if whole:
            return None, etag
        file.truncate(size)
        file.seek(0)
    with path.open("rb") as file:
        is_tiff = file.read(4) in _TIFF
    if etag is None:
        path.unlink()
        return None, None
    begun = PartialFile(path, source, size, etag, limit_bytes, HEAD_BYTES, [(0, HEAD_BYTES)])
    if size <= SMALL_BYTES or not is_tiff:
        begun.fill([(0, size)])
        return None, etag
    return begun, etag


def joined(ranges: Iterable[Range], gap_bytes: int = 0) -> Iterator[Range]:
    """Yield ranges in order, with those joined that overlap or have at most `gap_bytes` between them."""
    last: Range | None = None
    for start, end in sorted(found for found in ranges if found[0] < found[1]):
        if last is not None and start <= last[1] + gap_bytes:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


def without(ranges: Iterable[Range], others: Iterable[Range]) -> Iterator[Range]:
    """Yield the parts of `ranges` that are in none of `others`; both are in order and without overlaps."""
    cuts, next_cut = list(others), 0
    for start, end in ranges:
        at = start
        while next_cut < len(cuts) and cuts[next_cut][0] < end:
            first, last = cuts[next_cut]
            if at < first:
                yield at, first
            at = max(at, last)
            if last > end:
                break  # it also covers a part of the next range
            next_cut += 1
        if at < end:
            yield at, end
