"""Files in and out: uploads by signed link, artifacts with ranges, redirects where the store is S3."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from penstock.config_tables import S3
from penstock.jobs import Artifact, JobKey
from penstock.storage.redis import records
from penstock.storage.signing import SignedLink, sign_link
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

SCENE = bytes(range(256)) * 3


async def upload(service: Service, size_bytes: int = len(SCENE), filename: str = "scene.tif") -> dict[str, Any]:
    """Ask for an upload and return the answer."""
    wanted = {"filename": filename, "content_type": "image/tiff", "size_bytes": size_bytes}
    response = await service.http.post("/v1/uploads", json=wanted)
    assert response.status_code == 201, response.text
    link: dict[str, Any] = response.json()
    return link


async def send(service: Service, link: dict[str, Any], content: Any, **headers: str) -> httpx2.Response:
    """Send a file as the link says."""
    given = {name: value for name, value in link["headers"].items() if name != "Content-Length"}
    return await service.http.request(link["method"], link["url"], content=content, headers=given | headers)


async def test_an_uploaded_file_can_be_named_in_a_job(service: Service) -> None:
    link = await upload(service, filename="../../my scène.TIF")
    assert link["media"] == f"media://{link['id']}/my_scene.TIF"
    assert datetime.fromisoformat(link["expires_at"]) > datetime.now(UTC)
    sent = await send(service, link, SCENE)
    assert (sent.status_code, sent.headers["etag"][0]) == (200, '"')
    job = await service.submit(input={"text": "a", "scene": link["media"]})
    assert job["input"]["scene"] == link["media"]
    key = f"tenants/default/uploads/{link['id']}/my_scene.TIF"
    assert service.objects.get_bytes(key, limit_bytes=10_000) == SCENE
    assert service.objects.head(key).content_type == "image/tiff"
    assert list((service.settings.spool_dir / "uploads").iterdir()) == []


async def media_bytes(service: Service, job: dict[str, Any]) -> int | None:
    return (await service.jobs.run(records.read(JobKey("default", job["id"])))).submission.media_bytes


async def test_a_job_knows_the_bytes_of_its_media_and_a_retry_of_it_too(service: Service) -> None:
    first, second = [await upload(service, filename=name) for name in ("a.tif", "b.tif")]
    for link in (first, second):
        await send(service, link, SCENE)
    more = [{"file": second["media"]}, {"file": first["media"]}]
    job = await service.submit(input={"text": "a", "scene": first["media"], "more": more})
    assert await media_bytes(service, job) == 2 * len(SCENE)
    assert await media_bytes(service, await service.submit(input={"text": "a"})) is None
    await service.http.post(job["links"]["cancel"])
    again = (await service.http.post(f"/v1/jobs/{job['id']}/retry")).json()
    assert await media_bytes(service, again) == 2 * len(SCENE)


async def test_an_upload_may_be_sent_again_and_not_changed(service: Service) -> None:
    link = await upload(service)
    first, second = await send(service, link, SCENE), await send(service, link, SCENE)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["etag"] == second.headers["etag"]
    problem = assert_problem(await send(service, link, SCENE[::-1]), 409, "object_exists")
    assert problem["detail"] == "another file was already sent to this link; request a new link"
    key = link["media"].replace("media://", "tenants/default/uploads/")
    assert service.objects.get_bytes(key, limit_bytes=10_000) == SCENE


async def test_an_upload_under_a_key_is_one_and_says_that_its_file_came(service: Service) -> None:
    async def ask(key: str, size_bytes: int = len(SCENE)) -> dict[str, Any]:
        wanted = {"filename": "scene.tif", "content_type": "image/tiff", "size_bytes": size_bytes}
        answer = await service.http.post("/v1/uploads", json=wanted, headers={"Idempotency-Key": key})
        assert answer.status_code == 201, answer.text
        link: dict[str, Any] = answer.json()
        return link

    first, again = await ask("k"), await ask("k")
    assert (first["media"], first["uploaded"], again["uploaded"]) == (again["media"], False, False)
    assert len({link["media"] for link in (first, await ask("other"), await ask("k", 5))}) == 3
    assert (await send(service, again, SCENE)).status_code == 200
    third = await ask("k")
    assert (third["media"], third["uploaded"]) == (first["media"], True)
    wrong = await service.http.post(
        "/v1/uploads", json={"filename": "a", "size_bytes": 1}, headers={"Idempotency-Key": ""}
    )
    assert "1 to 255 characters" in assert_problem(wrong, 422, "invalid_request")["detail"]


async def test_a_large_upload_streams_through(service: Service) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"x" * 10_000

    link = await upload(service, 3_000_000)
    assert (await send(service, link, chunks())).status_code == 200
    key = link["media"].replace("media://", "tenants/default/uploads/")
    assert service.objects.head(key).size_bytes == 3_000_000


async def test_an_upload_over_the_limit_is_refused(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_upload_bytes=100) as service:
        response = await service.http.post("/v1/uploads", json={"filename": "a.tif", "size_bytes": 101})
        assert assert_problem(response, 413, "payload_too_large")["errors"][0]["pointer"] == "/size_bytes"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"size_bytes": 0}, "/size_bytes"),
        ({"size_bytes": "9"}, "/size_bytes"),
        ({"filename": ""}, "/filename"),
        ({"content_type": "image/tiff\r\nX: y"}, "/content_type"),
        ({"path": "/etc"}, "/path"),
    ],
)
async def test_a_wrong_upload_request_is_pointed_at(service: Service, change: dict[str, Any], pointer: str) -> None:
    response = await service.http.post("/v1/uploads", json={"filename": "a.tif", "size_bytes": 9, **change})
    assert assert_problem(response, 422, "invalid_request")["errors"][0]["pointer"] == pointer


async def test_more_or_fewer_bytes_than_signed_are_refused_and_leave_nothing(service: Service) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield SCENE
        yield b"more"

    link = await upload(service)
    assert_problem(await send(service, link, SCENE + b"more"), 413, "payload_too_large")
    assert_problem(await send(service, link, chunks()), 413, "payload_too_large")
    assert_problem(await send(service, link, SCENE[:-1]), 400, "malformed_body")
    assert list(service.objects.list("")) == []
    assert list((service.settings.spool_dir / "uploads").iterdir()) == []


async def test_a_link_is_for_one_type_one_key_one_method_and_one_time(service: Service) -> None:
    link = await upload(service)
    ended = SignedLink("PUT", "a.tif", int(time.time()) - 1, size_bytes=1, content_type="image/tiff")
    late = f"{service.settings.base_url}/v1/local/a.tif?{sign_link('of the tests', ended)}"
    other = link["url"].replace("scene.tif", "other.tif")
    assert_problem(await send(service, link, SCENE, **{"Content-Type": "text/html"}), 403, "link_refused")
    assert_problem(await send(service, {**link, "url": other}, SCENE), 403, "link_refused")
    assert_problem(await send(service, {**link, "url": late}, b"x"), 403, "link_refused")
    assert_problem(await service.http.put("/v1/local/a.tif", content=b"x"), 403, "link_refused")
    assert_problem(await service.http.get(link["url"]), 403, "link_refused")
    assert list(service.objects.list("")) == []


async def test_a_signed_link_downloads_an_object(service: Service) -> None:
    service.objects.put_bytes("a/ü b.txt", b"hello", content_type="text/plain")
    link = service.objects.presign_get("a/ü b.txt", filename="grüße.txt", expires_s=60)
    whole = await service.http.get(link)
    part = await service.http.get(link, headers={"Range": "bytes=1-2"})
    head = await service.http.head(link)
    assert (whole.status_code, whole.content) == (200, b"hello")
    assert whole.headers["content-type"].startswith("text/plain")
    assert "filename*=UTF-8''gr%C3%BC%C3%9Fe.txt" in whole.headers["content-disposition"]
    assert (part.status_code, part.content) == (206, b"el")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "5")
    service.objects.delete("a/ü b.txt")
    assert_problem(await service.http.get(link), 404, "object_not_found")


@pytest.fixture
async def artifact_url(service: Service) -> str:
    """Return where the artifact `scene.tif` of a finished job is read."""
    job = await service.submit()
    claim = await service.claim()
    artifact = service.store_artifact(claim, "scene.tif", SCENE, "image/tiff")
    await service.succeed(claim, artifacts=(artifact,))
    (shown,) = (await service.http.get(job["links"]["self"])).json()["artifacts"]
    assert shown == {
        "name": "scene.tif", "content_type": "image/tiff", "size_bytes": len(SCENE), "sha256": artifact.sha256,
        "uri": f"artifact://{job['id']}/scene.tif", "url": f"{job['links']['self']}/artifacts/scene.tif",
        "url_expires_at": None,
    }  # fmt: skip
    url: str = shown["url"]
    return url


async def test_an_artifact_is_downloaded_whole(service: Service, artifact_url: str) -> None:
    response = await service.http.get(artifact_url)
    assert (response.status_code, response.content) == (200, SCENE)
    assert response.headers["content-type"] == "image/tiff"
    assert response.headers["content-disposition"].startswith('attachment; filename="scene.tif"')
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("wanted", "got", "content"),
    [
        ("bytes=0-9", "bytes 0-9/768", SCENE[:10]),
        ("bytes=760-", "bytes 760-767/768", SCENE[760:]),
        ("bytes=-5", "bytes 763-767/768", SCENE[-5:]),
    ],
)
async def test_a_range_of_an_artifact(
    service: Service, artifact_url: str, wanted: str, got: str, content: bytes
) -> None:  # fmt: skip
    response = await service.http.get(artifact_url, headers={"Range": wanted})
    assert (response.status_code, response.headers["content-range"], response.content) == (206, got, content)


async def test_if_range_gives_the_part_only_of_the_same_bytes(service: Service, artifact_url: str) -> None:
    etag = (await service.http.head(artifact_url)).headers["etag"]
    same = await service.http.get(artifact_url, headers={"Range": "bytes=0-1", "If-Range": etag})
    other = await service.http.get(artifact_url, headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    assert (same.status_code, same.content) == (206, SCENE[:2])
    assert (other.status_code, other.content) == (200, SCENE)


async def test_a_range_outside_is_a_problem(service: Service, artifact_url: str) -> None:
    response = await service.http.get(artifact_url, headers={"Range": "bytes=9999-"})
    assert response.status_code == 416
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["content-range"] == "bytes */768"


async def test_head_says_what_get_would(service: Service, artifact_url: str) -> None:
    head, get = await service.http.head(artifact_url), await service.http.get(artifact_url)
    assert (head.status_code, head.content) == (200, b"")
    assert dict(head.headers) == dict(get.headers)


async def test_no_answer_names_a_place_on_the_server(service: Service, artifact_url: str) -> None:
    job_url = artifact_url.rpartition("/artifacts/")[0]
    for path in (job_url, f"{job_url}/events", f"{job_url}/deliveries", "/v1/jobs", "/v1/models"):
        answer = await service.http.get(path)
        assert answer.status_code == 200, answer.text
        assert service.settings.data.name not in answer.text
        assert "file:" not in answer.text


async def test_an_unknown_artifact_is_answered_with_the_known_ones(service: Service, artifact_url: str) -> None:
    response = await service.http.get(artifact_url.replace("scene.tif", "other.tif"))
    problem = assert_problem(response, 404, "unknown_artifact")
    assert problem["detail"] == "the job has no artifact 'other.tif'; its artifacts: scene.tif"


async def test_an_artifact_whose_file_is_gone_is_404(service: Service, artifact_url: str) -> None:
    service.objects.delete_prefix("tenants/")
    assert_problem(await service.http.get(artifact_url), 404, "unknown_artifact")


@pytest.fixture
def s3() -> dict[str, Any]:
    """Return settings for an S3 store that nothing is asked of: links are signed here."""
    keys = S3(endpoint_url="http://127.0.0.1:1", access_key_id="id", secret_access_key="key")
    return {"object_store": "s3://results/v1", "s3": keys, "durability": "redis"}


async def test_on_s3_an_artifact_is_a_fresh_link(valkey: ValkeyProcess, tmp_path: Path, s3: dict[str, Any]) -> None:
    async with serving(valkey.url, tmp_path, **s3) as service:
        job = await service.submit()
        claim = await service.claim()
        artifact = Artifact("a b.tif", "image/tiff", 7, "0" * 64, f"{claim.prefix}a b.tif")
        await service.succeed(claim, artifacts=(artifact,))
        (shown,) = (await service.http.get(job["links"]["self"])).json()["artifacts"]
        response = await service.http.get(shown["url"])
        head = await service.http.head(shown["url"])
    assert shown["uri"] == f"s3://results/v1/{artifact.key}"
    assert (response.status_code, response.headers["cache-control"]) == (302, "no-store")
    link = urlsplit(response.headers["location"])
    assert link.netloc == "127.0.0.1:1"
    assert "a%20b.tif" in link.path
    assert "a b.tif" in parse_qs(link.query)["response-content-disposition"][0]
    assert (head.status_code, head.headers["content-length"], head.headers["content-type"]) == (200, "7", "image/tiff")


async def test_on_s3_an_upload_goes_to_the_store_and_local_links_do_not_exist(
    valkey: ValkeyProcess, tmp_path: Path, s3: dict[str, Any]
) -> None:
    async with serving(valkey.url, tmp_path, **s3) as service:
        link = await upload(service)
        assert_problem(await service.http.put("/v1/local/a.tif", content=b"x"), 404, "not_found")
    assert link["url"].startswith(f"http://127.0.0.1:1/results/v1/tenants/default/uploads/{link['id']}/scene.tif?")
