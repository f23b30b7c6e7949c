"""The pauses between tries while the object store is away, and reads that go on after a wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MediaChanged, ObjectStoreUnavailable
from penstock.storage.objects.local import LocalStore
from penstock.workers.attempts import Attempt
from penstock.workers.store_waits import FIRST_PAUSE_S, MAX_PAUSE_S, StoreWaits, pause_s

DATA = bytes(range(256)) * 10


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause_s(n, 0.0) for n in range(1, 8)] == [0.25, 0.5, 1, 2, 4, 8, 10]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_pause_is_never_nothing_and_never_long(failures: int, draw: float) -> None:
    assert FIRST_PAUSE_S / 2 <= pause_s(failures, draw) <= MAX_PAUSE_S


@dataclass
class Resting:
    """The part of an attempt that waits: it counts its rests instead of sleeping."""

    waited_s: float = 0.0
    rests: int = 0

    def begin_wait(self, begun_s: float, *, budget_s: float) -> None:
        """Begin to wait."""

    def end_wait(self) -> None:
        """End the wait."""

    def check(self) -> None:
        """Nothing interrupts."""

    def rest(self, pause_s_: float) -> None:
        self.rests += 1
        self.waited_s += pause_s_


class Leaving(LocalStore):
    """A store whose readings are cut off: each sends at most so many bytes, and then fails."""

    def __init__(self, root: Path, sent_bytes: list[int]) -> None:
        super().__init__(root)
        self._sent_bytes = sent_bytes
        self.starts: list[int] = []

    def read(self, key: str, *, start: int = 0, end: int | None = None, etag: str | None = None) -> Iterator[bytes]:
        self.starts.append(start)
        if not self._sent_bytes:
            yield from super().read(key, start=start, end=end, etag=etag)
            return
        data, count = b"".join(super().read(key, start=start, end=end, etag=etag)), self._sent_bytes.pop(0)
        if count:
            yield data[:count]
        raise ObjectStoreUnavailable("the store is away")


def stored(folder: Path, sent_bytes: list[int]) -> tuple[Leaving, str]:
    (folder / "data").write_bytes(DATA)
    store = Leaving(folder / "objects", sent_bytes)
    return store, store.put_file("data", folder / "data", content_type="image/tiff").etag


def test_a_range_that_is_cut_off_goes_on_where_it_ended(tmp_path: Path) -> None:
    store, etag = stored(tmp_path, [0, 700, 0, 1, 300])
    attempt, waits = Resting(), StoreWaits(store, 3600)
    patient = waits.store(cast("Attempt", attempt))
    assert b"".join(patient.read("data", start=100, end=2000, etag=etag)) == DATA[100:2000]
    assert (attempt.rests, store.starts) == (5, [100, 100, 800, 800, 801, 1101])
    assert b"".join(patient.read("data", etag=etag)) == DATA
    assert not waits.away()


def test_a_range_of_an_object_that_changed_meanwhile_fails(tmp_path: Path) -> None:
    store, etag = stored(tmp_path, [700])
    chunks = StoreWaits(store, 3600).store(cast("Attempt", Resting())).read("data", etag=etag)
    assert next(chunks) == DATA[:700]
    (tmp_path / "other").write_bytes(DATA[::-1])
    store.put_file("data", tmp_path / "other", content_type="image/tiff")
    with pytest.raises(MediaChanged):
        next(chunks)


def test_a_wait_for_a_range_ends_with_the_attempts_budget(tmp_path: Path) -> None:
    store, etag = stored(tmp_path, [0] * 99)
    attempt = Resting()
    with pytest.raises(ObjectStoreUnavailable):
        next(StoreWaits(store, 1.0).store(cast("Attempt", attempt)).read("data", etag=etag))
    assert 2 <= attempt.rests < 99
