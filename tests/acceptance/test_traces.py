"""Spans of a whole service: they join the caller's trace, and no collector delays or fails a job."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import httpx2
import numpy as np
import psutil
import pytest
import rasterio
from affine import Affine

from penstock.client import Client
from tests.support.catalogues import TOY, toy
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tests.support.polling import wait_for
from tests.support.stack import Stack, running
from tests.support.webhook_receivers import Receiver, receiving

pytestmark = [pytest.mark.slow, pytest.mark.breadth]

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
#: Seconds for a job of the toy, and for a process to end, on a busy machine.
JOB_S, END_S = 30.0, 12.0


@pytest.fixture(scope="module")
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as sink:
        yield sink


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, sink: OtlpSink, receiver: Receiver) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("traces")
    with rasterio.open(
        folder / "scene.tif", "w", driver="GTiff", width=64, height=64, count=2, dtype="uint16", crs="EPSG:32632",
        transform=Affine(10, 0, 500_000, 0, -10, 5_000_000),
    ) as scene:  # fmt: skip
        scene.write(np.arange(2 * 64 * 64, dtype=np.uint16).reshape(2, 64, 64) + 1)
    catalogue = toy(folder)
    slow = TOY.format(max_bytes=10_000_000).replace("toy", "slow").replace('["plaything"]', "[]")
    with catalogue.open("a") as file:
        file.write(slow.replace("halo_px = 0", "halo_px = 0\nstep_s = 2"))
    config = f"models = [{json.dumps(str(catalogue))}]\nallowed_hosts = [{json.dumps(receiver.pair)}]\nlease_s = 4\n"
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "20",
    }  # fmt: skip
    with running(folder / "up", config=config, **variables) as stack:
        wait_for(lambda: {"toy", "slow"} <= _usable(stack), "the models are not checked")
        yield stack


def _usable(stack: Stack) -> set[str]:
    with stack.client() as client:
        return {model.name for model in client.models() if model.problem is None}


def submitted(stack: Stack, receiver: Receiver, model: str = "toy", **headers: str) -> str:
    """Submit the scene and return the job's id; a webhook tells of its end."""
    with stack.client() as client:
        scene = client.upload(stack.data.parent / "scene.tif")
    body = {"model": model, "input": {"scene": scene}, "webhook": {"url": f"http://{receiver.pair}/hook"}}
    response = httpx2.post(f"{stack.url}/v1/jobs", json=body, headers=headers, timeout=JOB_S)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def ended(client: Client, job_id: str) -> None:
    job = client.wait(job_id, timeout_s=JOB_S)
    assert job.succeeded, job.error


def test_the_spans_of_a_job_join_the_trace_of_its_caller(stack: Stack, sink: OtlpSink, receiver: Receiver) -> None:
    job_id = submitted(stack, receiver, traceparent=f"00-{TRACE}-{CALLER}-01")
    headers, _ = receiver.got.get(timeout=JOB_S)
    wait_for(lambda: {"job toy", "POST /v1/jobs"} <= {s.name for s in sink.trace(TRACE)}, "no spans of the job arrived")
    wait_for(lambda: "webhook job.succeeded" in {s.name for s in sink.trace(TRACE)}, "no span of the webhook arrived")

    spans = {span.name: span for span in sink.trace(TRACE)}
    assert spans["POST /v1/jobs"].parent_id == spans["job toy"].parent_id == CALLER
    root = spans["job toy"].span_id
    assert {spans[name].parent_id for name in ("waiting", "attempt 1", "webhook job.succeeded")} == {root}
    phases = ("fetching", "preprocessing", "inferring", "postprocessing", "uploading")
    assert {spans[name].parent_id for name in phases} == {spans["attempt 1"].span_id}
    begun = [spans[name].begun_ns for name in phases]
    assert begun == sorted(begun)
    for name in phases:
        assert (
            spans["attempt 1"].begun_ns <= spans[name].begun_ns <= spans[name].ended_ns <= spans["attempt 1"].ended_ns
        )
    with stack.client() as client:
        [attempt] = client.job(job_id).attempts
    assert spans["attempt 1"].attributes["penstock.fence"] == attempt.fence
    assert {span.service for span in spans.values()} == {"penstock-api", "penstock-keeper"}
    assert not any(span.failed for span in spans.values())
    assert len(sink.trace(TRACE)) <= 14  # none for each of the four tiles
    assert headers["traceparent"] == f"00-{TRACE}-{spans['webhook job.succeeded'].span_id}-01"


