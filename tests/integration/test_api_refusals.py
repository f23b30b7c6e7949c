"""Refusals of the API: one kind of problem for each, and nothing else disturbed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api.app import create_app
from penstock.config import Settings
from penstock.errors import ConfigError
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.storage.redis.records import AsyncJobStore
from tests.support.service import MAX_ITEMS, MAX_SCENE_BYTES, Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess, start_valkey

UPLOAD = "01900000-0000-7000-8000-000000000000"
JSON = {"Content-Type": "application/json"}


async def refused(service: Service, value: dict[str, Any], status: int, code: str, **body: Any) -> list[dict[str, str]]:
    """Submit an input that is refused and return the problem's issues."""
    response = await service.http.post("/v1/jobs", json={"model": "echo", "input": value, **body})
    issues: list[dict[str, str]] = assert_problem(response, status, code)["errors"]
    return issues


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"\xff{}", b'{"a": NaN}',
        b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": "\\u0000"}', b'{"\\u0000": 1}',
        b'{"a": "\\ud800"}', b"[" * 100 + b"]" * 100, b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
async def test_a_body_that_is_not_strict_json_is_malformed(service: Service, body: bytes) -> None:
    assert_problem(await service.http.post("/v1/jobs", content=body, headers=JSON), 400, "malformed_body")


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/uploads"])
async def test_only_json_is_taken(service: Service, headers: dict[str, str], path: str) -> None:
    response = await service.http.post(path, content=b"{}", headers=headers)
    if path == "/v1/jobs" and "multipart/form-data" in headers.values():  # a job may come as a form
        assert_problem(response, 400, "malformed_body")
    else:
        assert_problem(response, 415, "unsupported_content_type")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(valkey: ValkeyProcess, tmp_path: Path, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with serving(valkey.url, tmp_path, max_body_bytes=1000) as service:
        content = chunks() if chunked else b" " * 10_000
        response = await service.http.post("/v1/jobs", content=content, headers=JSON)
        assert_problem(response, 413, "payload_too_large")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"model": None}, "/model"),
        ({"model": 7}, "/model"),
        ({"input": "text"}, "/input"),
        ({"colour": "red"}, "/colour"),
        ({"metadata": {"a": 1}}, "/metadata/a"),
        ({"metadata": {"a/b": "x" * 600}}, "/metadata/a~1b"),
        ({"priority": 1}, "/priority"),
        ({"queue_ttl": 0}, "/queue_ttl"),
        ({"queue_ttl": "5"}, "/queue_ttl"),
        ({"execution_timeout": 1e9}, "/execution_timeout"),
        ({"execution_timeout": 0.9}, "/execution_timeout"),
        ({"metadata": {"": "x"}}, "/metadata"),
        ({"metadata": {"k" * 65: "x"}}, "/metadata"),
        ({"webhook": {}}, "/webhook/url"),
        ({"webhook": "http://files.test/"}, "/webhook"),
        ({"webhook": {"url": "http://files.test/", "events": ["job.lost"]}}, "/webhook/events/0"),
        ({"webhook": {"url": "http://127.0.0.1:6379/"}}, "/webhook/url"),
        ({"webhook": {"url": "file:///etc/passwd"}}, "/webhook/url"),
    ],
)
async def test_a_wrong_field_is_pointed_at(service: Service, change: dict[str, Any], pointer: str) -> None:
    response = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "a"}, **change})
    problem = assert_problem(response, 422, "invalid_request")
    assert [issue["pointer"] for issue in problem["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file:///etc/passwd", "is not an http(s) URL"),
        ("maps.test/hook", "is not an http(s) URL"),
        ("http://127.0.0.1:9000/hook", "the operator can allow it as host:port (allowed_hosts)"),
        ("https://maps.test:9000/hook", "the operator can allow it as host:port (allowed_hosts)"),
    ],
)
async def test_a_refused_webhook_says_what_is_wrong_with_it(service: Service, url: str, sentence: str) -> None:
    (issue,) = await refused(service, {"text": "a"}, 422, "invalid_request", webhook={"url": url})
    assert issue["detail"].endswith(sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"webhook": "x"}, "must be an object"),
        ({"colour": "red"}, "is not known"),
        ({"webhook": {}}, "is required"),
        ({"priority": "urgent"}, "must be 'low', 'normal' or 'high'"),
        ({"execution_timeout": 0.9}, "must be greater than or equal to 1"),
        ({"metadata": {"": "x"}}, "the name '' must have at least 1 character"),
        ({"metadata": {"k": "x" * 600}}, "must have at most 512 characters"),
    ],
)
async def test_what_is_wrong_with_a_field_is_said_plainly(
    service: Service, change: dict[str, Any], sentence: str
) -> None:
    (issue,) = await refused(service, {"text": "a"}, 422, "invalid_request", **change)
    assert issue["detail"] == sentence


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"a": ["x", {"b/c": "\\u0000"}]}', "/a/1/b~1c"),
        (b'{"a": {"b": "\\ud800"}}', "/a/b"),
        (b'{"a": {"\\ud800": "\\u0000"}}', "/a"),
        (b'{"a": [1, 1e999]}', "/a/1"),
        (b'"\\u0000"', ""),
    ],
)
async def test_what_is_no_text_is_pointed_at(service: Service, body: bytes, pointer: str) -> None:
    problem = assert_problem(await service.http.post("/v1/jobs", content=body, headers=JSON), 400, "malformed_body")
    assert [issue["pointer"] for issue in problem["errors"]] == [pointer]


