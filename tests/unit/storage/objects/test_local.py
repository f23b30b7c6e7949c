"""The local store's own behaviour: keys that are paths, links to the API, drop folders that others write into."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from penstock.config import Settings
from penstock.errors import (
    ConfigError,
    FetchFailed,
    InvalidRequest,
    MediaChanged,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
)
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.local_files import copy_whole, read_whole
from penstock.storage.objects.opening import open_store
from penstock.storage.signing import verify_link

NO_KEYS = ["", "/", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "./a", "a//b", "a/", "a\0b", "x" * 256]
NO_KEYS += ["a/" * 600 + "a", "\udc80", ".penstock/tmp/x", ".penstock"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", base_url="http://127.0.0.1:8080", secret="secret", clock=lambda: 1000.5)


@pytest.mark.parametrize("key", NO_KEYS)
def test_what_is_no_path_below_the_folder_is_no_key(store: LocalStore, tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(InvalidRequest):
        store.put_bytes(key, b"x", content_type="a/b")
    with pytest.raises(InvalidRequest):
        store.put_file(key, tmp_path / "file", content_type="a/b", if_absent=True)
    for ask in (store.head, store.delete, store.uri):
        with pytest.raises(InvalidRequest):
            ask(key)
    with pytest.raises(InvalidRequest):
        store.get_bytes(key, limit_bytes=1)
    with pytest.raises(InvalidRequest):
        next(store.read(key))
    assert sorted(path.name for path in tmp_path.iterdir()) in (["file"], ["file", "store"])


@pytest.mark.parametrize("prefix", ["../", "/", "a/../../", "\udc80/"])
def test_no_prefix_leads_out_of_the_folder(store: LocalStore, tmp_path: Path, prefix: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store.put_bytes("a/b", b"x", content_type="a/b")
    assert list(store.list(prefix)) == []
    assert store.delete_prefix(prefix) == 0
    assert (tmp_path / "file").exists()


def test_a_link_out_of_the_folder_is_not_an_object(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    store.put_bytes("real", b"x", content_type="a/b")
    (store.root / "link").symlink_to(tmp_path / "secret")
    (store.root / "folder").symlink_to(tmp_path)
    os.mkfifo(store.root / "pipe")
    assert [info.key for info in store.list("")] == ["real"]
    for key in ("link", "pipe", "folder"):
        with pytest.raises(ObjectNotFound):
            store.head(key)
        with pytest.raises((ObjectNotFound, ObjectStoreUnavailable)):
            store.get_bytes(key, limit_bytes=1)


def test_a_key_cannot_lie_under_another(store: LocalStore) -> None:
    store.put_bytes("a", b"x", content_type="a/b")
    for if_absent in (False, True):
        with pytest.raises(InvalidRequest):
            store.put_bytes("a/b", b"x", content_type="a/b", if_absent=if_absent)
    store.put_bytes("c/d", b"x", content_type="a/b")
    with pytest.raises((InvalidRequest, ObjectExists)):
        store.put_bytes("c", b"x", content_type="a/b")
    assert [info.key for info in store.list("")] == ["a", "c/d"]


def test_files_that_others_put_there_are_objects(store: LocalStore) -> None:
    (store.root / "in").mkdir(parents=True)
    (store.root / "in" / "scene.tif").write_bytes(b"II*")
    (store.root / "in" / os.fsdecode(b"\xff.tif")).write_bytes(b"not a key")
    (info,) = store.list("in/")
    assert (info.key, info.size_bytes) == ("in/scene.tif", 3)
    assert store.head("in/scene.tif").content_type == "image/tiff"
    assert store.head("in/scene.tif").etag == info.etag
    (store.root / "in" / "scene.tif").write_bytes(b"II*+")
    assert store.head("in/scene.tif").etag != info.etag


def test_a_file_that_grows_while_it_is_copied_is_media_changed(store: LocalStore, tmp_path: Path) -> None:
    store.root.mkdir()
    with (store.root / "growing").open("wb", buffering=0) as file:
        file.write(b"0" * 100)
        etag = store.head("growing").etag
        file.write(b"1")
        with pytest.raises(MediaChanged):
            store.get_file("growing", tmp_path / "copy", limit_bytes=1000, etag=etag)
    assert not (tmp_path / "copy").exists()


def test_deleting_leaves_no_empty_folders_and_no_notes(store: LocalStore) -> None:
    for key in ("a/b/c.tif", "a/b/d", "e"):
        store.put_bytes(key, b"x", content_type="odd/type")
    store.delete_prefix("a/")
    store.delete("e")
    left = [path for path in store.root.rglob("*") if path.is_file()]
    assert left == []
    assert [path.name for path in store.root.iterdir()] == [".penstock"]


def test_a_put_makes_its_folder_again_that_deletes_remove(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=lambda _: None)  # so that puts and deletes follow each other closely

    def put_and_delete(name: str) -> None:
        for _ in range(500):
            store.put_bytes(f"a/b/c/{name}", b"x", content_type="text/plain")
            store.delete(f"a/b/c/{name}")

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put_and_delete, "wxyz"))
    finally:
        sys.setswitchinterval(interval_s)
    assert not list(store.list(""))


def test_contents_are_synced_before_their_name_and_folders_before_the_end(tmp_path: Path) -> None:
    synced: list[tuple[str, bool]] = []

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)
        content = path.parent == Path(".penstock/tmp")
        assert not content or os.fstat(descriptor).st_size == 5
        synced.append(("content" if content else path.as_posix(), (tmp_path / "jobs/a/request.json").exists()))

    store = LocalStore(tmp_path, sync=sync)
    store.put_bytes("jobs/a/request.json", b"12345", content_type="text/plain", if_absent=True)
    assert synced == [("content", False), (".", True), ("jobs", True), ("jobs/a", True)]
    synced.clear()
    store.put_bytes("jobs/a/request.json", b"54321", content_type="text/plain")
    assert synced == [("content", True), ("jobs/a", True)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_fails_the_put(tmp_path: Path, code: int) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.raises(ObjectStoreUnavailable):
        LocalStore(tmp_path, sync=fail).put_bytes("a/b", b"x", content_type="text/plain")
    store = LocalStore(tmp_path)
    assert list(store.list("")) == []
    assert list((tmp_path / ".penstock" / "tmp").iterdir()) == []
    assert store.put_bytes("a/b", b"x", content_type="text/plain").size_bytes == 1


def test_a_folder_that_is_gone_needs_no_sync(tmp_path: Path) -> None:
    def delete_folder(_: int) -> None:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)

    store = LocalStore(tmp_path, sync=delete_folder)
    store.put_bytes("a/b/c", b"x", content_type="text/plain")
    assert list(store.list("")) == []


def test_drafts_of_writers_that_died_are_swept(store: LocalStore) -> None:
    store.ping()
    draft = store.root / ".penstock" / "tmp" / "draft"
    draft.write_bytes(b"half")
    os.utime(draft, (900, 900))
    assert store.sweep(older_than_s=200) == 0
    assert store.sweep(older_than_s=100) == 1
    assert not draft.exists()


def test_a_failed_put_leaves_no_draft_and_no_object(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file("key", tmp_path / "missing", content_type="a/b")
    store.put_bytes("key", b"first", content_type="a/b")
    with pytest.raises(ObjectExists):
        store.put_bytes("key", b"second", content_type="a/b", if_absent=True)
    assert list((store.root / ".penstock" / "tmp").iterdir()) == []


def test_links_lead_to_the_api_and_verify(store: LocalStore) -> None:
    get = urlsplit(store.presign_get("a b/ü%.tif", filename="ü.tif", expires_s=60))
    assert (get.netloc, get.path) == ("127.0.0.1:8080", "/v1/local/a%20b/%C3%BC%25.tif")
    key = unquote(get.path.removeprefix("/v1/local/"))
    link = verify_link("secret", "GET", key, dict(parse_qsl(get.query)), at=1059)
    assert (link.key, link.filename, link.expires_s) == ("a b/ü%.tif", "ü.tif", 1060)
    put = store.presign_put("up.tif", content_type="image/tiff", size_bytes=3, expires_s=60)
    signed = verify_link("secret", "PUT", "up.tif", dict(parse_qsl(urlsplit(put.url).query)), at=1059)
    assert (signed.size_bytes, signed.content_type) == (3, "image/tiff")
    assert put.headers == {"Content-Type": "image/tiff", "Content-Length": "3"}


def test_without_a_secret_there_are_no_links(tmp_path: Path) -> None:
    store = open_store((tmp_path / "a b").as_uri(), Settings())
    assert store.uri("key") == (tmp_path / "a b" / "key").as_uri()
    with pytest.raises(ConfigError):
        store.presign_get("key", filename="x", expires_s=60)


def test_a_folder_that_is_none_is_an_unavailable_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file")
    for ask in (
        store.ping,
        lambda: store.put_bytes("key", b"", content_type="a/b"),
        lambda: store.sweep(older_than_s=0),
    ):
        with pytest.raises(ObjectStoreUnavailable):
            ask()


def calls(store: LocalStore) -> list[Callable[[], object]]:
    return [
        store.ping,
        lambda: store.head("a/key"),
        lambda: store.get_bytes("a/key", limit_bytes=1),
        lambda: list(store.list("a/")),
        lambda: store.put_bytes("b", b"", content_type="a/b"),
        lambda: store.begin_multipart("b", content_type="a/b"),
        lambda: store.delete("a/key"),
    ]


def test_a_folder_that_is_gone_is_away_and_neither_empty_nor_made_again(store: LocalStore, tmp_path: Path) -> None:
    assert list(store.list("")) == []  # before the first put, a missing folder is an empty store
    store.put_bytes("a/key", b"x", content_type="a/b")
    asks = [*calls(store), *calls(LocalStore(store.root))]
    away = store.root.rename(tmp_path / "away")
    for ask in asks:
        with pytest.raises(ObjectStoreUnavailable):
            ask()
    assert not store.root.exists()
    store.root.mkdir()  # the mount point of a disk that is not mounted
    for ask in asks:
        with pytest.raises(ObjectStoreUnavailable):
            ask()
    assert list(store.root.iterdir()) == []
    store.root.rmdir()
    away.rename(store.root)
    assert store.get_bytes("a/key", limit_bytes=1) == b"x"


def test_a_folder_that_another_process_made_is_away_once_it_is_gone(store: LocalStore) -> None:
    other = LocalStore(store.root)
    store.put_bytes("a", b"x", content_type="a/b")
    other.put_bytes("b", b"x", content_type="a/b")
    store.root.rename(store.root.with_name("away"))
    with pytest.raises(ObjectStoreUnavailable):
        other.put_bytes("c", b"x", content_type="a/b")
    assert not store.root.exists()


def test_a_full_scratch_disk_is_worth_another_try(store: LocalStore, tmp_path: Path) -> None:
    store.put_bytes("key", bytes(3_000_000), content_type="a/b")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))
    try:
        with pytest.raises(FetchFailed):
            store.get_file("key", tmp_path / "copy", limit_bytes=3_000_000)
        with pytest.raises(ObjectStoreUnavailable):
            store.put_bytes("other", bytes(3_000_000), content_type="a/b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "copy").exists()
    assert [info.key for info in store.list("")] == ["key"]


def put_beside_each_other(store: LocalStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put_bytes(name, b"x", content_type="a/b"), "abcdefgh"))


def test_a_folder_that_is_being_made_is_not_away(tmp_path: Path) -> None:
    for number in range(50):
        store = LocalStore(tmp_path / str(number))
        put_beside_each_other(store)
        assert len(list(store.list(""))) == 8


def copied(source: BinaryIO, status: os.stat_result, path: Path) -> bytes:
    copy_whole(source, status, path)
    return path.read_bytes()


READERS = (lambda source, status, _: read_whole(source, status), copied)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("size", [0, 1, 100, 3_000_000])
def test_an_object_is_read_as_a_whole(read: Callable[..., bytes], size: int, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(data := os.urandom(size))
    with (tmp_path / "object").open("rb") as file:
        assert read(file, os.fstat(file.fileno()), tmp_path / "copy") == data
        assert not file.closed


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("size", [50, 150])
def test_an_object_that_has_another_size_meanwhile_is_media_changed(
    read: Callable[..., bytes], size: int, tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"0" * 100)
    with (tmp_path / "object").open("r+b") as file:
        status = os.fstat(file.fileno())
        file.truncate(size)
        with pytest.raises(MediaChanged):
            read(file, status, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
