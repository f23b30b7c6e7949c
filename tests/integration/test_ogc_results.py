"""The results of OGC API - Processes: by value and by reference, as a document and raw, small and large."""

from __future__ import annotations

import base64
import email
from email.message import Message
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.api.facades.ogc.results import MAX_VALUE_BYTES
from penstock.jobs import State
from penstock.storage.redis import catalogues
from penstock.storage.redis.records import Outcome
from tests.support.ceph import Ceph
from tests.support.ogc_models import HELLO, LABELS, SCENE, mapped, serve_maps, started
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def ogc(service: Service) -> Service:
    """Return a service with the models `echo` and `maps`."""
    await serve_maps(service)
    return service


def parts_of(answer: httpx2.Response) -> list[Message]:
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    found = email.message_from_bytes(head + answer.content)
    assert found.get_content_type() == "multipart/related"
    parts = found.get_payload()
    assert isinstance(parts, list)
    return parts  # type: ignore[return-value]


async def test_a_document_holds_values_and_links(ogc: Service) -> None:
    outputs = {"classes": {}, "stats": {}, "labels": {"transmissionMode": "reference"}}
    job = await mapped(ogc, {"inputs": SCENE, "outputs": outputs, "response": "document"})
    answer = await ogc.http.get(f"/ogc/jobs/{job}/results")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found = answer.json()
    assert found["classes"] == {
        "value": base64.b64encode(b"II*\0map").decode(), "encoding": "base64",
        "mediaType": "image/tiff; application=geotiff",
    }  # fmt: skip
    assert found["stats"] == {"value": {"water": 7}, "mediaType": "application/json"}
    assert set(found) == set(outputs)
    assert (await ogc.http.get(found["labels"]["href"])).text == "water, land"


async def test_raw_values_are_parts_of_one_answer(ogc: Service) -> None:
    job = await mapped(ogc, {"inputs": SCENE, "outputs": {"classes": {}, "stats": {"transmissionMode": "reference"}}})
    image, stats = parts_of(await ogc.http.get(f"/ogc/jobs/{job}/results"))
    assert (image["content-id"], image["content-type"], image.get_payload(decode=True)) == (
        "classes", "image/tiff; application=geotiff", b"II*\0map"
    )  # fmt: skip
    assert (stats["content-id"], stats.get_payload(decode=True)) == ("stats", b"")
    assert (await ogc.http.get(str(stats["content-location"]))).json() == {"water": 7}


async def test_raw_references_are_links_of_an_empty_answer(ogc: Service) -> None:
    outputs = {name: {"transmissionMode": "reference"} for name in ("classes", "stats")}
    job = await mapped(ogc, {"inputs": SCENE, "outputs": outputs})
    answer = await ogc.http.get(f"/ogc/jobs/{job}/results")
    assert (answer.status_code, answer.content) == (204, b"")
    assert 'title="classes"' in answer.headers["link"]
    assert answer.headers["link"].count('rel="item"') == 2


async def answered(service: Service, body: dict[str, Any], outcome: Outcome) -> httpx2.Response:
    """Execute `labels`, end its job and return the results."""
    await service.jobs.run(catalogues.publish([LABELS], worker="w", queues=["default"], alive_s=600))
    job, claim = await started(service, {**HELLO, **body}, "labels")
    await service.end(claim, outcome)
    return await service.http.get(f"/ogc/jobs/{job}/results")


async def test_a_model_without_outputs_returns_its_answer(ogc: Service) -> None:
    found = {"labels": [{"label": "cat", "score": 0.5}]}
    raw = await answered(ogc, {}, Outcome(State.SUCCEEDED, data=found))
    assert (raw.status_code, raw.json()) == (200, found)
    document = await answered(ogc, {"response": "document"}, Outcome(State.SUCCEEDED, data=found))
    assert document.json()["answer"]["value"] == found
    assert list((await ogc.http.get("/ogc/processes/labels")).json()["outputs"]) == ["answer"]


async def test_a_text_without_data_is_an_answer_too(ogc: Service) -> None:
    found = await answered(ogc, {}, Outcome(State.SUCCEEDED, text="two cats"))
    assert (found.status_code, found.json()) == (200, "two cats")


async def test_one_raw_value_is_the_file_itself(ogc: Service) -> None:
    job = await mapped(ogc, {"inputs": SCENE, "outputs": {"classes": {}}})
    for path in ("results", "results/classes"):
        answer = await ogc.http.get(f"/ogc/jobs/{job}/{path}")
        assert (answer.status_code, answer.content) == (200, b"II*\0map")
        assert answer.headers["content-type"] == "image/tiff; application=geotiff"
    assert (await ogc.http.get(f"/ogc/jobs/{job}/results/stats")).status_code == 404


async def test_what_is_too_large_for_one_answer_is_linked(ogc: Service) -> None:
    image, text = b"i" * (MAX_VALUE_BYTES - 100), "t" * 200
    job = await mapped(ogc, {"inputs": SCENE, "response": "document"}, image, text)
    found = (await ogc.http.get(f"/ogc/jobs/{job}/results")).json()
    assert {name: "href" in entry for name, entry in found.items()} == {
        "classes": False, "stats": False, "labels": True
    }  # fmt: skip
    job = await mapped(ogc, {"inputs": SCENE, "outputs": {"classes": {}}, "response": "document"}, image * 2)
    assert set((await ogc.http.get(f"/ogc/jobs/{job}/results")).json()["classes"]) == {"href", "type", "title"}
    job = await mapped(ogc, {"inputs": SCENE, "outputs": {"classes": {}}}, image * 2)
    assert (await ogc.http.get(f"/ogc/jobs/{job}/results")).content == image * 2


async def test_a_job_that_came_another_way_is_told_by_links(ogc: Service) -> None:
    job = await ogc.submit()
    await ogc.succeed(await ogc.claim())
    found = (await ogc.http.get(f"/ogc/jobs/{job['id']}/results")).json()
    assert (await ogc.http.get(found["text"]["href"])).text == "hello"


async def test_a_file_in_a_bucket_is_read_where_it_is_small_and_redirected_to_where_not(
    ceph: Ceph, valkey: ValkeyProcess, tmp_path: Path
) -> None:
    options = {"object_store": f"s3://{ceph.bucket()}", "s3": ceph.s3}
    async with serving(valkey.url, tmp_path, **options) as service, httpx2.AsyncClient() as web:
        await serve_maps(service)
        job = await mapped(service, {"inputs": SCENE, "outputs": {"classes": {}}})
        small = await service.http.get(f"/ogc/jobs/{job}/results")
        assert (small.status_code, small.content) == (200, b"II*\0map")
        image = bytes(MAX_VALUE_BYTES + 1)
        job = await mapped(service, {"inputs": SCENE, "outputs": {"classes": {}}}, image)
        large = await service.http.get(f"/ogc/jobs/{job}/results")
        assert large.status_code == 303
        assert (await web.get(large.headers["location"])).content == image