@pytest.mark.parametrize("body", [[], "text", 7, None])
async def test_a_body_that_is_no_object_is_refused(service: Service, body: Any) -> None:
    response = await service.http.post("/v1/jobs", content=json.dumps(body), headers=JSON)
    problem = assert_problem(response, 422, "invalid_request")
    assert problem["errors"] == [{"pointer": "", "detail": "must be an object"}]


async def test_each_wrong_place_of_the_input_is_pointed_at(service: Service) -> None:
    issues = await refused(service, {"count": 0, "colour": "red", "more": [{}, {"file": 7}]}, 422, "invalid_request")
    assert sorted(issue["pointer"] for issue in issues) == [
        "/input/colour", "/input/count", "/input/more/1/file", "/input/text"
    ]  # fmt: skip
    assert {"pointer": "/input/text", "detail": "is required"} in issues


async def test_an_unknown_model_is_answered_with_the_known_ones(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json={"model": "oracle", "input": {}})
    problem = assert_problem(response, 422, "unknown_model")
    assert problem["detail"] == "there is no model 'oracle'; known models: broken, echo (parrot)"
    assert problem["errors"][0]["pointer"] == "/model"


async def test_a_model_with_a_problem_is_unavailable(service: Service) -> None:
    response = await service.http.post("/v1/jobs", json={"model": "broken", "input": {"text": "a"}})
    problem = assert_problem(response, 503, "model_unavailable")
    assert problem["retryable"] is False
    assert problem["detail"] == "broken cannot be used at the moment: its weights are not those it names"
    assert problem["errors"][0]["pointer"] == "/model"


async def test_an_upload_that_never_came_is_not_found(service: Service) -> None:
    issues = await refused(service, {"text": "a", "scene": f"media://{UPLOAD}/a.tif"}, 422, "media_not_found")
    assert issues[0]["pointer"] == "/input/scene"


async def test_another_tenants_upload_is_not_found(service: Service) -> None:
    service.objects.put_bytes(f"tenants/other/uploads/{UPLOAD}/a.tif", b"x", content_type="image/tiff")
    await refused(service, {"text": "a", "scene": f"media://{UPLOAD}/a.tif"}, 422, "media_not_found")
    await refused(
        service, {"text": "a", "scene": f"media://../../other/uploads/{UPLOAD}/a.tif"}, 422, "media_not_found"
    )


