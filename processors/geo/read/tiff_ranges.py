"""Ranges of a TIFF file that the pixels of a box need, found in its header, which is fetched first.

Only for partial files (`Media.is_partial`). GDAL opens a partial file like any other: its header is there, and the
blocks of the box. All of the file's directories are fetched, because GDAL reads them when it opens the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.processors.base import Media
from penstock.processors.geo.tiling.plan import Box

#: Bytes of the pages in which a header is fetched, and of the part that is there from the beginning.
_PAGE_BYTES: Final = 64 * 1024
#: Bytes of all directories of a file with their values. 16 million blocks have 192 MB.
_MAX_HEADER_BYTES = 256 * 2**20
#: Directories of a file: pages, overviews and masks.
MAX_DIRECTORIES = 1000
#: GDAL's COGs have the block's size before each block, and its last bytes repeated after it.
_BESIDE_BYTES = 4

_TYPES: Final[Mapping[int, str]] = {
    1: "B", 2: "B", 3: "H", 4: "I", 5: "Q", 6: "b", 7: "B", 8: "h", 9: "i", 10: "q", 11: "f", 12: "d", 13: "I",
    16: "Q", 17: "q", 18: "Q",
}  # fmt: skip
_SUBFILE, _WIDTH, _LENGTH, _SAMPLES, _ROWS_PER_STRIP, _PLANAR = 254, 256, 257, 277, 278, 284
_TILE_WIDTH, _TILE_LENGTH = 322, 323
#: Tags with the places and the sizes of strips, or of tiles.
_STRIPS, _TILES = (273, 279), (324, 325)
#: Bits of `_SUBFILE`: a smaller copy of another page, and a mask.
_OVERVIEW, _MASK = 1, 4


@dataclass(frozen=True, slots=True)
class Directory:
    """Layout of one page of a file."""

    width: int
    height: int
    block_width: int
    block_height: int
    #: Number of planes with blocks of their own: bands that are stored one after the other, else 1.
    planes: int
    offsets: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]

    def blocks(self, box: Box, planes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the blocks that have pixels of a box, in the given planes (from 0)."""
        across, down = -(-self.width // self.block_width), -(-self.height // self.block_height)
        rows = np.arange(box.top // self.block_height, -(-min(box.bottom, self.height) // self.block_height))
        columns = np.arange(box.left // self.block_width, -(-min(box.right, self.width) // self.block_width))
        for plane in planes if self.planes > 1 else (0,):
            at = (plane * across * down + rows[:, None] * across + columns).ravel()
            at = at[at < min(len(self.offsets), len(self.sizes))]
            for offset, size in zip(self.offsets[at].tolist(), self.sizes[at].tolist(), strict=True):
                if size:
                    yield max(0, offset - _BESIDE_BYTES), offset + size + _BESIDE_BYTES


@dataclass(frozen=True, slots=True)
class PartialTiff:
    """A partial file whose header is there."""

    media: Media
    reference: str
    #: The page that GDAL opens, and its masks.
    directories: tuple[Directory, ...]

    def fill(self, box: Box, bands: Sequence[int], *, later: bool = False) -> None:
        """Fetch the blocks with the pixels of a box, of bands from 1; masks too. `later`: see `Media.fill`."""
        self.media.fill(self.reference, self._ranges(box, bands), later=later)

    def size_bytes(self, box: Box, bands: Sequence[int]) -> int:
        """Return the bytes that `fill` fetches, if nothing is there yet."""
        return sum(end - start for start, end in self._ranges(box, bands))

    def _ranges(self, box: Box, bands: Sequence[int]) -> list[tuple[int, int]]:
        planes = sorted({band - 1 for band in bands})
        page, *masks = self.directories
        return [*page.blocks(box, planes), *(found for mask in masks for found in mask.blocks(box, (0,)))]


def open_partial(media: Media, reference: str) -> PartialTiff | None:
    """Fetch the header of a partial file; None for a whole file. Raises `MediaUnreadable` for a damaged header."""
    if not media.is_partial(reference):
        return None
    path = media.path(reference)
    with path.open("rb") as file:
        try:
            header = _Header(media, reference, file, path.stat().st_size)
            pages = [header.directory(tags) for tags in header.walk()]
        except (struct.error, ValueError, KeyError, OverflowError, ZeroDivisionError) as error:
            raise MediaUnreadable("The scene's header cannot be read; it is damaged or incomplete.") from error
    first = pages[0][1] if pages else None
    if first is None:
        raise MediaUnreadable("The scene's header cannot be read; it is damaged or incomplete.")
    masks = (page for kind, page in pages[1:] if kind & _MASK and not kind & _OVERVIEW and page is not None)
    same = (page for page in masks if (page.width, page.height) == (first.width, first.height))
    return PartialTiff(media, reference, (first, *same))


class _Header:
    """Reader of a file's header, which fetches the pages that it reads."""

    def __init__(self, media: Media, reference: str, file: BinaryIO, size: int) -> None:
        self._media, self._reference, self._file, self._size = media, reference, file, size
        self._pages: set[int] = {0}
        head = file.read(16)
        order = "<" if head[:2] == b"II" else ">"
        self._big = struct.unpack_from(f"{order}H", head, 2)[0] == 43
        self._order = order
        self._first = struct.unpack_from(f"{order}{'Q' if self._big else 'I'}", head, 8 if self._big else 4)[0]

    def walk(self) -> Iterator[Mapping[int, npt.NDArray[Any]]]:
        """Yield the tags of each directory with their values. The values of all tags are fetched."""
        at, seen = int(self._first), set[int]()
        while at and at not in seen:
            if len(seen) == MAX_DIRECTORIES:
                raise MediaTooLarge(f"The scene's file has more than {MAX_DIRECTORIES} pages, overviews and masks.")
            seen.add(at)
            tags, at = self._directory(at)
            yield tags

    def _directory(self, at: int) -> tuple[dict[int, npt.NDArray[Any]], int]:
        number, entry, offset = ("Q", "HHQ8s", "Q") if self._big else ("H", "HHI4s", "I")
        head = struct.calcsize(f"={number}")
        [count] = struct.unpack(f"{self._order}{number}", self._read(at, head))
        entry_bytes = struct.calcsize(f"={entry}")
        entries = self._read(at + head, min(count, 65_535) * entry_bytes)
        tags = {
            tag: self._values(kind, values, inline)
            for tag, kind, values, inline in struct.iter_unpack(f"{self._order}{entry}", entries)
            if kind in _TYPES
        }
        last = at + head + len(entries)
        [following] = struct.unpack(f"{self._order}{offset}", self._read(last, struct.calcsize(f"={offset}")))
        return tags, int(following)

    def _values(self, kind: int, count: int, inline: bytes) -> npt.NDArray[Any]:
        dtype = np.dtype(self._order + _TYPES[kind])
        size = count * dtype.itemsize
        if size > _MAX_HEADER_BYTES:
            raise MediaTooLarge(f"The scene's header has more than {_MAX_HEADER_BYTES:,} bytes.")
        if size <= len(inline):
            return np.frombuffer(inline[:size], dtype)
        [at] = struct.unpack(f"{self._order}{'Q' if self._big else 'I'}", inline)
        return np.frombuffer(self._read(at, size), dtype)

    def _read(self, at: int, size: int) -> bytes:
        if at + size > self._size:
            raise ValueError("the header goes on beyond the end of the file")
        pages = set(range(at // _PAGE_BYTES, -(-(at + size) // _PAGE_BYTES))) - self._pages
        if pages:
            self._pages |= pages
            if len(self._pages) * _PAGE_BYTES > _MAX_HEADER_BYTES:
                raise MediaTooLarge(f"The scene's header has more than {_MAX_HEADER_BYTES:,} bytes.")
            wanted = [(page * _PAGE_BYTES, min(self._size, (page + 1) * _PAGE_BYTES)) for page in sorted(pages)]
            self._media.fill(self._reference, wanted)
        self._file.seek(at)
        return self._file.read(size)

    def directory(self, tags: Mapping[int, npt.NDArray[Any]]) -> tuple[int, Directory | None]:
        """Return the kind and the layout of a page; None for one without blocks."""

        def one(tag: int, default: int) -> int:
            return int(tags[tag][0]) if tag in tags and len(tags[tag]) else default

        width, height = one(_WIDTH, 0), one(_LENGTH, 0)
        tiled = _TILE_WIDTH in tags
        places, sizes = _TILES if tiled else _STRIPS
        if places not in tags or sizes not in tags or not width or not height:
            return one(_SUBFILE, 0), None
        block_width, block_height = one(_TILE_WIDTH, width), one(_TILE_LENGTH, 0) or one(_ROWS_PER_STRIP, height)
        planes = one(_SAMPLES, 1) if one(_PLANAR, 1) == 2 else 1
        offsets, counts = tags[places].astype(np.uint64), tags[sizes].astype(np.uint64)
        block_height = block_height if tiled else min(block_height, height)
        layout = Directory(width, height, block_width, block_height, planes, offsets, counts)
        return one(_SUBFILE, 0), layout
