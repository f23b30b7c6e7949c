"""Archives of products are refused for what a member may not be, before any member is read."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.products.archive import has_member, opened_archive, read_member, read_text
from penstock.processors.geo.read.products.product_files import read_product

Change = Callable[[zipfile.ZipFile], None]


def archive(path: Path, *names: str, change: Change | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, b"a" * 1000)
        if change is not None:
            change(file)
    return path


def link(file: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("S2A.SAFE/MTD_MSIL2A.xml")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    file.writestr(info, "/etc/passwd")


def twice(file: zipfile.ZipFile) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("a", b"2")


def method(file: zipfile.ZipFile) -> None:
    file.writestr("b", b"2", zipfile.ZIP_LZMA)


@pytest.mark.parametrize(
    ("names", "change", "error", "sentence"),
    [
        (["../a"], None, InvalidInput, "a file with a place outside of itself"),
        (["a/../../b"], None, InvalidInput, "a file with a place outside of itself"),
        (["/etc/passwd"], None, InvalidInput, "a file with a place outside of itself"),
        (["a\\..\\b"], None, InvalidInput, "a file with a place outside of itself"),
        (["C:/a"], None, InvalidInput, "a file with a place outside of itself"),
        (["a//b"], None, InvalidInput, "a name with empty parts or dots, 'a//b'"),
        (["./a"], None, InvalidInput, "a name with empty parts or dots, './a'"),
        ([], link, InvalidInput, "has a link, 'S2A.SAFE/MTD_MSIL2A.xml'"),
        (["a"], twice, InvalidInput, "two files of one name"),
        ([], method, MediaUnreadable, "compressed by method 14, which is not read"),
    ],
    ids=["parent", "parent inside", "root", "backslash", "drive", "empty part", "dot", "link", "twice", "method"],
)
def test_members_that_are_not_plain_files_inside_are_refused(
    names: list[str], change: Change | None, error: type[InputError], sentence: str, tmp_path: Path
) -> None:
    path = archive(tmp_path / "a.zip", *names, change=change)
    with pytest.raises(error, match=sentence):
        read_product(path, Limits())


def patched(path: Path, *, local: int, central: int, value: bytes) -> Path:
    """Overwrite a field of all headers of an archive, at its place in the local and in the central header."""
    data = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        start = data.find(magic)
        while start >= 0:
            data[start + at : start + at + len(value)] = value
            start = data.find(magic, start + 4)
    path.write_bytes(data)
    return path


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = patched(archive(tmp_path / "a.zip", "a"), local=6, central=8, value=struct.pack("<H", 1))
    with pytest.raises(MediaUnreadable, match="is encrypted: send one without a password"):
        read_product(path, Limits())


def test_a_member_that_would_fill_the_memory_is_refused_by_its_declared_size(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", "a")
    with opened_archive(path) as file, pytest.raises(MediaTooLarge, match="has 1,000 bytes; at most 999"):
        read_member(file, "a", 999)


def test_no_more_is_decompressed_than_was_asked_for(tmp_path: Path) -> None:
    """A forged size: the header says 100 bytes, and the member has a million."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(1_000_000))
    path = patched(tmp_path / "a.zip", local=22, central=24, value=struct.pack("<I", 100))
    with opened_archive(path) as file:
        found = b""
        with suppress(MediaUnreadable):  # Python may check the sum of what it has read
            found = read_member(file, "a")
    assert len(found) <= 100


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.99])
def test_a_cut_off_archive_is_damaged(keep: float, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", *(f"{n}" for n in range(50)))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(MediaUnreadable, match="zip archive cannot be opened; it is damaged or incomplete"):
        read_product(path, Limits())


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", "a")
    data = bytearray(path.read_bytes())
    data[32:36] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with opened_archive(path) as file, pytest.raises(MediaUnreadable, match=r"^a in the zip archive cannot be read"):
        read_member(file, "a")


def test_documents_are_text(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", "a", change=lambda file: file.writestr("b", b"\xff\xfe\xff"))
    with opened_archive(path) as file:
        assert read_text(file, "a") == "a" * 1000
        assert (has_member(file, "b"), has_member(file, "c")) == (True, False)
        with pytest.raises(MediaUnreadable, match="b in the zip archive is not UTF-8 text"):
            read_text(file, "b")


def test_an_empty_archive_holds_no_product(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())
    with pytest.raises(MediaUnreadable, match="neither a Sentinel-2 product in SAFE nor a Zarr store"):
        read_product(tmp_path / "a.zip", Limits())