async def test_media_over_the_models_limit_are_refused(service: Service) -> None:
    key = f"tenants/default/uploads/{UPLOAD}/a.tif"
    service.objects.put_bytes(key, b"x" * (MAX_SCENE_BYTES + 1), content_type="image/tiff")
    value = {"text": "a", "more": [{"file": f"media://{UPLOAD}/a.tif"}]}
    issues = await refused(service, value, 422, "media_too_large")
    assert issues[0]["pointer"] == "/input/more/0/file"


async def test_more_media_than_a_job_may_name_are_refused_before_they_are_looked_for(service: Service) -> None:
    value = {"text": "a", "more": [{"file": f"media://{UPLOAD}/{n}.tif"} for n in range(MAX_ITEMS + 1)]}
    issues = await refused(service, value, 422, "invalid_request")
    assert issues == [
        {"pointer": f"/input/more/{MAX_ITEMS}/file", "detail": "is more than the 3 media that a job may name"}
    ]


@pytest.mark.parametrize(
    "reference",
    [
        "s3://private/scene.tif", "https://example.org/scene.tif", "http://127.0.0.1/a.tif", "http://files.test:81/a.tif",
        "http://files.test@evil.test/a.tif", "http:\\\\files.test/a.tif", "file:///etc/passwd", "gopher://files.test/a",
        "/etc/passwd", "",
    ],
)  # fmt: skip
async def test_media_that_may_not_be_fetched_are_refused(service: Service, reference: str) -> None:
    issues = await refused(service, {"text": "a", "scene": reference}, 422, "media_refused")
    assert [issue["pointer"] for issue in issues] == ["/input/scene"]


async def test_media_from_an_allowed_host_are_accepted_without_asking_it(service: Service) -> None:
    body = {"model": "echo", "input": {"text": "a", "scene": "http://files.test/a.tif"}}
    assert (await service.http.post("/v1/jobs", json=body)).status_code == 202


async def test_a_refused_request_releases_its_idempotency_key(service: Service) -> None:
    headers = {"Idempotency-Key": "again"}
    wrong = await service.http.post("/v1/jobs", json={"model": "echo", "input": {}}, headers=headers)
    right = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "a"}}, headers=headers)
    assert (wrong.status_code, right.status_code) == (422, 202)


