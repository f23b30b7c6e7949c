"""From a reference to a local file, whichever of the three ways it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest

from penstock.config import Settings
from penstock.errors import MediaChanged, MediaNotFound, MediaRefused, MediaTooLarge
from penstock.intake.guard import GuardedClient
from penstock.intake.local_media import LocalMedia
from penstock.intake.media import fetch_media, upload_key
from penstock.jobs import Artifact
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from tests.support.ceph import ACCESS_KEY, SECRET_KEY, Ceph
from tests.support.web_server import Server, reply


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "objects").as_uri(), Settings())


def fetch(
    reference: str,
    folder: Path,
    store: ObjectStore,
    settings: Settings,
    *,
    tenant: str = "acme",
    limit_bytes: int = 100,
    memory_bytes: int = -1,
    upstreams: Mapping[str, Sequence[Artifact]] = MappingProxyType({}),
) -> LocalMedia:
    return fetch_media(
        reference,
        folder,
        store=store,
        tenant=tenant,
        settings=settings,
        guard=GuardedClient(settings),
        limit_bytes=limit_bytes,
        memory_bytes=memory_bytes,
        upstreams=upstreams,
    )


def test_an_upload_lies_alone_under_a_name_of_ours(store: ObjectStore, tmp_path: Path) -> None:
    put = store.put_bytes(upload_key("acme", "1", "My_scene.TIF"), b"II*", content_type="image/tiff")
    first = fetch("media://1/My_scene.TIF", tmp_path / "spool", store, Settings())
    second = fetch("media://1/My_scene.TIF", tmp_path / "spool", store, Settings())
    assert first.path.name == "media.tif"
    assert first.path.read_bytes() == b"II*"
    assert first.etag == put.etag
    assert list(first.path.parent.iterdir()) == [first.path]
    assert second.path.parent != first.path.parent
    assert {first.path.parent.parent, second.path.parent.parent} == {tmp_path / "spool"}


def test_an_artifact_of_another_job_is_read_where_that_job_put_it(store: ObjectStore, tmp_path: Path) -> None:
    job = "0195c0de-0000-7000-8000-00000000000a"
    place = f"tenants/acme/jobs/{job}/attempts/7/mask.tif"
    store.put_bytes(place, b"II*", content_type="image/tiff")
    upstreams = {job: (Artifact("mask.tif", "image/tiff", 3, "ab", place),)}
    found = fetch(f"job://{job.upper()}/mask.tif", tmp_path / "spool", store, Settings(), upstreams=upstreams)
    assert (found.path.name, found.path.read_bytes()) == ("media.tif", b"II*")
    with pytest.raises(MediaNotFound, match=r"has no artifact 'other.tif'; its artifacts are: mask.tif"):
        fetch(f"job://{job}/other.tif", tmp_path / "spool", store, Settings(), upstreams=upstreams)
    with pytest.raises(MediaNotFound, match="it has no artifacts"):
        fetch(f"job://{job}/mask.tif", tmp_path / "spool", store, Settings())
    with pytest.raises(MediaTooLarge):
        fetch(f"job://{job}/mask.tif", tmp_path, store, Settings(), upstreams=upstreams, limit_bytes=2)


def test_a_small_upload_stays_in_memory_until_its_file_is_needed(store: ObjectStore, tmp_path: Path) -> None:
    put = store.put_bytes(upload_key("acme", "1", "a.TIF"), b"II*", content_type="image/tiff")
    first, second = (fetch("media://1/a.TIF", tmp_path / "job", store, Settings(), memory_bytes=3) for _ in range(2))
    assert (first.data, first.source, first.etag) == (b"II*", b"II*", put.etag)
    assert not (tmp_path / "job").exists()
    assert first.path != second.path
    with ThreadPoolExecutor(8) as threads:  # each caller gets the whole file
        asked = [threads.submit(lambda: first.file().read_bytes()) for _ in range(32)]
        assert {each.result() for each in asked} == {b"II*"}
    assert first.file().name == "media.tif"
    assert list((tmp_path / "job").rglob("*")) == [first.path.parent, first.path]
    large = fetch("media://1/a.TIF", tmp_path / "job", store, Settings(), memory_bytes=2)
    assert (large.data, large.path.read_bytes(), large.source) == (None, b"II*", large.path)


@pytest.mark.parametrize(
    ("name", "local"),
    [("scene", "media"), ("a.tar.gz", "media.gz"), ("a.toolongasuffix", "media"), ("a.v_t", "media"), ("a.", "media")],
)
def test_only_a_plain_suffix_is_kept(store: ObjectStore, tmp_path: Path, name: str, local: str) -> None:
    store.put_bytes(upload_key("acme", "1", name), b"x", content_type="a/b")
    assert fetch(f"media://1/{name}", tmp_path, store, Settings()).path.name == local


def test_another_tenants_upload_is_simply_not_found(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes(upload_key("acme", "1", "a.tif"), b"x", content_type="image/tiff")
    for reference in ("media://1/a.tif", "media://2/a.tif"):
        with pytest.raises(MediaNotFound):
            fetch(reference, tmp_path, store, Settings(), tenant="other")


def test_the_limit_holds_for_uploads_and_for_the_web(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes(upload_key("acme", "1", "a.tif"), b"x" * 11, content_type="image/tiff")
    with pytest.raises(MediaTooLarge):
        fetch("media://1/a.tif", tmp_path, store, Settings(), limit_bytes=10)
    with Server(reply(200, b"x" * 11)) as server:
        settings = Settings(allowed_hosts=(f"localhost:{server.port}",))
        with pytest.raises(MediaTooLarge):
            fetch(f"http://localhost:{server.port}/a.tif", tmp_path, store, settings, limit_bytes=10)


def test_the_web_is_asked_through_the_guard(store: ObjectStore, tmp_path: Path) -> None:
    with Server(reply(200, b"png", ETag='"abc"')) as server:
        settings = Settings(allowed_hosts=(f"127.0.0.1:{server.port}",))
        media = fetch(f"http://127.0.0.1:{server.port}/a/b.PNG?sig=x.exe", tmp_path, store, settings)
        with pytest.raises(MediaRefused):
            fetch(f"http://localhost:{server.port}/a/b.png", tmp_path, store, settings)
        assert server.accepted == 1
    assert (media.path.name, media.etag, media.path.read_bytes()) == ("media.png", "abc", b"png")


def test_a_bucket_is_read_where_it_is_allowed(ceph: Ceph, store: ObjectStore, tmp_path: Path) -> None:
    bucket, closed = ceph.bucket(), ceph.bucket()
    settings = Settings(s3=ceph.s3, s3_input_buckets=(bucket,))
    scenes = open_store(f"s3://{bucket}", settings)
    first = scenes.put_bytes("in/a scene.tif", b"one", content_type="image/tiff")
    reference = f"s3://{bucket}/in/a scene.tif"
    assert fetch(reference, tmp_path, store, settings).path.read_bytes() == b"one"
    assert fetch(f"{reference}#etag={first.etag}", tmp_path, store, settings).etag == first.etag
    scenes.put_bytes("in/a scene.tif", b"two", content_type="image/tiff")
    with pytest.raises(MediaChanged):
        fetch(f"{reference}#etag={first.etag}", tmp_path, store, settings)
    with pytest.raises(MediaNotFound):
        fetch(f"s3://{bucket}/in/nothing.tif", tmp_path, store, settings)
    with pytest.raises(MediaRefused):
        fetch(f"s3://{closed}/in/a.tif", tmp_path, store, settings)


def test_a_bucket_is_read_with_the_keys_of_its_access_profile(ceph: Ceph, store: ObjectStore, tmp_path: Path) -> None:
    bucket, secret = ceph.bucket(), tmp_path / "secret"
    open_store(f"s3://{bucket}", Settings(s3=ceph.s3)).put_bytes("a.tif", b"II*", content_type="image/tiff")
    keys = {"access_key_id": ACCESS_KEY, "secret": {"file": str(secret)}}
    profile = {"name": "theirs", "kind": "s3", "buckets": [bucket], "service_url": ceph.s3.endpoint_url, **keys}
    settings = Settings(access_profiles=[{**profile, "tenants": ["acme"]}])
    secret.write_text(SECRET_KEY)
    assert fetch(f"s3://{bucket}/a.tif", tmp_path, store, settings).path.read_bytes() == b"II*"
    with pytest.raises(MediaNotFound):
        fetch(f"s3://{bucket}/gone.tif", tmp_path, store, settings)
    with pytest.raises(MediaRefused, match="s3_input_buckets"):
        fetch(f"s3://{bucket}/a.tif", tmp_path, store, settings, tenant="other")
    secret.write_text("wrong")
    with pytest.raises(MediaRefused, match=r"access profile 'theirs' .*SignatureDoesNotMatch"):
        fetch(f"s3://{bucket}/a.tif", tmp_path, store, settings)
