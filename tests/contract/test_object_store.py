"""One contract for every object store: the local folder, and S3 on a real server."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.config import Settings
from penstock.errors import MediaChanged, MediaTooLarge, ObjectExists, ObjectNotFound
from penstock.storage.objects.base import Fetched, ObjectStore
from penstock.storage.objects.opening import open_store, tenant_webhook_secret
from tests.support.ceph import Ceph

TEXT = "text/plain"
BIG_BYTES = 30_000_000
ODD_KEYS = (
    "ünïcode/日本語 ファイル.tif",
    "plus+and %2B and %2F.txt",
    "a&b=c?d#e;f,g:h@i!j$k'l(m)n*o",
    'double "quotes" and <brackets>',
    "back\\slash",
    "dots../..name/...",
    "combining e\u0301 beside \u00e9",
    "emoji 🛰.bin",
    "a/" * 20 + "deep",
    "n" * 120,
)


@pytest.fixture(scope="module")
def bucket(ceph: Ceph) -> str:
    """Return the bucket of all tests, each of which has a prefix of its own."""
    return ceph.bucket()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return open_store((tmp_path / "objects").as_uri(), Settings())
    ceph, bucket = request.getfixturevalue("ceph"), request.getfixturevalue("bucket")
    return open_store(f"s3://{bucket}/some/{uuid4()}", Settings(s3=ceph.s3))


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run the calls in threads that start together; return each one's result or error."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        gate.wait(10)
        try:
            return call()
        except ObjectExists as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class TestPutAndGet:
    def test_bytes_come_back_with_their_type_and_size(self, store: ObjectStore) -> None:
        put = store.put_bytes("a/b.json", b"{}", content_type="application/json")
        assert store.get_bytes("a/b.json", limit_bytes=2) == b"{}"
        head = store.head("a/b.json")
        assert (head.key, head.size_bytes, head.content_type, head.etag) == (
            "a/b.json", 2, "application/json", put.etag,
        )  # fmt: skip
        assert abs(head.modified_s - put.modified_s) < 5

    def test_a_type_that_the_suffix_does_not_tell_is_kept(self, store: ObjectStore) -> None:
        cog = "image/tiff; application=geotiff; profile=cloud-optimized"
        store.put_bytes("classes.tif", b"II*\0", content_type=cog)
        assert store.head("classes.tif").content_type == cog
        assert keys(store) == ["classes.tif"]
        store.put_bytes("classes.tif", b"II*\0", content_type="image/tiff")
        assert store.head("classes.tif").content_type == "image/tiff"

    def test_an_empty_object_is_an_object(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put_bytes("empty", b"", content_type=TEXT)
        assert store.head("empty").size_bytes == 0
        assert store.get_bytes("empty", limit_bytes=0) == b""
        assert list(store.read("empty")) == []
        assert store.get_file("empty", tmp_path / "copy", limit_bytes=0).size_bytes == 0
        assert (tmp_path / "copy").read_bytes() == b""

    def test_a_large_file_goes_up_in_parts_and_comes_back_the_same(self, store: ObjectStore, tmp_path: Path) -> None:
        big = tmp_path / "big"
        big.write_bytes(os.urandom(BIG_BYTES))
        put = store.put_file("big.bin", big, content_type="application/octet-stream")
        got = store.get_file("big.bin", tmp_path / "copy", limit_bytes=BIG_BYTES, etag=put.etag)
        assert (put.size_bytes, got.size_bytes, got.etag) == (BIG_BYTES, BIG_BYTES, put.etag)
        assert store.head("big.bin").etag == put.etag
        assert _sha256(tmp_path / "copy") == _sha256(big)
        chunks = list(store.read("big.bin", start=BIG_BYTES - 5_000_000))
        assert max(map(len, chunks)) <= 1 << 20
        assert b"".join(chunks) == big.read_bytes()[-5_000_000:]

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept_to_the_letter(self, store: ObjectStore, key: str) -> None:
        store.put_bytes(key, key.encode(), content_type=TEXT)
        assert store.get_bytes(key, limit_bytes=1000) == key.encode()
        assert keys(store) == [key]
        assert keys(store, key[:-1]) == [key]
        store.delete(key)
        assert keys(store) == []

    def test_a_missing_object_is_not_found(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put_bytes("there", b"", content_type=TEXT)
        for missing in ("nothing", "there/below", "ther"):
            with pytest.raises(ObjectNotFound):
                store.head(missing)
            with pytest.raises(ObjectNotFound):
                store.get_bytes(missing, limit_bytes=1)
            with pytest.raises(ObjectNotFound):
                store.get_file(missing, tmp_path / "copy", limit_bytes=1)
            with pytest.raises(ObjectNotFound):
                list(store.read(missing))
        assert not (tmp_path / "copy").exists()

    def test_past_the_limit_nothing_is_left_on_disk(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put_bytes("ten", b"0123456789", content_type=TEXT)
        with pytest.raises(MediaTooLarge):
            store.get_bytes("ten", limit_bytes=9)
        with pytest.raises(MediaTooLarge):
            store.get_file("ten", tmp_path / "copy", limit_bytes=9)
        assert not (tmp_path / "copy").exists()

    def test_another_version_than_the_one_asked_for_is_media_changed(self, store: ObjectStore, tmp_path: Path) -> None:
        first = store.put_bytes("scene", b"one", content_type=TEXT)
        store.put_bytes("scene", b"two", content_type=TEXT)
        with pytest.raises(MediaChanged):
            store.get_file("scene", tmp_path / "copy", limit_bytes=10, etag=first.etag)
        assert not (tmp_path / "copy").exists()

    def test_a_small_object_is_fetched_into_memory_and_a_larger_one_into_a_file(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        put, asked = store.put_bytes("ten", b"0123456789", content_type=TEXT), list[str]()

        def place() -> Path:
            asked.append("file")
            return tmp_path / "copy"

        small = store.fetch("ten", place, limit_bytes=10, memory_bytes=10, etag=put.etag)
        assert (small, asked) == (Fetched(b"0123456789", put.etag), [])
        large = store.fetch("ten", place, limit_bytes=10, memory_bytes=9)
        assert (large, asked) == (Fetched(tmp_path / "copy", put.etag), ["file"])
        assert (tmp_path / "copy").read_bytes() == b"0123456789"

    @pytest.mark.parametrize("memory_bytes", [-1, 100])
    def test_what_may_not_be_fetched_leaves_nothing(
        self, store: ObjectStore, tmp_path: Path, memory_bytes: int
    ) -> None:
        store.put_bytes("ten", b"0123456789", content_type=TEXT)
        for key, limit_bytes, etag, error in (
            ("nothing", 100, None, ObjectNotFound),
            ("ten", 9, None, MediaTooLarge),
            ("ten", 100, "another", MediaChanged),
        ):
            with pytest.raises(error):
                store.fetch(
                    key, lambda: tmp_path / "copy", limit_bytes=limit_bytes, memory_bytes=memory_bytes, etag=etag
                )
        assert not (tmp_path / "copy").exists()

    def test_an_empty_object_is_fetched(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put_bytes("empty", b"", content_type=TEXT)
        assert store.fetch("empty", lambda: tmp_path / "copy", limit_bytes=0, memory_bytes=0).contents == b""

    def test_the_etag_changes_whenever_the_bytes_do(self, store: ObjectStore) -> None:
        etags = {store.put_bytes("key", bytes([n]) * 10, content_type=TEXT).etag for n in range(20)}
        assert len(etags) == 20

    def test_a_reader_never_sees_half_an_object(self, store: ObjectStore) -> None:
        bodies = [letter * 300_000 for letter in (b"a", b"b")]
        store.put_bytes("key", bodies[0], content_type=TEXT)
        done = threading.Event()

        def write() -> None:
            for n in range(20):
                store.put_bytes("key", bodies[n % 2], content_type=TEXT)
            done.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write)
            while not done.is_set() and not writer.done():
                assert store.get_bytes("key", limit_bytes=300_000) in bodies
            writer.result()

    @pytest.mark.parametrize(
        ("start", "end"), [(0, None), (0, 1), (3, 7), (9, None), (9, 50), (10, None), (50, 60), (5, 5), (0, 0)]
    )
    def test_a_range_is_a_slice(self, store: ObjectStore, start: int, end: int | None) -> None:
        store.put_bytes("ten", b"0123456789", content_type=TEXT)
        assert b"".join(store.read("ten", start=start, end=end)) == b"0123456789"[start:end]

    def test_a_range_can_be_pinned_to_a_version(self, store: ObjectStore) -> None:
        info = store.put_bytes("ten", b"0123456789", content_type=TEXT)
        assert b"".join(store.read("ten", start=2, end=5, etag=info.etag)) == b"234"
        store.put_bytes("ten", b"9876543210", content_type=TEXT)
        with pytest.raises(MediaChanged):
            list(store.read("ten", start=2, end=5, etag=info.etag))


class TestFirstWriterWins:
    def test_a_taken_key_stays_as_it_is(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put_bytes("key", b"first", content_type="text/csv", if_absent=True)
        with pytest.raises(ObjectExists):
            store.put_bytes("key", b"second", content_type=TEXT, if_absent=True)
        (tmp_path / "file").write_bytes(os.urandom(BIG_BYTES))
        with pytest.raises(ObjectExists):
            store.put_file("key", tmp_path / "file", content_type=TEXT, if_absent=True)
        assert store.get_bytes("key", limit_bytes=10) == b"first"
        assert store.head("key").content_type == "text/csv"

    def test_of_two_writers_at_once_exactly_one_wins(self, store: ObjectStore) -> None:
        for n in range(10):
            key, bodies = f"race/{n}", [b"left", b"right"]
            answers = at_once(
                *[partial(store.put_bytes, key, body, content_type=TEXT, if_absent=True) for body in bodies]
            )
            assert [isinstance(answer, ObjectExists) for answer in answers].count(True) == 1
            winner = bodies[[isinstance(answer, ObjectExists) for answer in answers].index(False)]
            assert store.get_bytes(key, limit_bytes=10) == winner

    def test_a_tenant_has_one_webhook_secret_whoever_asks_first(self, store: ObjectStore) -> None:
        answers = at_once(*[lambda: tenant_webhook_secret(store, "acme")] * 4)
        assert len(set(answers)) == 1
        assert str(answers[0]).startswith("whsec_")
        assert tenant_webhook_secret(store, "acme") == answers[0]
        assert tenant_webhook_secret(store, "other") != answers[0]


class TestListAndDelete:
    NAMES = ("B", "a-b", "a.b", "a/b", "a/c/d", "a0", "b", "é", "日")

    @pytest.fixture
    def full(self, store: ObjectStore) -> ObjectStore:
        for name in reversed(self.NAMES):
            store.put_bytes(name, name.encode(), content_type=TEXT)
        return store

    def test_keys_come_in_the_order_of_their_bytes(self, full: ObjectStore) -> None:
        assert keys(full) == ["B", "a-b", "a.b", "a/b", "a/c/d", "a0", "b", "é", "日"]

    @pytest.mark.parametrize(
        ("prefix", "found"),
        [
            ("a", ["a-b", "a.b", "a/b", "a/c/d", "a0"]),
            ("a/", ["a/b", "a/c/d"]),
            ("a/c", ["a/c/d"]),
            ("a/c/d", ["a/c/d"]),
            ("a/c/d/", []),
            ("nothing/", []),
            ("../", []),
            ("/", []),
        ],
    )
    def test_a_prefix_is_the_beginning_of_a_key(self, full: ObjectStore, prefix: str, found: list[str]) -> None:
        assert keys(full, prefix) == found

    def test_a_listing_says_size_etag_and_time(self, full: ObjectStore) -> None:
        (listed,) = full.list("日")
        head = full.head("日")
        assert (listed.size_bytes, listed.etag) == (head.size_bytes, head.etag)
        assert abs(listed.modified_s - head.modified_s) < 2

    def test_deleting_is_safe_to_repeat(self, full: ObjectStore) -> None:
        full.delete("a/b")
        full.delete("a/b")
        assert keys(full, "a/") == ["a/c/d"]
        with pytest.raises(ObjectNotFound):
            full.head("a/b")

    def test_many_are_deleted_together_and_missing_ones_are_no_error(self, full: ObjectStore) -> None:
        full.delete_many([])
        full.delete_many(["a/b", "never", "日", "a/c/d"])
        assert keys(full) == ["B", "a-b", "a.b", "a0", "b", "é"]

    def test_deleting_a_prefix_leaves_its_neighbours(self, full: ObjectStore) -> None:
        assert full.delete_prefix("a/") == 2
        assert full.delete_prefix("a/") == 0
        assert keys(full) == ["B", "a-b", "a.b", "a0", "b", "é", "日"]
        full.put_bytes("a/b", b"again", content_type=TEXT)
        assert full.get_bytes("a/b", limit_bytes=10) == b"again"

    def test_puts_and_deletes_beside_each_other_lose_nothing(self, store: ObjectStore) -> None:
        def put() -> None:
            for n in range(30):
                store.put_bytes(f"folder/kept-{n}", b"", content_type=TEXT)

        def churn() -> None:
            for _ in range(30):
                store.put_bytes("folder/gone", b"", content_type=TEXT)
                store.delete("folder/gone")
                store.delete_prefix("folder/gone")

        at_once(put, churn)
        assert sorted(keys(store)) == sorted(f"folder/kept-{n}" for n in range(30))


def test_a_running_store_answers_a_ping(store: ObjectStore) -> None:
    store.ping()
    assert keys(store) == []


def test_a_finished_upload_leaves_nothing_to_sweep(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0" * 17_000_000)
    store.put_file("key", tmp_path / "file", content_type=TEXT)
    assert store.sweep(older_than_s=0) == 0
    assert keys(store) == ["key"]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
