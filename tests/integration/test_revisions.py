"""Documents with conditional writes, in a folder and in a real S3 server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.storage.journal.revisions import KEPT, Revision, put_next, read_latest, revision_in
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.local import LocalStore

PREFIX = "tenants/t/things/a/"


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path)


def test_the_latest_revision_is_the_document(objects: ObjectStore) -> None:
    assert read_latest(objects, PREFIX, limit_bytes=100) is None
    assert put_next(objects, PREFIX, 1, b"one")
    assert put_next(objects, PREFIX, 2, b"two")
    assert put_next(objects, PREFIX + "b/", 7, b"of another document")
    assert read_latest(objects, PREFIX, limit_bytes=100) == Revision(2, b"two")


def test_of_many_writers_of_one_revision_one_wins_and_may_ask_again(objects: ObjectStore) -> None:
    bodies = [str(number).encode() for number in range(20)]
    with ThreadPoolExecutor(10) as pool:
        won = list(pool.map(lambda body: put_next(objects, PREFIX, 1, body), bodies))
    assert won.count(True) == 1
    winner = bodies[won.index(True)]
    assert read_latest(objects, PREFIX, limit_bytes=100) == Revision(1, winner)
    assert put_next(objects, PREFIX, 1, winner)  # its answer was lost


def test_old_revisions_are_dropped_and_the_last_ones_keep_their_numbers(objects: ObjectStore) -> None:
    for number in range(1, KEPT + 6):
        assert put_next(objects, PREFIX, number, b"x%d" % number)
    kept = [info.key for info in objects.list(PREFIX)]
    assert [found[1] for key in kept if (found := revision_in(key))] == list(range(6, KEPT + 6))
    assert not put_next(objects, PREFIX, KEPT, b"of a writer that was stopped for long")


def test_other_keys_are_no_revisions() -> None:
    assert revision_in("tenants/t/things/a/00000012.json") == ("tenants/t/things/a/", 12)
    assert revision_in("tenants/t/things/a/12.json") is None
