"""Media in the input of a job as `data:` URLs: stored as uploads, which the job names."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.intake.inline_media import read_medium
from tests.support.service import MAX_SCENE_BYTES, Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

PNG = b"\x89PNG\r\n\x1a\n and the rest"


def inside(data: bytes = PNG, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def send(service: Service, headers: dict[str, str] | None = None, **value: Any) -> httpx2.Response:
    body = {"model": "echo", "input": {"text": "hello", **value}}
    return await service.http.post("/v1/jobs", json=body, headers=headers)


def uploads(service: Service) -> list[str]:
    return [info.key for info in service.objects.list("tenants/default/uploads/")]


async def test_media_inside_a_job_become_its_uploads(service: Service) -> None:
    response = await send(service, scene=inside(), more=[{"file": inside()}, {"file": "data:text/csv,a%2Cb%0A"}])
    assert response.status_code == 202, response.text
    sent = (await service.claim()).submission
    scene, [again, table] = sent.input["scene"], [each["file"] for each in sent.input["more"]]
    assert (scene, scene.endswith("/image.png"), table.endswith("/text.csv")) == (again, True, True)
    for reference, data, kind in ((scene, PNG, "image/png"), (table, b"a,b\n", "text/csv")):
        key = f"tenants/default/uploads/{reference.removeprefix('media://')}"
        assert (b"".join(service.objects.read(key)), service.objects.head(key).content_type) == (data, kind)
    assert len(uploads(service)) == 2


@pytest.mark.parametrize("head", ["data:image/png;base64,", "data:image/png; base64,", "data:image/png;x=1;BASE64 ,"])
def test_base64_is_decoded_however_its_parameter_is_written(head: str) -> None:
    assert read_medium(head + base64.b64encode(PNG).decode(), "/input/scene").data == PNG


async def test_a_repeated_job_finds_its_upload(service: Service) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first, second = [await send(service, headers, scene=inside()) for _ in range(2)]
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    assert len(uploads(service)) == 1
    assert_problem(await send(service, headers, scene=inside(b"other")), 422, "idempotency_mismatch")


async def test_malformed_media_are_refused_by_their_place(service: Service) -> None:
    for url, words in (
        ("data:image/png;base64", "is no data: URL"),
        ("data:png;base64,AAAA", "is no data: URL"),
        ("data:image/png;base64,!!!", "is not base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:,", "is empty"),
    ):
        problem = assert_problem(await send(service, scene=url), 422, "invalid_request")
        [issue] = problem["errors"]
        assert (issue["pointer"], words in issue["detail"]) == ("/input/scene", True), problem
    many = assert_problem(
        await send(service, more=[{"file": inside(bytes([n]))} for n in range(4)]), 422, "invalid_request"
    )
    assert "4 inline media; echo accepts at most 3" in many["detail"]
    assert uploads(service) == []


async def test_nothing_is_stored_of_a_job_that_does_not_fit(service: Service) -> None:
    problem = assert_problem(await send(service, scene=inside(), count=0), 422, "invalid_request")
    assert [issue["pointer"] for issue in problem["errors"]] == ["/input/count"]
    assert uploads(service) == []


async def test_media_inside_are_bounded(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_inline_bytes=10, max_tenant_kept_bytes=15) as service:
        two = [{"file": inside(b"123456")}, {"file": inside(b"78901")}]
        problem = assert_problem(await send(service, more=two), 422, "media_too_large")
        assert "hold 11 bytes; at most 10 are allowed (max_inline_bytes): upload the files" in problem["detail"]
        assert [issue["pointer"] for issue in problem["errors"]] == ["/input/more/0/file", "/input/more/1/file"]
        assert (await send(service, scene=inside(b"1234567890"))).status_code == 202
        assert_problem(await send(service, scene=inside(b"123456")), 403, "storage_quota_exceeded")
    async with serving(valkey.url, tmp_path) as service:
        large = inside(bytes(MAX_SCENE_BYTES + 1))
        problem = assert_problem(await send(service, scene=large), 422, "media_too_large")
        assert problem["errors"][0]["pointer"] == "/input/scene"


async def test_a_text_that_looks_like_a_medium_stays(service: Service) -> None:
    assert (await send(service, text="data:,a")).status_code == 202
    assert (await service.claim()).submission.input == {"text": "data:,a"}
