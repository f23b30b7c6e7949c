"""Zip archives of products: names, sizes and kinds of their members are checked before any is read."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.errors import InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.json_body import shown
from penstock.processors.decoding import decoding

#: Members of an archive: a Zarr store has one for each of its chunks.
_MAX_MEMBERS: Final = 500_000
#: Bytes of a member; the largest in SAFE are images of 200 MB.
_MAX_MEMBER_BYTES: Final = 4 * 2**30
#: Bytes of a document in an archive.
_MAX_TEXT_BYTES: Final = 16 * 2**20
#: Bit of a member that is encrypted.
_ENCRYPTED: Final = 1
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@contextmanager
def opened_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading.

    Raises `MediaUnreadable` for a damaged, encrypted or otherwise compressed one, `MediaTooLarge` for too many or too
    large members, and `InvalidInput` for names that leave the archive, that repeat, and for links.
    """
    try:
        with decoding(size_bytes=path.stat().st_size):
            archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        # `ZipFile` raises NotImplementedError for a member of a version of the format after 6.3.
        raise MediaUnreadable("The zip archive cannot be opened; it is damaged or incomplete.") from error
    with archive:
        _check(archive)
        yield archive


def _check(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise MediaTooLarge(f"The zip archive has {len(members):,} files; at most {_MAX_MEMBERS:,} are read.")
    if len({member.filename for member in members}) != len(members):
        raise InvalidInput("The zip archive has two files of one name, which is not read.")
    for member in members:
        _check_member(member)


def _check_member(member: zipfile.ZipInfo) -> None:
    name = member.filename
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or ".." in parts or ":" in name.partition("/")[0]:
        raise InvalidInput("The zip archive has a file with a place outside of itself, which is not read.")
    if name.removesuffix("/") != "/".join(parts):  # `a//b` and `./a/b` are `a/b` for others, so two files of one name
        raise InvalidInput(f"The zip archive has a name with empty parts or dots, {shown(name)!r}, which is not read.")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise InvalidInput(f"The zip archive has a link, {shown(name)!r}, which is not read.")
    if member.flag_bits & _ENCRYPTED:
        raise MediaUnreadable("The zip archive is encrypted: send one without a password.")
    if member.compress_type not in _METHODS:
        raise MediaUnreadable(
            f"The zip archive is compressed by method {member.compress_type}, which is not read: use deflate, or none."
        )
    if member.file_size > _MAX_MEMBER_BYTES:
        raise MediaTooLarge(f"{shown(name)} in the zip archive has {member.file_size:,} bytes.")


def has_member(archive: zipfile.ZipFile, name: str) -> bool:
    """Return True if an archive has a file of this name."""
    try:
        archive.getinfo(name)
    except KeyError:
        return False
    return True


def read_member(archive: zipfile.ZipFile, name: str, limit: int = _MAX_TEXT_BYTES) -> bytes:
    """Return a member's bytes. Raises `MediaTooLarge` for more than `limit` bytes, and `MediaUnreadable`."""
    size = archive.getinfo(name).file_size
    if size > limit:
        raise MediaTooLarge(f"{shown(name)} in the zip archive has {size:,} bytes; at most {limit:,} are read.")
    try:
        with archive.open(name) as file:
            # A forged size does not matter: no more is decompressed.
            return file.read(limit)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, NotImplementedError) as error:
        # `ZipFile.open` raises NotImplementedError for patched data and strong encryption (bits 5 and 6).
        raise MediaUnreadable(f"{shown(name)} in the zip archive cannot be read; it is damaged.") from error


def read_text(archive: zipfile.ZipFile, name: str) -> str:
    """Return a document of UTF-8. Raises the errors of `read_member`."""
    try:
        return read_member(archive, name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MediaUnreadable(f"{shown(name)} in the zip archive is not UTF-8 text.") from error
