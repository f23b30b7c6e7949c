"""One contract for uploads in parts: the local folder, and S3 on a real server."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from pydantic import SecretStr

from penstock.config import Settings
from penstock.errors import ObjectExists, ObjectNotFound
from penstock.multipart import MIN_PART_BYTES, joined_etag
from penstock.storage.objects.base import ObjectStore, StoredPart
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.opening import open_store
from penstock.storage.objects.s3 import S3Store
from tests.support.ceph import Ceph

KEY, TYPE = "tenants/a/uploads/1/scene ü.bin", "image/x-scene"
FIRST, LAST = os.urandom(MIN_PART_BYTES), b"the end"


@pytest.fixture(scope="module")
def bucket(ceph: Ceph) -> str:
    """Return the bucket of all tests, each of which has a prefix of its own."""
    return ceph.bucket()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        settings = Settings(secret=SecretStr("of the tests"), public_url="http://127.0.0.1:1")
        return open_store((tmp_path / "objects").as_uri(), settings)
    ceph, bucket = request.getfixturevalue("ceph"), request.getfixturevalue("bucket")
    return open_store(f"s3://{bucket}/some/{uuid4()}", Settings(s3=ceph.s3))


def send(store: ObjectStore, number: int, data: bytes, folder: Path, key: str = KEY) -> None:
    """Send a part as its link is meant to be used; what a local link leads to is in the API."""
    put = store.presign_part(key, number, size_bytes=len(data), expires_s=60)
    if isinstance(store, LocalStore):
        path = folder / "sent"
        path.write_bytes(data)
        store.put_part(key, number, path, md5=md5(data))
    else:
        answer = httpx2.request(put.method, put.url, headers={**put.headers, **content_md5(data)}, content=data)
        assert answer.status_code == 200


def content_md5(data: bytes) -> dict[str, str]:
    return {"Content-MD5": base64.b64encode(hashlib.md5(data).digest()).decode()}


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_parts_in_any_order_become_the_object(store: ObjectStore, tmp_path: Path) -> None:
    store.begin_multipart(KEY, content_type=TYPE)
    assert store.parts(KEY) == []
    send(store, 2, LAST, tmp_path)
    send(store, 1, FIRST, tmp_path)
    parts = store.parts(KEY)
    assert parts == [StoredPart(1, len(FIRST), md5(FIRST)), StoredPart(2, len(LAST), md5(LAST))]
    assert list(store.list("")) == []

    store.complete_multipart(KEY, parts)
    head = store.head(KEY)
    assert (head.size_bytes, head.content_type) == (len(FIRST) + len(LAST), TYPE)
    assert store.get_bytes(KEY, limit_bytes=10**8) == FIRST + LAST
    if isinstance(store, S3Store):
        assert head.etag == joined_etag(part.etag for part in parts)
    with pytest.raises(ObjectNotFound):
        store.parts(KEY)


def test_a_part_that_is_sent_again_replaces_the_one_before(store: ObjectStore, tmp_path: Path) -> None:
    store.begin_multipart(KEY, content_type=TYPE)
    send(store, 1, b"wrong", tmp_path)
    send(store, 1, b"right", tmp_path)
    send(store, 1, b"right", tmp_path)
    assert store.parts(KEY) == [StoredPart(1, 5, md5(b"right"))]
    store.complete_multipart(KEY, store.parts(KEY))
    assert store.get_bytes(KEY, limit_bytes=9) == b"right"


def test_to_begin_again_is_to_go_on(store: ObjectStore, tmp_path: Path) -> None:
    store.begin_multipart(KEY, content_type=TYPE)
    send(store, 1, LAST, tmp_path)
    store.begin_multipart(KEY, content_type=TYPE)
    assert len(store.parts(KEY)) == 1


def test_keys_that_begin_alike_are_not_mixed_up(store: ObjectStore, tmp_path: Path) -> None:
    store.begin_multipart("tenants/a/uploads/1/scene", content_type=TYPE)
    store.begin_multipart("tenants/a/uploads/1/scene.tif", content_type=TYPE)
    send(store, 1, b"one", tmp_path, "tenants/a/uploads/1/scene.tif")
    assert store.parts("tenants/a/uploads/1/scene") == []
    store.abort_multipart("tenants/a/uploads/1/scene")
    assert len(store.parts("tenants/a/uploads/1/scene.tif")) == 1


def test_all_uploads_under_a_prefix_are_dropped_and_no_others(store: ObjectStore, tmp_path: Path) -> None:
    other = "tenants/ab/uploads/1/scene"
    for key in (KEY, "tenants/a/uploads/2/more", other):
        store.begin_multipart(key, content_type=TYPE)
        send(store, 1, LAST, tmp_path, key)
    assert store.abort_multiparts("tenants/a/") == 2
    assert store.abort_multiparts("tenants/a/") == 0
    with pytest.raises(ObjectNotFound):
        store.parts(KEY)
    assert len(store.parts(other)) == 1


def test_a_key_that_is_taken_keeps_its_object(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes(KEY, b"first", content_type=TYPE)
    store.begin_multipart(KEY, content_type=TYPE)
    send(store, 1, b"later", tmp_path)
    with pytest.raises(ObjectExists):
        store.complete_multipart(KEY, store.parts(KEY))
    assert store.get_bytes(KEY, limit_bytes=9) == b"first"


def test_without_a_begin_and_after_a_drop_there_is_nothing(store: ObjectStore, tmp_path: Path) -> None:
    store.abort_multipart(KEY)
    store.begin_multipart(KEY, content_type=TYPE)
    send(store, 1, LAST, tmp_path)
    store.abort_multipart(KEY)
    for ask in (
        lambda: store.presign_part(KEY, 1, size_bytes=1, expires_s=60), lambda: store.parts(KEY),
        lambda: store.complete_multipart(KEY, []),
    ):  # fmt: skip
        with pytest.raises(ObjectNotFound):
            ask()


def test_the_sweep_takes_what_began_long_ago_and_nothing_else(store: ObjectStore, tmp_path: Path) -> None:
    store.begin_multipart(KEY, content_type=TYPE)
    send(store, 1, LAST, tmp_path)
    assert store.sweep(older_than_s=3600) == 0
    assert len(store.parts(KEY)) == 1
    assert store.sweep(older_than_s=-5) == 1
    with pytest.raises(ObjectNotFound):
        store.parts(KEY)


def test_s3_refuses_a_part_that_is_not_what_its_sum_says_or_has_another_size(store: ObjectStore) -> None:
    if isinstance(store, LocalStore):
        pytest.skip("the local store's links lead to the API: tests/integration/test_upload_parts.py")
    store.begin_multipart(KEY, content_type=TYPE)
    put = store.presign_part(KEY, 1, size_bytes=4, expires_s=60)
    wrong = httpx2.put(put.url, headers={**put.headers, **content_md5(b"abcd")}, content=b"abXd")
    assert wrong.status_code == 400
    longer = httpx2.put(put.url, headers={**put.headers, "Content-Length": "5"}, content=b"abcde")
    assert longer.status_code == 403
    assert store.parts(KEY) == []
