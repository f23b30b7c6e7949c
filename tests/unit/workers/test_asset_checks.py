"""A fetched file beside the size and checksum of its STAC item."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.errors import FetchFailed
from penstock.intake.local_media import LocalMedia
from penstock.processors.links import LinkedFile
from penstock.workers.asset_checks import check_file, multihash

DATA = b"II*\0 and more"
#: Head of a multihash, and its algorithm.
HEADS = {"1220": "sha256", "1114": "sha1", "1340": "sha512", "1620": "sha3_256", "d50110": "md5"}


def checksum(head: str, data: bytes) -> str:
    return head + hashlib.new(HEADS[head], data).hexdigest()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_right_checksum_passes_and_a_wrong_one_does_not(head: str, in_memory: bool, tmp_path: Path) -> None:
    path = tmp_path / "media.tif"
    path.write_bytes(DATA)
    file = LocalMedia(path, data=DATA if in_memory else None)
    check_file(LinkedFile(checksum=checksum(head, DATA), size_bytes=len(DATA)), file, None)
    check_file(LinkedFile(checksum=checksum(head, DATA).upper()), file, None)
    with pytest.raises(FetchFailed, match=HEADS[head]):
        check_file(LinkedFile(checksum=checksum(head, b"other")), file, None)


def test_a_partial_file_is_compared_by_its_whole_size(tmp_path: Path) -> None:
    path = tmp_path / "media.tif"
    path.write_bytes(DATA[:4])
    described = LinkedFile(size_bytes=len(DATA), checksum=checksum("1220", DATA))
    check_file(described, LocalMedia(path, partial=True), len(DATA))
    with pytest.raises(FetchFailed, match="has 99 bytes; its STAC item declares 13"):
        check_file(described, LocalMedia(path, partial=True), 99)


@pytest.mark.parametrize("text", ["", "zz", "1220", "1220abcd", "b220" + "0" * 64, "1220" + "0" * 63])
def test_another_checksum_is_not_compared(text: str) -> None:
    assert multihash(text) is None
    check_file(LinkedFile(checksum=text), LocalMedia(Path("x"), data=DATA), None)
