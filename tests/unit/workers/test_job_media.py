"""Small media of a job stay in memory, as many as one message to its process holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.functions.wire import MAX_ARRAYS, SMALL_BYTES, prepare
from penstock.intake.local_media import LocalMedia
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
    media = JobMedia(Store([5]), tmp_path, lambda _: None, left_bytes=HELD_BYTES, linked={"0"})
    assert media.fetch("0", by_range=False).path.read_bytes() == bytes(5)
