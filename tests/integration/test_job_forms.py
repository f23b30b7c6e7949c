"""Jobs submitted as forms: one request that carries the job and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2

from penstock.storage.redis import catalogues
from penstock.storage.redis.usage import note_kept
from tests.support.full_disk import files_of_at_most
from tests.support.service import ECHO, MAX_SCENE_BYTES, Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

SCENE = ("scene of today.tif", b"II*\0 and more", "image/tiff")
FIELDS = {"model": "echo", "input": json.dumps({"text": "hello"})}


async def send(
    service: Service, files: Any = (("scene", SCENE),), headers: dict[str, str] | None = None, **fields: str
) -> httpx2.Response:
    return await service.http.post("/v1/jobs", data={**FIELDS, **fields}, files=list(files), headers=headers)


def uploads(service: Service) -> list[str]:
    return [info.key for info in service.objects.list("tenants/default/uploads/")]


async def test_one_request_carries_the_job_and_its_file(service: Service) -> None:
    response = await send(service, metadata='{"who": "me"}', priority="high", queue_ttl="7.5")
    job = response.json()
    assert response.status_code == 202, response.text
    assert response.headers["location"] == job["links"]["self"]
    submission = (await service.claim()).submission
    reference = submission.input["scene"]
    assert submission.input == {"text": "hello", "scene": reference}
    assert reference.endswith("/scene_of_today.tif")
    key = f"tenants/default/uploads/{reference.removeprefix('media://')}"
    assert b"".join(service.objects.read(key)) == SCENE[1]
    assert service.objects.head(key).content_type == "image/tiff"
    assert (submission.metadata, submission.priority, submission.queue_ttl_s) == ({"who": "me"}, 1, 7.5)
    assert not list(service.settings.spool_dir.glob("uploads/*/tmp*"))


async def test_a_file_fills_a_field_inside_others_and_several_make_a_list(service: Service) -> None:
    parts = [("more", ("a.tif", b"a", "image/tiff")), ("more", ("b.tif", b"b", "image/tiff"))]
    refused = assert_problem(await send(service, parts), 422, "invalid_request")
    assert {issue["pointer"] for issue in refused["errors"]} == {"/input/more/0", "/input/more/1"}
    assert "a list" not in refused["detail"]
    one = assert_problem(await send(service, [("more[]", parts[0][1])]), 422, "invalid_request")
    assert [issue["pointer"] for issue in one["errors"]] == ["/input/more/0"]
    inside = assert_problem(await send(service, [("text.file", parts[0][1])]), 422, "invalid_request")
    assert inside["errors"] == [
        {"pointer": "/input/text/file", "detail": "cannot be filled by a file: a field around it is no object"}
    ]
    assert uploads(service) == []


async def test_one_file_makes_a_list_where_the_model_takes_a_list(service: Service) -> None:
    media, media_list = (
        {"format": "media"},
        {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/File"}}, {"type": "null"}]},
    )
    inside = {"type": "object", "properties": {"beside": media_list}}
    either = {"anyOf": [{"type": "string", **media}, {"type": "array", "items": media}]}
    properties = {"beside": media_list, "before": inside, "either": either}
    schema = {"type": "object", "properties": properties, "$defs": {"File": {"type": "string", **media}}}
    echo = ECHO.model_copy(update={"input_schema": schema})
    await service.jobs.run(catalogues.publish([echo], worker="w", queues=["default"], alive_s=600))
    names = ("beside", "before.beside", "either")
    parts = [(name, (f"{name}.tif", name.encode(), "image/tiff")) for name in names]
    headers = {"Idempotency-Key": "order-2"}
    first, again = [await send(service, parts, headers, input="{}") for _ in range(2)]
    assert first.status_code == again.status_code == 202, first.text
    assert first.json()["id"] == again.json()["id"]
    given = (await service.claim()).submission.input
    assert isinstance(given["either"], str)
    [mask], [earlier] = given["beside"], given["before"]["beside"]
    assert [reference.rpartition("/")[2] for reference in (mask, earlier)] == ["beside.tif", "before.beside.tif"]


async def test_texts_are_fields_of_the_input_as_its_schema_says(service: Service) -> None:
    kinds = {name: {"type": name} for name in ("string", "integer", "number", "boolean")}
    inside = {"type": "object", "properties": {"scale": kinds["number"]}}
    properties = {
        "text": kinds["string"], "count": kinds["integer"], "ratio": kinds["number"], "ticked": kinds["boolean"],
        "words": {"type": "array", "items": kinds["string"]}, "empty": kinds["integer"], "blank": kinds["string"],
        "either": {"anyOf": [kinds["integer"], kinds["string"]]}, "radiometry": inside,
    }  # fmt: skip
    echo = ECHO.model_copy(update={"input_schema": {"type": "object", "properties": properties}})
    await service.jobs.run(catalogues.publish([echo], worker="w", queues=["default"], alive_s=600))
    texts = {
        "text": '"quoted", -- null', "count": "3", "ratio": "1e-4", "ticked": "on", "words": "a, b", "empty": "",
        "blank": "", "either": "5", "radiometry.scale": "2",
    }  # fmt: skip
    headers = {"Idempotency-Key": "texts"}
    parts = {name: (None, text) for name, text in {"model": "echo", **texts}.items()}
    first, again = [await service.http.post("/v1/jobs", files=parts, headers=headers) for _ in range(2)]
    assert first.status_code == again.status_code == 202, first.text
    assert first.json()["id"] == again.json()["id"]
    assert (await service.claim()).submission.input == {
        "text": '"quoted", -- null', "count": 3, "ratio": 1e-4, "ticked": True, "words": ["a", "b"], "blank": "",
        "either": "5", "radiometry": {"scale": 2},
    }  # fmt: skip


async def test_a_repeated_form_finds_its_job_and_stores_its_file_once(service: Service) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first, second = await send(service, headers=headers), await send(service, headers=headers)
    assert (first.status_code, second.status_code) == (202, 202), first.text
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    assert len(uploads(service)) == 1
    other = await send(service, [("scene", (SCENE[0], b"other bytes", "image/tiff"))], headers)
    assert_problem(other, 422, "idempotency_mismatch")
    assert_problem(await send(service, headers=headers, priority="low"), 422, "idempotency_mismatch")


async def test_a_form_under_an_id_of_ones_own_finds_its_job(service: Service) -> None:
    path = "/v1/jobs/0198b6a0-0000-7000-8000-000000000001"
    answers = [await service.http.put(path, data=FIELDS, files={"scene": SCENE}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202], answers[0].text
    assert len(uploads(service)) == 1


async def test_a_form_that_does_not_fit_is_refused_before_its_files_are_stored(service: Service) -> None:
    nothing = assert_problem(await send(service, model="nomodel"), 422, "unknown_model")
    assert "nomodel" in nothing["detail"]
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"input": '{"text": "a", "count": 0}'}, "/input/count", "at least 1"),
        ({"input": '{"text": "a", "scene": "media://x/y"}'}, "/input/scene", "given twice"),
        ({"colour": "red"}, "/input/colour", "there is no field 'colour'; known fields: text"),
        ({"input": "{}", "text": "a", "count": "x"}, "/input/count", "'x' is not a whole number"),
        ({"input": "{}", "text": "a", "count": "1" * 10_001}, "/input/count", "has more than 10,000 characters"),
        ({"files": [("scene", (None, "scene.tif"))]}, "/input/scene", "(curl: -F scene=@PATH)"),
        ({"text": "b"}, "/input/text", "is given twice"),
        ({"files": [("scene", ("a.tif", b"", "image/tiff"))]}, "/input/scene", "is an empty file"),
        ({"files": [("input", ("a.json", b"{}", "application/json"))]}, "/input", "is a file, but must be a text"),
        ({"metadata": '"me"'}, "/metadata", "must be an object"),
    ]
    for fields, place, words in wrong:
        problem = assert_problem(await send(service, **fields), 422, "invalid_request")
        assert [(each["pointer"], words in each["detail"]) for each in problem["errors"]] == [(place, True)], problem
    for text, words in (("{", "'input': the body is not JSON"), ('{"a": 1, "a": 2}', "twice")):
        assert words in assert_problem(await send(service, input=text), 400, "malformed_body")["detail"]
    assert uploads(service) == []


async def test_a_malformed_form_is_refused_in_words(service: Service) -> None:
    for kind, content in (("multipart/form-data", b"x"), ("multipart/form-data; boundary=a", b"--b\r\n")):
        response = await service.http.post("/v1/jobs", content=content, headers={"Content-Type": kind})
        assert "the form is malformed" in assert_problem(response, 400, "malformed_body")["detail"]


async def test_the_limits_of_uploads_hold_for_a_forms_files(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_upload_bytes=2_000_000) as service:
        file = ("a.tif", bytes(2_000_001), "image/tiff")
        problem = assert_problem(await send(service, [("scene", file)]), 413, "payload_too_large")
        assert problem["errors"] == [{"pointer": "/input/scene", "detail": "too large"}]
        many = [("more", ("a.tif", bytes(1_900_000), "image/tiff"))] * 9
        assert "the limit of" in assert_problem(await send(service, many), 413, "payload_too_large")["detail"]
        models = [("scene", ("a.tif", bytes(MAX_SCENE_BYTES + 1), "image/tiff"))]
        assert_problem(await send(service, models), 422, "media_too_large")
        with files_of_at_most(1_500_000):
            assert_problem(
                await send(service, [("scene", ("a.tif", bytes(1_999_999), "image/tiff"))]), 503, "out_of_space"
            )
        assert not [path for path in service.settings.spool_dir.rglob("*") if path.is_file()]


async def test_the_files_of_a_form_need_room_in_the_quota(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_kept_bytes=20) as service:
        headers = {"Idempotency-Key": "order-1"}
        assert (await send(service, headers=headers)).status_code == 202
        assert (await send(service, headers=headers)).status_code == 202  # counted once
        refused = assert_problem(await send(service), 403, "storage_quota_exceeded")
        assert refused["detail"] == f"the tenant keeps {len(SCENE[1])} of 20 bytes, and the upload has {len(SCENE[1])}"
        assert len(uploads(service)) == 1
        await service.jobs.run(note_kept("default", 20))
        again = await send(service, headers=headers)  # its job exists, so it needs no room
        assert (again.status_code, again.headers["idempotency-replayed"]) == (202, "true")


async def test_the_files_of_a_form_find_room_together_or_none_does(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_kept_bytes=20) as service:
        schema = {"type": "object", "properties": {"all": {"type": "array", "items": {"format": "media"}}}}
        scenes = ECHO.model_copy(update={"name": "scenes", "aliases": (), "input_schema": schema})
        await service.jobs.run(catalogues.publish([ECHO, scenes], worker="w", queues=["default"], alive_s=600))
        parts = [("all", ("a.tif", bytes(15), "image/tiff")), ("all", ("b.tif", bytes(15), "image/tiff"))]
        fields = {"model": "scenes", "input": "{}"}
        refused = assert_problem(await send(service, parts, **fields), 403, "storage_quota_exceeded")
        assert refused["detail"] == "the tenant keeps 0 of 20 bytes, and the upload has 30"
        assert (await send(service)).status_code == 202  # nothing was counted for the refused form
