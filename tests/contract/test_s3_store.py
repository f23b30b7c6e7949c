"""S3's own behaviour: links to the store itself, parts of uploads, outages, and answers that make no sense."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.errors import ConfigError, ObjectExists, ObjectStoreUnavailable
from penstock.storage.objects.opening import open_store
from penstock.storage.objects.s3 import S3Store, s3_client
from tests.support.ceph import Ceph
from tests.support.web_server import Server, reply


@pytest.fixture
def store(ceph: Ceph) -> S3Store:
    return S3Store(s3_client(ceph.s3), s3_client(ceph.s3, checksums=False), ceph.bucket(), "pre/", part_bytes=5 << 20)


@pytest.fixture(scope="module")
def opened(ceph: Ceph) -> Callable[[str], S3Store]:
    """Return what opens a store below a prefix of one bucket."""
    return partial(S3Store, s3_client(ceph.s3), s3_client(ceph.s3, checksums=False), ceph.bucket())


def uploads(ceph: Ceph, store: S3Store) -> int:
    return len(s3_client(ceph.s3).list_multipart_uploads(Bucket=store.bucket).get("Uploads", ()))


def test_a_small_object_is_one_request(ceph: Ceph, tmp_path: Path) -> None:
    client, sent = s3_client(ceph.s3), []
    client.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.method))
    store = S3Store(client, client, ceph.bucket())
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)
    store.put_bytes("request.json", b"{}", content_type="application/json", if_absent=True)
    store.put_file("artifact", tmp_path / "file", content_type="text/plain", if_absent=True)
    store.get_bytes("request.json", limit_bytes=10)
    store.get_file("artifact", tmp_path / "copy", limit_bytes=1_000_000)
    with pytest.raises(ObjectExists):
        store.put_bytes("request.json", b"{}", content_type="application/json", if_absent=True)
    assert sent == ["PUT", "PUT", "GET", "GET", "PUT"]


class TestLinks:
    @pytest.fixture
    def store(self, opened: Callable[[str], S3Store]) -> S3Store:
        return opened(f"{uuid4()}/")

    def test_a_download_has_its_type_and_name(self, store: S3Store) -> None:
        store.put_bytes("a b/ü+.tif", b"II*", content_type="image/tiff")
        answer = httpx2.get(store.presign_get("a b/ü+.tif", filename='my "map" ü.tif', expires_s=60))
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"II*", "image/tiff")
        name = "attachment; filename=\"my _map_ _.tif\"; filename*=UTF-8''my%20%22map%22%20%C3%BC.tif"
        assert answer.headers["content-disposition"] == name

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("/one", "/two"),
            ("my.tif", "other.tif"),
            ("X-Amz-Expires=60", "X-Amz-Expires=600"),
            ("Signature=", "Signature=0"),
        ],
    )
    def test_a_changed_link_opens_nothing(self, store: S3Store, old: str, new: str) -> None:
        for key in ("one", "two"):
            store.put_bytes(key, key.encode(), content_type="text/plain")
        link = store.presign_get("one", filename="my.tif", expires_s=60)
        assert old in link
        answer = httpx2.get(link.replace(old, new))
        assert answer.status_code == 403
        assert answer.content not in (b"one", b"two")

    def test_a_link_ends(self, store: S3Store) -> None:
        store.put_bytes("key", b"x", content_type="text/plain")
        link = store.presign_get("key", filename="x", expires_s=1)
        deadline = time.monotonic() + 30
        with httpx2.Client() as client:
            while (status := client.get(link).status_code) == 200:
                assert time.monotonic() < deadline
        assert status == 403

    def test_an_upload_of_the_signed_size_and_type_is_taken(self, store: S3Store) -> None:
        put = store.presign_put("up", content_type="image/tiff", size_bytes=3, expires_s=60)
        answer = httpx2.request(put.method, put.url, headers=dict(put.headers), content=b"II*")
        assert answer.status_code == 200
        assert (store.head("up").content_type, store.get_bytes("up", limit_bytes=3)) == ("image/tiff", b"II*")

    def test_an_upload_link_takes_one_object(self, store: S3Store) -> None:
        put = store.presign_put("up", content_type="image/tiff", size_bytes=3, expires_s=60)
        answers = [httpx2.put(put.url, headers=dict(put.headers), content=body) for body in (b"II*", b"MM*")]
        unconditional = {name: value for name, value in put.headers.items() if name != "If-None-Match"}
        answers.append(httpx2.put(put.url, headers=unconditional, content=b"MM*"))
        assert [answer.status_code for answer in answers] == [200, 412, 403]
        assert store.get_bytes("up", limit_bytes=3) == b"II*"

    @pytest.mark.parametrize(
        ("headers", "body"),
        [
            ({"Content-Type": "image/tiff", "Content-Length": "4"}, b"II*+"),
            ({"Content-Type": "image/tiff", "Content-Length": "2"}, b"II"),
            ({"Content-Type": "text/html", "Content-Length": "3"}, b"II*"),
            ({"Content-Type": ""}, b"II*"),
        ],
    )
    def test_another_upload_is_refused(self, store: S3Store, headers: dict[str, str], body: bytes) -> None:
        put = store.presign_put("up", content_type="image/tiff", size_bytes=3, expires_s=60)
        assert httpx2.put(put.url, headers={**put.headers, **headers}, content=body).status_code == 403
        assert list(store.list("")) == []


class TestParts:
    def test_a_failed_upload_leaves_no_parts(self, ceph: Ceph, store: S3Store, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(os.urandom(3 << 20))
        # S3 takes no parts below 5 MiB: the parts go up, and the completion fails.
        small = S3Store(s3_client(ceph.s3), s3_client(ceph.s3), store.bucket, "pre/", part_bytes=1 << 20)
        with pytest.raises(ObjectStoreUnavailable):
            small.put_file("key", tmp_path / "file", content_type="a/b")
        assert uploads(ceph, store) == 0
        assert list(store.list("")) == []

    def test_a_taken_key_is_refused_before_the_parts_go_up(self, ceph: Ceph, store: S3Store, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(os.urandom(6 << 20))
        store.put_bytes("key", b"first", content_type="a/b")
        with pytest.raises(ObjectExists):
            store.put_file("key", tmp_path / "file", content_type="a/b", if_absent=True)
        assert uploads(ceph, store) == 0

    def test_uploads_of_writers_that_died_are_swept(self, ceph: Ceph, store: S3Store) -> None:
        client = s3_client(ceph.s3)
        client.create_multipart_upload(Bucket=store.bucket, Key="pre/key")
        client.create_multipart_upload(Bucket=store.bucket, Key="not-ours")
        assert store.sweep(older_than_s=3600) == 0
        assert store.sweep(older_than_s=-60) == 1
        assert uploads(ceph, store) == 1


def calls(store: S3Store, tmp_path: Path) -> list[Callable[[], object]]:
    """Return one call of every method that asks the store."""
    file = tmp_path / "file"
    file.write_bytes(b"0" * 100)
    return [
        lambda: store.put_file("k", file, content_type="a/b"),
        lambda: store.put_bytes("k", b"x", content_type="a/b", if_absent=True),
        lambda: store.get_file("k", tmp_path / "copy", limit_bytes=100),
        lambda: store.get_bytes("k", limit_bytes=100),
        lambda: list(store.read("k", start=1)),
        lambda: store.head("k"),
        lambda: list(store.list("")),
        lambda: store.delete("k"),
        lambda: store.delete_prefix("k"),
        lambda: store.ping(),
        lambda: store.sweep(older_than_s=0),
    ]


class TestTrouble:
    @pytest.mark.breadth
    @pytest.mark.alone
    def test_a_store_that_is_down_says_so_quickly(self) -> None:
        with Server(b"") as server:
            nobody = S3(endpoint_url=f"http://127.0.0.1:{server.port}", access_key_id="a", secret_access_key="b")
        store = open_store("s3://bucket", Settings(s3=nobody))
        began = time.monotonic()
        with pytest.raises(ObjectStoreUnavailable):
            store.head("key")
        assert time.monotonic() - began < 10

    @pytest.mark.breadth(every=3)
    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"nonsense",
            b"HTTP/1.1 100 Continue\r\n",
            reply(500, b"<html>oops</html>"),
            reply(503, b"<Error><Code>SlowDown</Code></Error>"),
            reply(403, b"<Error><Code>AccessDenied</Code></Error>"),
            reply(301, b"", Location="http://127.0.0.1:1/"),
            reply(200, b"not XML", Content_Length="100", ETag='"x"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT"),
        ],
    )
    def test_no_error_of_the_library_gets_through(self, tmp_path: Path, said: bytes) -> None:
        with Server(said) as server:
            s3 = S3(endpoint_url=f"http://127.0.0.1:{server.port}", access_key_id="a", secret_access_key="b")
            client = s3_client(s3, tries=1)
            refused = 0
            for call in calls(S3Store(client, client, "bucket", part_bytes=10), tmp_path):
                try:
                    call()
                except ObjectStoreUnavailable:
                    refused += 1
        # A server that answers 200 to everything is believed where the answer has no body to check.
        assert refused >= (5 if said.startswith(b"HTTP/1.1 200") else 11)
        assert not (tmp_path / "copy").exists()

    def test_a_wrong_secret_and_a_missing_bucket_are_the_operators_trouble(self, ceph: Ceph, store: S3Store) -> None:
        wrong = ceph.s3.model_copy(update={"access_key_id": "nobody"})
        with pytest.raises(ObjectStoreUnavailable):
            open_store(f"s3://{store.bucket}", Settings(s3=wrong)).ping()
        with pytest.raises(ObjectStoreUnavailable):
            open_store("s3://no-such-bucket", Settings(s3=ceph.s3)).ping()
        with pytest.raises(ObjectStoreUnavailable):
            open_store("s3://no-such-bucket", Settings(s3=ceph.s3)).put_bytes("k", b"", content_type="a/b")


@pytest.mark.parametrize("url", ["", "bucket", "s3://", "http://bucket", "file://", "file://host/path", "ftp://x/y"])
def test_an_address_that_is_no_store_is_the_operators_error(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url, Settings())


def test_keys_lie_under_the_prefix(ceph: Ceph, store: S3Store) -> None:
    store.put_bytes("key", b"x", content_type="a/b")
    for url in (f"s3://{store.bucket}", f"s3://{store.bucket}/"):
        assert [info.key for info in open_store(url, Settings(s3=ceph.s3)).list("")] == ["pre/key"]
    assert store.uri("key") == f"s3://{store.bucket}/pre/key"