def test_a_job_without_a_caller_has_a_trace_of_its_own(stack: Stack, sink: OtlpSink, receiver: Receiver) -> None:
    job_id = submitted(stack, receiver)
    headers, _ = receiver.got.get(timeout=JOB_S)
    trace_id = headers["traceparent"].split("-")[1]
    wanted = {"job toy", "POST /v1/jobs", "attempt 1", "webhook job.succeeded"}
    wait_for(lambda: wanted <= {s.name for s in sink.trace(trace_id)}, "the spans do not join")
    spans = {span.name: span for span in sink.trace(trace_id)}
    assert spans["job toy"].parent_id == ""
    assert spans["POST /v1/jobs"].parent_id == spans["job toy"].span_id
    assert spans["job toy"].attributes["penstock.job"] == job_id


def test_a_caller_that_keeps_no_trace_gets_none(stack: Stack, sink: OtlpSink, receiver: Receiver) -> None:
    other = "a" * 32
    submitted(stack, receiver, traceparent=f"00-{other}-{CALLER}-00")
    headers, _ = receiver.got.get(timeout=JOB_S)
    assert headers["traceparent"].endswith("-00")
    submitted(stack, receiver, traceparent=f"00-{'b' * 32}-{CALLER}-01")
    wait_for(lambda: "webhook job.succeeded" in {s.name for s in sink.trace("b" * 32)}, "no spans arrive any more")
    assert sink.trace(other) == []


def test_an_attempt_whose_worker_was_killed_has_its_span_and_phases(
    stack: Stack, sink: OtlpSink, receiver: Receiver
) -> None:
    trace_id = "c" * 32
    job_id = submitted(stack, receiver, "slow", traceparent=f"00-{trace_id}-{CALLER}-01")
    with stack.client() as client:
        wait_for(lambda: client.job(job_id).phase == "inferring", "the job does not begin")
        stack.kill("worker")
        ended(client, job_id)
        attempts = client.job(job_id).attempts
    assert [each.outcome for each in attempts] == ["lost", "succeeded"]
    assert [each.phases[-1].phase for each in attempts] == ["inferring", "uploading"]
    wait_for(lambda: "job slow" in {s.name for s in sink.trace(trace_id)}, "no spans of the job arrived")
    spans = {span.name: span for span in sink.trace(trace_id)}
    for each in attempts:
        span = spans[f"attempt {each.number}"]
        assert (span.attributes["penstock.fence"], span.failed) == (each.fence, each.outcome == "lost")
    assert [span.name for span in sink.trace(trace_id)].count("attempt 1") == 1


@pytest.mark.alone
def test_a_collector_that_refuses_hangs_or_is_away_delays_nothing_and_processes_end(
    stack: Stack, sink: OtlpSink, receiver: Receiver
) -> None:
    with stack.client() as client:
        for trouble in ("503", "429", "hangs", "away"):
            asked = sink.asked
            if trouble == "hangs":
                sink.answers.clear()
            elif trouble == "away":
                sink.server.socket.close()
            else:
                sink.status = int(trouble)
            ended(client, submitted(stack, receiver))
            if trouble != "away":
                wait_for(lambda before=asked: sink.asked > before, "the collector was not even asked")
            begun = time.monotonic()
            assert httpx2.get(f"{stack.url}/readyz", timeout=JOB_S).status_code == 200
            assert time.monotonic() - begun < 2
            if trouble == "hangs":
                for name in ("api", "keeper"):
                    process = psutil.Process(stack.pid(name))
                    begun = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    psutil.wait_procs([process], timeout=END_S)
                    assert not process.is_running(), f"the {name} process waits for the collector"
                wait_for(lambda: _answers(stack), "the API does not come back")


def _answers(stack: Stack) -> bool:
    try:
        return httpx2.get(f"{stack.url}/readyz", timeout=2).status_code == 200
    except httpx2.TransportError:
        return False
