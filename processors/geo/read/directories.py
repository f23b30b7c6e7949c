"""TIFF and JPEG 2000 files before GDAL opens them: the size of their metadata and the number of TIFF directories.

GDAL turns XML metadata into a tree that takes 30 times their bytes, and reads every directory of a file when it
opens the file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.errors import MediaTooLarge

#: Bytes of one text of metadata. A scene of 400 described bands has 100 kB.
MAX_METADATA_BYTES = 2 * 2**20
#: Directories of a TIFF file: pages, overviews and masks.
MAX_DIRECTORIES = 1000
#: Boxes of a JPEG 2000 file at the top level.
MAX_BOXES = 1000

#: Tags that GDAL parses as text: description, XMP, its own metadata, nodata, and RPC coefficients.
_TEXT_TAGS = {270, 700, 42112, 42113, 50844}
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}


class _Form(NamedTuple):
    """Formats of numbers in a classic TIFF or a BigTIFF."""

    number: str
    entry: str
    offset: str


def check_metadata(path: Path, driver: str) -> None:
    """Raise `MediaTooLarge` for a raster file whose metadata take far more memory than its pixels let expect."""
    with path.open("rb") as file:
        if driver == "GTiff":
            _check_tiff(file)
        else:
            _check_boxes(file, path.stat().st_size)


def _check_tiff(file: BinaryIO) -> None:
    head = file.read(16)
    order = "<" if head[:2] == b"II" else ">"
    big = struct.unpack_from(f"{order}H", head, 2)[0] == 43 if len(head) == 16 else False
    form = _Form(f"{order}Q", f"{order}HHQ8x", f"{order}Q") if big else _Form(f"{order}H", f"{order}HHI4x", f"{order}I")
    try:
        at = struct.unpack_from(form.offset, head, 8 if big else 4)[0]
        seen: set[int] = set()
        while len(seen) < MAX_DIRECTORIES:
            if not at or at in seen:  # GDAL ends a circle too
                return
            seen.add(at)
            at = _check_directory(file, at, form)
    except (struct.error, OSError, OverflowError, ValueError):
        return  # damaged, as GDAL will say
    raise MediaTooLarge(f"The scene's file has more than {MAX_DIRECTORIES} pages, overviews and masks.")


def _check_directory(file: BinaryIO, at: int, form: _Form) -> int:
    """Check a directory's texts; return the next directory's offset."""
    file.seek(at)
    [count] = struct.unpack(form.number, file.read(struct.calcsize(form.number)))
    entry_bytes = struct.calcsize(form.entry)
    entries = file.read(min(count, 65_535) * entry_bytes)
    for tag, kind, values in struct.iter_unpack(form.entry, entries):
        if tag in _TEXT_TAGS:
            _check_text(values * _TYPE_BYTES.get(kind, 1))
    return int(struct.unpack(form.offset, file.read(struct.calcsize(form.offset)))[0])


def _check_boxes(file: BinaryIO, size: int) -> None:
    at = 0
    for _ in range(MAX_BOXES):
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return
        length, kind = struct.unpack_from(">I4s", head)
        if length == 1 and len(head) == 16:
            [length] = struct.unpack_from(">Q", head, 8)
        if length == 0:
            length = size - at
        if kind != b"jp2c":
            _check_text(min(length, size - at))
        if length < 8 or (kind == b"jp2c" and at + length >= size):
            return
        at += length
    raise MediaTooLarge(f"The scene's file has more than {MAX_BOXES} boxes.")


def _check_text(size_bytes: int) -> None:
    if size_bytes > MAX_METADATA_BYTES:
        raise MediaTooLarge(
            f"The scene's file holds {size_bytes:,} bytes of metadata in one place; at most {MAX_METADATA_BYTES:,} are "
            "allowed."
        )
