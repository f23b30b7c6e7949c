"""Small media of a job stay in memory, as many as one message to its process holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FetchFailed, MediaNotFound, MediaRefused, PenstockError, ProcessorFailed
from penstock.functions.wire import MAX_ARRAYS, SMALL_BYTES, prepare
from penstock.intake.local_media import LocalMedia
from penstock.processors.links import LinkedFile
from penstock.workers.job_media import HELD_BYTES, MAX_HELD, JobMedia
from penstock.workers.processing import Work, held_media
from tests.contract.test_processing import MODEL


class Store:
    """Media of given sizes, each named by its number."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __call__(
        self, reference: str, folder: Path, *, by_range: bool, memory_bytes: int
    ) -> tuple[LocalMedia, None]:  # fmt: skip
        assert not by_range
        data, path = bytes(self.sizes[int(reference)]), folder / reference
        if len(data) <= memory_bytes:
            return LocalMedia(path, data=data), None
        path.write_bytes(data)
        return LocalMedia(path), None


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ([HELD_BYTES], [0]),
        ([HELD_BYTES + 1], []),
        ([HELD_BYTES, 1, 0], [0, 2]),
        ([HELD_BYTES, 20, HELD_BYTES // 2], [0]),
        ([30_000, 30_000, 10_000], [0, 2]),
        ([1] * 300, list(range(MAX_HELD))),
        ([HELD_BYTES // MAX_HELD] * MAX_HELD, list(range(MAX_HELD))),
    ],
)
def test_small_media_stay_in_memory_while_one_message_holds_them(
    sizes: list[int], held: list[int], tmp_path: Path
) -> None:
    counted = list[int]()
    media = JobMedia(Store(sizes), tmp_path, counted.append, left_bytes=HELD_BYTES, hashed=True)
    for number in range(len(sizes)):
        media.add(str(number), by_range=False)
    assert [int(reference) for reference, file in media.files.items() if file.data is not None] == held
    assert counted == [media.sizes[str(number)] for number in range(len(sizes))] == sizes
    assert media.hashes == {str(number): hashlib.sha256(bytes(size)).hexdigest() for number, size in enumerate(sizes)}
    packed = prepare(held_media(Work(MODEL, {}, dict(media.files), tmp_path)))
    assert sum(map(len, packed.parts)) <= SMALL_BYTES
    assert len(packed.rows) <= MAX_ARRAYS


def test_a_file_that_a_document_names_is_never_held(tmp_path: Path) -> None:
    """The processor gets a path for it."""
    media = JobMedia(Store([5]), tmp_path, lambda _: None, left_bytes=HELD_BYTES, linked={"0": LinkedFile()})
    assert media.fetch("0", by_range=False).path.read_bytes() == bytes(5)


class Places:
    """Files at some addresses, and an error at all others; `asked` is in the order of the tries."""

    def __init__(self, **found: bytes | PenstockError) -> None:
        self.found = found
        self.asked: list[str] = []

    def __call__(self, reference: str, folder: Path, **_: object) -> tuple[LocalMedia, None]:
        self.asked.append(reference)
        found = self.found[reference.partition("://")[0]]
        if isinstance(found, PenstockError):
            raise found
        path = folder / f"{len(self.asked)}.tif"
        path.write_bytes(found)
        return LocalMedia(path), None


def described(**asset: object) -> dict[str, object]:
    alternates = {"s3": {"href": "s3://bucket/a.tif"}, "other": {"href": "ftp://far/a.tif"}, "bad": "no asset"}
    asset = {"href": "https://host/a.tif", "alternate": alternates, **asset}
    return {"type": "Feature", "properties": {}, "assets": {"image": asset}}


def media_of(places: Places, folder: Path, document: dict[str, object], order: Callable[..., Any] = list) -> JobMedia:
    media = JobMedia(places, folder, lambda _: None, order=order)
    media.allow_links(document)
    return media


def test_the_next_address_of_a_file_is_tried_after_one_that_fails(tmp_path: Path) -> None:
    places = Places(https=MediaRefused("no"), s3=FetchFailed("down"), ftp=b"here")
    media = media_of(places, tmp_path, described())
    assert media.fetch("https://host/a.tif", by_range=False).path.read_bytes() == b"here"
    assert places.asked == ["https://host/a.tif", "s3://bucket/a.tif", "ftp://far/a.tif"]


def test_the_best_address_is_tried_first_and_no_other_if_it_works(tmp_path: Path) -> None:
    places = Places(https=b"web", s3=b"bucket", ftp=b"far")
    media = media_of(places, tmp_path, described(), lambda found: sorted(found, reverse=True))
    assert media.fetch("https://host/a.tif", by_range=False).path.read_bytes() == b"bucket"
    assert places.asked == ["s3://bucket/a.tif"]


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        ({"https": MediaRefused("no"), "s3": MediaNotFound("gone"), "ftp": MediaRefused("no")}, MediaRefused),
        (
            {"https": MediaRefused("no"), "s3": FetchFailed("down", retry_after_s=7), "ftp": MediaRefused("no")},
            FetchFailed,
        ),
    ],
)
def test_a_job_is_tried_again_if_one_address_may_come_back(
    failures: dict[str, Any], error: type[PenstockError], tmp_path: Path
) -> None:
    media = media_of(Places(**failures), tmp_path, described())
    with pytest.raises(error, match=r"none of its 3 addresses could be read: https://host: no; s3://bucket") as caught:
        media.fetch("https://host/a.tif", by_range=False)
    assert caught.value.retry_after_s == (7 if error is FetchFailed else None)


def test_a_file_with_another_size_or_checksum_is_read_elsewhere(tmp_path: Path) -> None:
    checksum = f"1220{hashlib.sha256(b'right').hexdigest()}"
    places = Places(https=b"wrong", s3=b"longer than it", ftp=b"right")
    document = described(**{"file:size": 5, "file:checksum": checksum})
    media = media_of(places, tmp_path, document)
    assert media.fetch("https://host/a.tif", by_range=False).path.read_bytes() == b"right"
    places = Places(https=b"wrong", s3=b"longer than it", ftp=FetchFailed("down"))
    media = media_of(places, tmp_path, document)
    with pytest.raises(FetchFailed, match=r"file:checksum.*file:size"):
        media.fetch("https://host/a.tif", by_range=False)


def test_an_alternate_address_is_no_file_of_its_own(tmp_path: Path) -> None:
    media = media_of(Places(https=b"web"), tmp_path, described())
    with pytest.raises(ProcessorFailed):
        media.fetch("s3://bucket/a.tif", by_range=False)


def test_an_asset_without_an_absolute_address_is_read_at_its_alternate_one(tmp_path: Path) -> None:
    media = media_of(Places(s3=b"bucket", ftp=b"far"), tmp_path, described(href="./a.tif"))
    assert media.fetch("s3://bucket/a.tif", by_range=False).path.read_bytes() == b"bucket"
