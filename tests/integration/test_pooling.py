"""`/pooling` as scripts for vLLM's IO processors use it, with a simulated worker."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.errors import MissingBands
from penstock.intake.media import upload_key
from penstock.jobs import State
from penstock.media_types import is_media_type
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import ALIAS, Facing, facing
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

URL = "http://files.test:80/valencia_example_2024-10-26.tiff"


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path) as running:
        yield running


def payload(**data: Any) -> dict[str, Any]:
    """Return what the example script of vLLM sends."""
    what = {"data": URL, "data_format": "url", "image_format": "tiff", "out_data_format": "b64_json", **data}
    return {"model": ALIAS, "data": what, "priority": 0, "softmax": False}


async def post(face: Facing, body: Any, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=30) as http:
        return await http.post(f"{face.url}/pooling", json=body, headers=headers)


@pytest.mark.parametrize("size_bytes", [0, 1, 2_000_000])
async def test_a_scene_by_url_comes_back_as_base64_of_the_raster(face: Facing, size_bytes: int) -> None:
    asked = asyncio.create_task(post(face, payload(indices=[1, 2, 3, 8, 11, 12])))
    claim = await face.claim()
    assert claim.submission.model == "mapper"
    assert claim.submission.input == {"scene": URL, "outputs": ["classes"], "bands": [2, 3, 4, 9, 12, 13]}
    raster = os.urandom(size_bytes)
    artifact = face.service.store_artifact(claim, "classes.tif", raster, "image/tiff")
    await face.service.end(claim, Outcome(State.SUCCEEDED, artifacts=(artifact,)))
    answer = await asked
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    said = answer.json()
    assert set(said) == {"request_id", "created_at", "data"}
    assert said["request_id"] == said["data"]["request_id"] == claim.submission.key.id
    assert isinstance(said["created_at"], int)
    assert said["data"]["data_format"] == "b64_json"
    assert base64.b64decode(said["data"]["data"], validate=True) == raster


async def test_a_plugin_of_vllms_gets_what_it_got_there_and_its_own_file_comes_back(face: Facing) -> None:
    asked = asyncio.create_task(post(face, {**payload(indices=[1, 2, 3, 8, 11, 12]), "model": "plugin"}))
    claim = await face.claim()
    assert (claim.submission.model, claim.submission.input) == (
        "plugin",
        {"data": URL, "indices": [1, 2, 3, 8, 11, 12]},
    )
    artifact = face.service.store_artifact(claim, "data.tif", b"II*\0 the plugin's own", "image/tiff")
    await face.service.end(claim, Outcome(State.SUCCEEDED, artifacts=(artifact,)))
    answer = await asked
    assert (answer.status_code, base64.b64decode(answer.json()["data"]["data"])) == (200, b"II*\0 the plugin's own")


PNG = b"\x89PNG\r\n\x1a\n and more"


@pytest.mark.parametrize(
    "image",
    [prefix + base64.b64encode(PNG).decode() for prefix in ("", "data:image/png;base64,")],
)
async def test_any_plugin_gets_its_data_and_its_answer_comes_back_with_its_files(face: Facing, image: str) -> None:
    asked = asyncio.create_task(post(face, {"model": "counter", "data": {"image": image, "least": 0.5}}))
    claim = await face.claim()
    reference = claim.submission.input["image"]
    assert claim.submission.input == {"image": reference, "least": 0.5}
    upload_id, name = reference.removeprefix("media://").split("/")
    assert face.service.objects.get_bytes(upload_key("default", upload_id, name), limit_bytes=1000) == PNG
    assert is_media_type(face.service.objects.head(upload_key("default", upload_id, name)).content_type)
    files = [face.service.store_artifact(claim, f"masks-{n}.png", PNG + bytes([n]), "image/png") for n in range(2)]
    found = [{"score": 0.5, "mask": {"artifact": "masks-0.png"}}, {"artifact": "masks-1.png"}, {"artifact": "none.png"}]
    answer = {"data": {"found": found, "said": 'two "things" \u00e9'}}
    await face.service.end(claim, Outcome(State.SUCCEEDED, data=answer, artifacts=tuple(files)))
    got = await asked
    assert got.status_code == 200, got.text
    masks = [base64.b64encode(PNG + bytes([n])).decode() for n in range(2)]
    assert got.json()["request_id"] == claim.submission.key.id
    assert got.json()["data"] == {
        "found": [{"score": 0.5, "mask": masks[0]}, masks[1], {"artifact": "none.png"}],
        "said": 'two "things" \u00e9',
    }


async def test_a_plugin_gets_an_address_as_it_is(face: Facing) -> None:
    asked = asyncio.create_task(post(face, {"model": "counter", "data": {"image": URL}}))
    claim = await face.claim()
    assert claim.submission.input == {"image": URL}
    await face.service.end(claim, Outcome(State.SUCCEEDED, data={"data": [1, 2]}))
    assert (await asked).json()["data"] == [1, 2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a text", "must be an object with the fields of counter: image, least"),
        ({"least": 1}, "image"),
        ({"image": "no base64!"}, "is not base64"),
        ({"image": "data:imag\u00e9/png;base64,AAAA"}, "is no data: URL"),
        ({"image": URL, "path": "/etc/passwd"}, "path"),
    ],
)
async def test_data_that_a_plugin_does_not_take_is_refused(face: Facing, data: Any, said: str) -> None:
    answer = await post(face, {"model": "counter", "data": data})
    assert answer.status_code == 400
    assert said in answer.text


@pytest.mark.parametrize("written", [base64.b64encode, base64.encodebytes])
async def test_a_scene_in_the_request_becomes_an_upload(face: Facing, written: Callable[[bytes], bytes]) -> None:
    scene = b"II*\0 no more than it takes" + bytes(100)  # more than a line of base64
    asked = asyncio.create_task(post(face, payload(data=written(scene).decode(), data_format="b64_json")))
    claim = await face.claim()
    upload_id, name = claim.submission.input["scene"].removeprefix("media://").split("/")
    stored = face.service.objects.get_bytes(f"tenants/default/uploads/{upload_id}/{name}", limit_bytes=200)
    assert (stored, name) == (scene, "image.tif")
    await face.service.end(claim, Outcome(State.FAILED, error=MissingBands("The scene has 1 band.").report()))
    answer = await asked
    assert (answer.status_code, answer.json()) == (
        400, {"error": {"message": "The scene has 1 band.", "type": "BadRequestError", "param": None, "code": 400}}
    )  # fmt: skip


#: Refused fields of the data, the error's parameter, and words of its message.
REFUSED: list[tuple[Any, ...]] = [
    ({"data_format": "path", "data": "/etc/passwd"}, "data.data_format", "refers to a file on the server"),
    ({"out_data_format": "path"}, "data.out_data_format", "would write a file on the server"),
    ({"data": {"S1": URL, "S2": URL}}, "data.data", "must be a valid string"),
    ({"data": "§", "data_format": "b64_json"}, "data.data", "is not base64"),
    ({"data": "", "data_format": "b64_json"}, "data.data", ""),
    ({"data": "http://169.254.169.254/latest"}, "data.data", "may not be used"),
    ({"data": "file:///etc/passwd"}, "data.data", "may not be used"),
    ({"indices": [-1]}, "data.indices[0]", ""),
]


async def test_what_cannot_be_is_refused_in_vllms_words(face: Facing) -> None:
    for data, param, said in REFUSED:
        answer = await post(face, payload(**data))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"], error["param"]) == (
            400,
            400,
            "BadRequestError",
            param,
        )
        assert said in error["message"], error
        assert (await face.service.http.get("/v1/jobs")).json()["jobs"] == []


async def test_a_model_that_is_not_there_or_makes_no_rasters_is_404(face: Facing) -> None:
    for model, said in (("nobody/knows", "known models: "), ("writer", "does not support pooling of scenes")):
        answer = await post(face, payload() | {"model": model})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")
        assert said in answer.json()["error"]["message"]
    async with httpx2.AsyncClient() as http:
        wrong = await http.get(f"{face.url}/pooling")
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()["error"]["code"]) == (405, "POST", 405)


async def test_what_takes_longer_is_202_with_the_job(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, facade_wait_s=0.01) as face:
        answer = await post(face, payload(), **{"Idempotency-Key": "scene 1"})
        job = answer.json()
        assert (answer.status_code, job["status"], job["object"]) == (202, "queued", "job")
        assert answer.headers["location"].endswith(f"/v1/jobs/{job['id']}")
        assert int(answer.headers["retry-after"]) > 0
        claim = await face.claim()
        artifact = face.service.store_artifact(claim, "classes.tif", b"map", "image/tiff")
        await face.service.end(claim, Outcome(State.SUCCEEDED, artifacts=(artifact,)))
        again = await post(face, payload(), **{"Idempotency-Key": "scene 1"})
        assert (again.status_code, again.json()["data"]["data"]) == (200, "bWFw")


async def test_a_script_that_is_interrupted_leaves_no_job_behind(face: Facing) -> None:
    reader, writer = await asyncio.open_connection(*face.url.removeprefix("http://").split(":"))
    body = json.dumps(payload()).encode()
    head = f"POST /pooling HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    claim = await face.claim()
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(wait_for, lambda: face.answered(499), "the server did not see its client leave")
    assert (await face.job(claim.submission.key.id))["status"] == "canceling"
    del reader