async def test_unknown_routes_and_methods_are_problems_too(service: Service) -> None:
    assert_problem(await service.http.get("/v1/nothing"), 404, "not_found")
    wrong = await service.http.patch("/v1/jobs")
    assert_problem(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, POST"
    job = await service.http.patch(f"/v1/jobs/{UPLOAD}")
    assert job.headers["allow"] == "GET, HEAD, PUT, DELETE"


async def test_unknown_models_and_queues_are_404(service: Service) -> None:
    assert_problem(await service.http.get("/v1/models/oracle"), 404, "unknown_model")
    queue = await service.http.get("/v1/queues/defalt")
    assert_problem(queue, 404, "unknown_queue")
    assert queue.json()["detail"].startswith("there is no queue 'defalt' (did you mean 'default'?); queues: default")


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8080", "127.0.0.1.evil.test"])
async def test_a_name_that_is_not_ours_is_refused(service: Service, host: str) -> None:
    assert_problem(await service.http.get("/v1/jobs", headers={"Host": host}), 421, "host_refused")


@pytest.mark.parametrize("host", ["localhost:8080", "[::1]:8080", "127.0.0.1:9", "127.1.2.3"])
async def test_every_name_of_this_machine_is_ours(service: Service, host: str) -> None:
    assert (await service.http.get("/v1/jobs", headers={"Host": host})).status_code == 200


#: Headers of browsers for a page of another origin: new browsers, old browsers, and a page in a sandbox.
FOREIGN: Sequence[dict[str, str]] = (
    {"Origin": "https://evil.test", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://127.0.0.1:3000", "Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.test"},
    {"Origin": "null"},
)
OURS: Sequence[dict[str, str]] = (
    {},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://127.0.0.1:8080", "Host": "127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://127.0.0.1:8080", "Host": "127.0.0.1:8080"},
)


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_origin_changes_nothing_where_no_keys_are_asked_for(
    service: Service, headers: dict[str, str]
) -> None:
    job = await service.submit()
    for path in ("/v1/queues/default/purge", f"/v1/jobs/{job['id']}/cancel", "/v1/jobs"):
        assert_problem(await service.http.post(path, headers=headers), 403, "origin_refused")
    assert (await service.http.post("/openai/v1/files", headers=headers)).status_code == 403
    assert_problem(await service.http.delete(f"/v1/jobs/{job['id']}", headers=headers), 403, "origin_refused")
    assert (await service.http.get(f"/v1/jobs/{job['id']}", headers=headers)).json()["status"] == "queued"


@pytest.mark.parametrize("headers", OURS)
async def test_our_own_pages_and_programs_do(service: Service, headers: dict[str, str]) -> None:
    job = await service.submit()
    canceled = await service.http.post(f"/v1/jobs/{job['id']}/cancel", headers=headers)
    assert (canceled.status_code, canceled.json()["status"]) == (200, "canceled")


async def test_with_keys_every_page_may_that_has_one(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        answer = await service.http.post("/v1/queues/default/purge", headers=FOREIGN[0])
        assert_problem(answer, 401, "unauthorized")


async def test_the_public_name_is_ours(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, public_url="https://maps.test/", access="open") as service:
        answer = await service.http.get("/v1/jobs", headers={"Host": "maps.test"})
        assert answer.status_code == 200
        assert (await service.submit())["links"]["self"].startswith("https://maps.test/v1/jobs/")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "maps.test"])
async def test_without_keys_the_api_listens_on_loopback_only(tmp_path: Path, host: str) -> None:
    settings = Settings(host=host, data=tmp_path, access="open")
    store = AsyncJobStore.open("redis://127.0.0.1:1")
    objects = open_store(settings.store_url, settings)
    with pytest.raises(ConfigError, match="loopback"):
        create_app(settings, jobs=store, objects=objects, send_hint=print)
    await store.close()


async def test_health_says_what_does_not_answer(tmp_path: Path) -> None:
    own = start_valkey(tmp_path / "valkey")
    try:
        async with serving(own.url, tmp_path / "data") as service:
            assert (await service.http.get("/livez")).json() == {"status": "ok"}
            assert (await service.http.get("/readyz")).json() == {"status": "ready", "job_store": None}
            own.kill()
            problem = assert_problem(await service.http.get("/readyz"), 503, "not_ready")
            assert problem["errors"] == [{"pointer": "/job_store", "detail": "does not answer"}]
            assert (await service.http.get("/livez")).status_code == 200
            answer = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "a"}})
            assert_problem(answer, 503, "redis_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            own.restart()
            assert (await service.http.get("/readyz")).status_code == 200
            await service.jobs.run(records.ping())
    finally:
        own.kill()


async def test_health_says_that_the_job_store_is_full(tmp_path: Path) -> None:
    own = start_valkey(tmp_path / "valkey")
    try:
        async with serving(own.url, tmp_path / "data") as service:
            await service.jobs.client.config_set("maxmemory", 1)
            problem = assert_problem(await service.http.get("/readyz"), 503, "not_ready")
            assert [issue["pointer"] for issue in problem["errors"]] == ["/job_store"]
            assert "raise its maxmemory" in problem["errors"][0]["detail"]
            await service.jobs.client.config_set("maxmemory", 0)
            assert (await service.http.get("/readyz")).status_code == 200
    finally:
        own.kill()


async def test_an_object_store_that_is_gone_is_seen(service: Service, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")
    problem = assert_problem(await service.http.get("/readyz"), 503, "not_ready")
    assert [issue["pointer"] for issue in problem["errors"]] == ["/object_store"]


async def test_a_bug_is_a_problem_without_a_word_of_it(service: Service) -> None:
    @service.app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("the password is hunter2")

    transport = httpx2.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=service.settings.base_url) as http:
        response = await http.get("/bug")
    assert_problem(response, 500, "internal")
    assert "hunter2" not in response.text
