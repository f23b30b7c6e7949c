"""Requests and retries of the client."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.client.answers import ClientError, Job, PenstockAPIError, Unreachable
from penstock.client.async_client import AsyncClient
from penstock.client.decoding import read
from penstock.client.local_files import media_fields
from penstock.client.operations import Operations
from penstock.client.protocol import (
    Delays,
    Digest,
    EventReader,
    Flow,
    Pause,
    Reply,
    Request,
    Step,
    artifact_path,
    exchange,
    retry_after_s,
    submission,
)
from penstock.jobs import Status
from penstock.processors.geo.request import SegmentationRequest

JOB = {
    "id": "0190",
    "model": "csmask",
    "status": "succeeded",
    "created_at": "2026-01-01T00:00:00Z",
    "attempt": 1,
    "output": {"text": None, "json": {"n": 1}},
    "a field of tomorrow": {},
    "artifacts": [{"name": "a.tif", "size_bytes": 3, "sha256": "x", "another": 1}],
    "error": None,
}
ASK = Request("GET", "/v1/jobs/1")
OK = Reply(200, {}, b"{}")


def problem(status: int, code: str, *, retryable: bool, **headers: str) -> Reply:
    return Reply(status, headers, json.dumps({"code": code, "detail": code, "retryable": retryable}).encode())


class Service:
    """Answers requests from a list, and remembers what was asked and how long was waited."""

    def __init__(self, *answers: Reply | Unreachable) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []
        self.pauses: list[float] = []

    def run(self, flow: Flow[Any]) -> Any:
        try:
            step = next(flow)
            while True:
                step = self._answer(flow, step)
        except StopIteration as end:
            return end.value

    def _answer(self, flow: Flow[Any], step: Step) -> Step:
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            return flow.send(None)
        if isinstance(step, Digest):
            return flow.send(step.read())
        self.asked.append(step)
        answer = self.answers.pop(0)
        return flow.throw(answer) if isinstance(answer, Unreachable) else flow.send(answer)


def ask(service: Service, patience_s: float = 60) -> Any:
    return service.run(exchange(ASK, patience_s=patience_s, draw=lambda: 1.0))


def test_a_lost_connection_is_tried_again_with_growing_pauses() -> None:
    service = Service(Unreachable("gone"), Unreachable("gone"), OK)

    assert ask(service) is OK
    assert service.pauses == [0.25, 0.5]


def test_the_service_says_how_long_to_wait() -> None:
    service = Service(problem(503, "queue_full", retryable=True, **{"retry-after": "7"}), OK)

    assert ask(service) is OK
    assert service.pauses == [7.0]


def test_waiting_ends_where_patience_does() -> None:
    service = Service(problem(429, "too_many_jobs", retryable=True, **{"retry-after": "61"}))

    with pytest.raises(PenstockAPIError, match="too_many_jobs"):
        ask(service)
    assert service.pauses == []


def test_a_dead_service_is_given_up() -> None:
    service = Service(*[Unreachable("gone")] * 20)

    with pytest.raises(Unreachable):
        ask(service, patience_s=5)
    assert sum(service.pauses) <= 5


@pytest.mark.parametrize("status", [400, 404, 413, 422, 503])
def test_what_another_try_cannot_change_is_not_tried_again(status: int) -> None:
    service = Service(problem(status, "no", retryable=False))

    with pytest.raises(PenstockAPIError) as caught:
        ask(service)
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (status, "no", False)


@pytest.mark.parametrize("status", [301, 307])
def test_an_answer_that_leads_elsewhere_is_not_taken_for_done(status: int) -> None:
    elsewhere = Reply(status, {"location": "https://penstock.example.org/v1/jobs/1"}, b"")
    service = Service(elsewhere)

    with pytest.raises(PenstockAPIError, match=r"leads elsewhere \(https://penstock\.example\.org/v1/jobs/1\)"):
        service.run(Operations(60, lambda: 1.0).delete("1"))
    assert len(service.asked) == 1


def test_an_answer_that_is_no_problem_is_one_all_the_same() -> None:
    with pytest.raises(PenstockAPIError, match="HTTP 403"):
        ask(Service(Reply(403, {}, b"<Error>AccessDenied</Error>")))


def test_a_problem_names_the_places() -> None:
    error = PenstockAPIError(
        {"detail": "it does not fit", "errors": [{"pointer": "/input/scene", "detail": "is required"}]}, status=422
    )
    assert str(error) == "it does not fit (/input/scene: is required)"


def test_a_submission_uploads_its_files_first_and_repeats_under_one_key(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_bytes(b"II*\0")
    place = {"id": "u", "media": "media://u/scene.tif", "method": "PUT", "url": "http://s/put", "headers": {"X": "1"}}
    service = Service(
        Reply(201, {}, json.dumps(place).encode()),
        Reply(200, {}, b""),
        Unreachable("lost"),
        Reply(202, {}, json.dumps(JOB).encode()),
    )

    job = service.run(Operations(60).submit("csmask", {"outputs": ["stats"]}, {"scene": scene}, None, {}))

    ask_place, put, first, second = service.asked
    assert ask_place.body == {"filename": "scene.tif", "content_type": "image/tiff", "size_bytes": 4}
    assert (put.method, put.path, put.headers) == ("PUT", "http://s/put", {"X": "1"})
    assert first.body == {"model": "csmask", "input": {"outputs": ["stats"], "scene": "media://u/scene.tif"}}
    assert first.headers["Idempotency-Key"]
    assert first == second
    assert job.id == "0190"


def test_a_submission_sends_the_files_that_lie_beside_a_file(tmp_path: Path) -> None:
    names = ("a.tif", "a.tif.msk", "a.tif.aux.xml", "b.tif", "b.tfw", "c.tif", "c.tif.msk")
    for name in names:
        (tmp_path / name).write_bytes(b"II*\0")
    model = {"name": "csmask", "input_schema": SegmentationRequest.model_json_schema()}
    sent = ["a.tif", "b.tif", "c.tif", "b.tfw", "a.tif.msk", "a.tif.aux.xml"]
    answers = [Reply(200, {}, json.dumps(model).encode())]
    for name in sent:
        place = {"media": f"media://u/{name}", "method": "PUT", "url": "http://s/put", "headers": {}}
        answers += [Reply(201, {}, json.dumps(place).encode()), Reply(200, {}, b"")]
    service = Service(*answers, Reply(202, {}, json.dumps(JOB).encode()))
    document = {"files": [{"media": None, "beside": []}], "change": {"of": ["water"]}}
    files = {
        "scene": tmp_path / "a.tif",
        "change.before.scene": str(tmp_path / "b.tif"),
        "files.0.media": tmp_path / "c.tif",
    }
    service.run(Operations(60).submit("csmask", document, files, None, {}))
    assert service.asked[0].path == "/v1/models/csmask"
    assert service.asked[-1].body["input"] == {
        "scene": "media://u/a.tif",
        "beside": ["media://u/a.tif.msk", "media://u/a.tif.aux.xml"],
        "files": [{"media": "media://u/c.tif", "beside": []}],
        "change": {"of": ["water"], "before": {"scene": "media://u/b.tif", "beside": ["media://u/b.tfw"]}},
    }


def test_a_submission_to_a_model_without_files_beside_a_file_sends_none(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(b"II*\0")
    (tmp_path / "a.tif.msk").write_bytes(b"II*\0")
    model = {"name": "echo", "input_schema": {"properties": {"images": {"items": {"format": "media"}}}}}
    place = {"media": "media://u/a.tif", "method": "PUT", "url": "http://s/put", "headers": {}}
    replies = [(200, model), (201, place), (200, {}), (202, JOB)]
    service = Service(*(Reply(status, {}, json.dumps(body).encode()) for status, body in replies))
    service.run(Operations(60).submit("echo", {}, {"images": [tmp_path / "a.tif"]}, None, {}))
    assert service.asked[-1].body["input"] == {"images": ["media://u/a.tif"]}


def test_a_key_that_may_only_submit_is_told_of_files_beside_and_may_say_which_it_means(tmp_path: Path) -> None:
    for name in ("a.tif", "a.tif.msk"):
        (tmp_path / name).write_bytes(b"II*\0")
    files = {"scene": tmp_path / "a.tif"}
    with pytest.raises(ClientError, match=r"a\.tif\.msk may belong to a file of this job.* give `beside` as \[\]"):
        Service(Reply(403, {}, b"{}")).run(Operations(60).submit("csmask", {}, files, None, {}))
    place = {"media": "media://u/a.tif", "method": "PUT", "url": "http://s/put", "headers": {}}
    replies = [(201, place), (200, {}), (202, JOB)]
    service = Service(*(Reply(status, {}, json.dumps(body).encode()) for status, body in replies))
    service.run(Operations(60).submit("csmask", {"beside": []}, files, None, {}))
    assert service.asked[-1].body["input"] == {"scene": "media://u/a.tif", "beside": []}


def test_an_upload_whose_answer_was_lost_has_arrived_when_the_store_says_that_the_key_is_taken(tmp_path: Path) -> None:
    scene = tmp_path / "scene.tif"
    scene.write_bytes(b"II*\0")
    place = {"media": "media://u/scene.tif", "method": "PUT", "url": "http://s/put", "headers": {"If-None-Match": "*"}}
    service = Service(Reply(201, {}, json.dumps(place).encode()), Unreachable("lost"), Reply(412, {}, b"<Error/>"))
    assert service.run(Operations(60).upload(scene, None)) == "media://u/scene.tif"
    other = Service(Reply(201, {}, json.dumps(place).encode()), Reply(403, {}, b"<Error/>"))
    with pytest.raises(PenstockAPIError):
        other.run(Operations(60).upload(scene, None))


def test_options_that_were_not_given_are_left_to_the_service() -> None:
    assert submission("m", {}, key="k", options={"priority": None}).body == {"model": "m", "input": {}}
    full = submission(
        "m",
        {"a": 1},
        key="k",
        options={"webhook": "http://h/x", "metadata": {"a": "b"}, "queue_ttl_s": 5, "priority": "low"},
    )
    assert full.body == {
        "model": "m",
        "input": {"a": 1},
        "webhook": {"url": "http://h/x"},
        "metadata": {"a": "b"},
        "queue_ttl": 5,
        "priority": "low",
    }


@pytest.mark.parametrize("make", [lambda _: None, lambda p: p.mkdir(), lambda p: p.touch()])
def test_a_file_that_cannot_be_sent_is_said_before_anything_is(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "scene.tif")

    with pytest.raises(ClientError, match=r"scene\.tif"):
        Service().run(Operations(10).upload(tmp_path / "scene.tif", None))


async def test_a_file_that_goes_with_a_key_is_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scene.tif").write_bytes(b"scene")
    threads, read = [], Digest.read

    def noted(digest: Digest) -> str:
        threads.append(threading.current_thread())
        return read(digest)

    def answer(request: httpx2.Request) -> httpx2.Response:
        there = {"media": "media://1/scene.tif", "uploaded": True}
        return httpx2.Response(201, json=there if request.url.path == "/v1/uploads" else JOB)

    monkeypatch.setattr(Digest, "read", noted)
    async with AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        job = await client.submit("csmask", files={"scene": tmp_path / "scene.tif"}, idempotency_key="k")
    assert (job.id, len(threads)) == ("0190", 1)
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\..\\x"])
def test_an_artifact_does_not_leave_its_folder(name: str) -> None:
    with pytest.raises(ClientError):
        artifact_path(Path("out"), name)


def test_a_job_is_read_whatever_a_newer_service_adds() -> None:
    job = read(Job, JOB)

    assert (job.status, job.over, job.data, job.artifacts[0].name) == (Status.SUCCEEDED, True, {"n": 1}, "a.tif")
    assert job.raw is JOB


def test_events_go_on_where_they_broke_off() -> None:
    reader = EventReader("1", "", Delays(60, lambda: 1.0))
    assert "Last-Event-ID" not in reader.request.headers
    reader.read("snapshot", json.dumps({**JOB, "status": "running"}))
    reader.read("job.progress", json.dumps({"id": "5-0", "type": "job.progress", "at": None, "data": {"done": 1}}))

    assert reader.closed() == 0.25
    assert reader.request.headers["Last-Event-ID"] == "5-0"

    reader.read("job.failed", json.dumps({"id": "6-0", "type": "job.failed", "at": None, "data": {}}))
    assert reader.over


def test_a_stream_that_began_after_the_last_event_ends_with_its_snapshot() -> None:
    reader = EventReader("1", "9-0", Delays(60, lambda: 1.0))
    reader.read("snapshot", json.dumps(JOB))
    assert not reader.over

    assert reader.closed() == 0.0
    assert reader.over


def test_a_stream_that_never_says_anything_is_given_up() -> None:
    reader = EventReader("1", "", Delays(1, lambda: 1.0))

    def follow() -> None:
        for _ in range(10):
            reader.failed(Unreachable("gone"))

    with pytest.raises(Unreachable):
        follow()


def test_media_fields_are_found_behind_references_and_unions() -> None:
    media = {"type": "string", "format": "media"}
    schema = {
        "properties": {
            "scene": media,
            "mask": {"anyOf": [media, {"type": "null"}]},
            "images": {"type": "array", "items": {"$ref": "#/$defs/Image"}},
            "outputs": {"type": "array", "items": {"type": "string"}},
        },
        "$defs": {"Image": media},
    }
    assert media_fields(schema) == {"scene": False, "mask": False, "images": True}


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s("12") == 12.0
    assert retry_after_s("soon") is None
