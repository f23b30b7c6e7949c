"""Jobs with local files: these are uploaded first, with the files that lie beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client.answers import ClientError
from penstock.client.asynchronous.jobs import AsyncJobs
from penstock.client.options import JobOptions
from penstock.processors.geo.request import SegmentationRequest
from tests.support.answering import Answering

JOB = {"id": "0190", "model": "csmask", "status": "queued", "created_at": "2026-01-01T00:00:00Z"}
LOST = httpx2.ReadError("lost")


def said(status: int, document: Any) -> httpx2.Response:
    return httpx2.Response(status, json=document)


def sent(name: str, **headers: str) -> list[httpx2.Response]:
    """Return the answers to the two requests of an upload."""
    place = {"media": f"media://u/{name}", "method": "PUT", "url": "http://store.test/put", "headers": headers}
    return [said(201, place), httpx2.Response(200)]


async def test_a_submission_uploads_its_files_first_and_repeats_under_one_key(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_bytes(b"II*\0")
    service = Answering(*sent("scene.tif", X="1"), LOST, said(202, JOB))

    job = await AsyncJobs(service.service()).submit("csmask", {"outputs": ["stats"]}, files={"scene": scene})

    _, put, first, second = service.asked
    assert service.body(0) == {"filename": "scene.tif", "content_type": "image/tiff", "size_bytes": 4}
    assert (put.method, str(put.url), put.headers["X"]) == ("PUT", "http://store.test/put", "1")
    assert (put.content, put.headers["Content-Length"]) == (b"II*\0", "4")
    assert service.body(2) == {"model": "csmask", "input": {"outputs": ["stats"], "scene": "media://u/scene.tif"}}
    assert first.headers["Idempotency-Key"]
    assert (first.content, first.headers) == (second.content, second.headers)
    assert job.id == "0190"


async def test_an_estimate_is_a_dry_run_of_the_same_request(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_bytes(b"II*\0")
    found = {"model": "csmask", "queue": "default", "device_seconds": {"low": 1, "high": 2}}
    service = Answering(*sent("scene.tif"), said(200, found))

    estimate = await AsyncJobs(service.service()).estimate("csmask", files={"scene": scene}, after=["0190"])

    asked = service.asked[-1]
    assert (asked.method, asked.url.path, asked.url.query) == ("POST", "/v1/jobs", b"dry_run=true")
    assert service.body(2) == {"model": "csmask", "input": {"scene": "media://u/scene.tif"}, "after": ["0190"]}
    assert (estimate.queue, estimate.device_seconds, estimate.price) == ("default", {"low": 1, "high": 2}, None)


async def test_a_submission_sends_the_files_that_lie_beside_a_file(tmp_path: Path) -> None:
    names = ("a.tif", "a.tif.msk", "a.tif.aux.xml", "b.tif", "b.tfw", "c.tif", "c.tif.msk")
    for name in names:
        (tmp_path / name).write_bytes(b"II*\0")
    model = {"name": "csmask", "input_schema": SegmentationRequest.model_json_schema()}
    order = ["a.tif", "b.tif", "c.tif", "b.tfw", "a.tif.msk", "a.tif.aux.xml"]
    uploads = [answer for name in order for answer in sent(name)]
    service = Answering(said(200, model), *uploads, said(202, JOB))
    document = {"files": [{"media": None, "beside": []}], "change": {"of": ["water"]}}
    files: dict[str, str | Path] = {
        "scene": tmp_path / "a.tif",
        "change.before.scene": str(tmp_path / "b.tif"),
        "files.0.media": tmp_path / "c.tif",
    }
    await AsyncJobs(service.service()).submit("csmask", document, files=files)
    assert service.asked[0].url.path == "/v1/models/csmask"
    assert service.body(-1)["input"] == {
        "scene": "media://u/a.tif",
        "beside": ["media://u/a.tif.msk", "media://u/a.tif.aux.xml"],
        "files": [{"media": "media://u/c.tif", "beside": []}],
        "change": {"of": ["water"], "before": {"scene": "media://u/b.tif", "beside": ["media://u/b.tfw"]}},
    }


async def test_a_submission_to_a_model_without_files_beside_a_file_sends_none(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(b"II*\0")
    (tmp_path / "a.tif.msk").write_bytes(b"II*\0")
    model = {"name": "echo", "input_schema": {"properties": {"images": {"items": {"format": "media"}}}}}
    service = Answering(said(200, model), *sent("a.tif"), said(202, JOB))
    await AsyncJobs(service.service()).submit("echo", files={"images": [tmp_path / "a.tif"]})
    assert service.body(-1)["input"] == {"images": ["media://u/a.tif"]}


async def test_a_key_that_may_only_submit_is_told_of_files_beside_and_may_say_which_it_means(tmp_path: Path) -> None:
    for name in ("a.tif", "a.tif.msk"):
        (tmp_path / name).write_bytes(b"II*\0")
    files = {"scene": tmp_path / "a.tif"}
    refusing = AsyncJobs(Answering(said(403, {})).service())
    with pytest.raises(ClientError, match=r"a\.tif\.msk may belong to a file of this job.* give `beside` as \[\]"):
        await refusing.submit("csmask", files=files)
    service = Answering(*sent("a.tif"), said(202, JOB))
    await AsyncJobs(service.service()).submit("csmask", {"beside": []}, files=files)
    assert service.body(-1)["input"] == {"scene": "media://u/a.tif", "beside": []}


async def test_the_options_of_the_caller_stay_as_they_are() -> None:
    options: JobOptions = {"idempotency_key": "order-1"}
    service = Answering(said(202, JOB))
    await AsyncJobs(service.service()).submit("m", **options)
    assert service.asked[0].headers["Idempotency-Key"] == "order-1"
    assert options == {"idempotency_key": "order-1"}


async def test_a_job_of_ones_own_id_is_put_there() -> None:
    service = Answering(said(202, JOB))
    await AsyncJobs(service.service()).submit("m", job_id="0190", priority="low")
    assert (service.asked[0].method, service.asked[0].url.path) == ("PUT", "/v1/jobs/0190")
    assert service.body(0) == {"model": "m", "input": {}, "priority": "low"}


async def test_a_large_output_that_an_answer_leaves_out_is_fetched() -> None:
    service = Answering(said(200, {**JOB, "output_bytes": 9}), said(200, {**JOB, "output": {"text": "all of it"}}))
    assert (await AsyncJobs(service.service()).cancel("0190")).text == "all of it"
    assert service.asked[1].url.path == "/v1/jobs/0190"
