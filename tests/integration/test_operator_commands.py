"""Operators' commands against a real API: exit codes, JSON alone on standard output, and words for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.errors import InvalidInput
from penstock.jobs import State
from penstock.observation.listening import RecentLine
from penstock.storage.redis import workers
from penstock.storage.redis.job_logs import store_lines
from penstock.storage.redis.records import Outcome
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import Service

pytestmark = pytest.mark.breadth

STATE = workers.WorkerState("host", 1.0, ("default",), 1, "cpu", False, ())
FAILED = Outcome(State.FAILED, error=InvalidInput("bad").report())
HOOK = {"url": "http://files.test:80/hook"}


@pytest.fixture
async def penstock(service: Service) -> AsyncIterator[Shell]:
    async with listening(service) as server:
        yield Shell({"PENSTOCK_URL": server.url})


async def test_a_job_is_retried_and_deleted(service: Service, penstock: Shell) -> None:
    job = await service.submit()
    await service.end(await service.claim(), FAILED)

    new = (await penstock("retry", job["id"], "--json")).document()
    assert (new["retry_of"], new["status"]) == (job["id"], "queued")
    assert new["id"] in (await penstock("retry", job["id"])).out  # asked again, the same new job
    assert (await penstock("delete", job["id"], "--json")).document() == {"id": job["id"], "deleted": True}
    gone = await penstock("status", job["id"])
    assert (gone.code, gone.out) == (3, "")
    refused = await penstock("retry", new["id"])
    assert (refused.code, refused.out) == (3, "")
    assert "only failed, expired and canceled" in refused.err


async def test_queues_are_shown_and_switched(service: Service, penstock: Shell) -> None:
    await service.submit()

    [queue] = (await penstock("queues", "list", "--json")).document()
    assert (queue["name"], queue["queued"]) == ("default", 1)
    assert "default" in (await penstock("queues", "list")).out
    for move, mode in (("pause", "paused"), ("drain", "draining"), ("resume", "open")):
        assert (await penstock("queues", move, "default", "--json")).document()["mode"] == mode
    assert "open" in (await penstock("queues", "show", "default")).out
    unknown = await penstock("queues", "pause", "nowhere")
    assert (unknown.code, unknown.out) == (3, "")


async def test_the_log_of_a_worker_is_printed_by_the_names_of_the_worker(service: Service, penstock: Shell) -> None:
    lines = [RecentLine(1.5, "info", "worker.ready"), RecentLine(2.0, "error", "job.failed job=acme/1\x1b[31m")]
    for worker, host in (("w-one", "alpha"), ("w-two", "beta")):
        await service.jobs.run(workers.report(worker, replace(STATE, host=host), lines, alive_s=600))

    for name in ("w-one", "w-o", "alpha"):
        shown = await penstock("logs", "--worker", name)
        assert [line.split(maxsplit=1)[1] for line in shown.out.splitlines()] == [
            "info      worker.ready", "error     job.failed job=acme/1\\x1b[31m",
        ]  # fmt: skip
    [first, _] = (await penstock("logs", "--worker", "alpha", "--json")).document()
    assert (first["level"], first["text"]) == ("info", "worker.ready")
    both = await penstock("logs", "--worker", "w-")
    assert (both.code, both.out) == (2, "")
    assert "w-one, w-two" in both.err
    unknown = await penstock("logs", "--worker", "nobody")
    assert (unknown.code, unknown.out) == (3, "")
    assert "there is no worker 'nobody'" in unknown.err
    assert (await penstock("logs")).code == 2


async def test_a_purge_asks_before_it_cancels(service: Service, penstock: Shell) -> None:
    jobs = [await service.submit() for _ in range(2)]

    unconfirmed = await penstock("queues", "purge", "default")
    assert (unconfirmed.code, unconfirmed.out) == (2, "")
    assert "--yes" in unconfirmed.err
    assert (await penstock("status", jobs[0]["id"], "--json")).document()["status"] == "queued"

    purged = await penstock("queues", "purge", "default", "--yes", "--json")
    assert purged.document() == {"queue": "default", "canceled": 2}
    assert (await penstock("status", jobs[0]["id"], "--json")).document()["status"] == "canceled"


async def test_dead_letters_are_listed_and_run_again(service: Service, penstock: Shell) -> None:
    job = await service.submit()
    await service.die(job["id"])

    assert job["id"] in (await penstock("dead-letters", "list")).out
    [new] = (await penstock("dead-letters", "requeue", "--json")).document()
    assert new["retry_of"] == job["id"]
    assert (await penstock("dead-letters", "list", "--json")).document() == []


async def test_deliveries_are_listed_and_sent_again(service: Service, penstock: Shell) -> None:
    job = await service.submit(webhook=HOOK)
    await service.succeed(await service.claim())

    [delivery] = (await penstock("deliveries", "list", job["id"], "--json")).document()
    assert (delivery["event"], delivery["state"]) == ("job.succeeded", "pending")
    assert HOOK["url"] in (await penstock("deliveries", "list", job["id"])).out
    again = await penstock("deliveries", "redeliver", job["id"], delivery["id"], "--json")
    assert again.document()["id"] == delivery["id"]
    assert (await penstock("deliveries", "redeliver", job["id"], "nothing")).code == 3


async def test_a_trace_tells_of_every_attempt_its_batches_and_its_files(service: Service, penstock: Shell) -> None:
    job = await service.submit(priority="high")
    claims = [await service.claim()]
    await service.lose_lease(job["id"])
    claims.append(await service.claim())
    artifact = service.store_artifact(claims[1], "map.tif", b"a map", "image/tiff")
    metrics = {"inference_ms": 5.0, "batches": 2, "batch_size": 1.5}
    await service.end(claims[1], Outcome(State.SUCCEEDED, artifacts=(artifact,), metrics=metrics))

    told = (await penstock("trace", job["id"], "--json")).document()
    rows = told["timeline"]
    assert [row["event"] for row in rows] == [
        "request", "attempt 1", "requeued", "attempt 2", "succeeded", "artifact visible",
    ]  # fmt: skip
    assert [row["after_s"] for row in rows] == sorted(row["after_s"] for row in rows)
    assert (rows[0]["data"]["priority"], rows[0]["data"]["tenant"]) == ("high", "default")
    assert [row["data"]["fence"] for row in (rows[1], rows[3])] == [str(claim.fence) for claim in claims]
    assert (rows[1]["data"]["worker"], rows[3]["data"]["waited_s"] >= 0) == ("w", True)
    assert rows[4]["data"].items() >= metrics.items()
    assert rows[5]["data"] == {"name": "map.tif", "size_bytes": 5, "sha256": artifact.sha256}
    seen = (await penstock("trace", job["id"])).out
    assert all(word in seen for word in (artifact.sha256, str(claims[1].fence), "batch_size 1.5", "lease_lost"))


async def test_the_lines_of_a_job_are_shown_as_plain_text(service: Service, penstock: Shell) -> None:
    job = await service.submit()
    claim = await service.claim()
    rows = [(1.5, "processor", "warning", "no \x1b[31mtransform"), (2.5, "runner", "info", "warm")]
    await service.jobs.run(store_lines(claim, 1, rows, cut=3))

    told = (await penstock("logs", job["id"], "--json")).document()
    assert told["cut"] == 3
    assert told["lines"][0] == {
        "at": "1970-01-01T00:00:01.500000Z", "attempt": 1, "source": "processor", "level": "warning",
        "text": "no \x1b[31mtransform",
    }  # fmt: skip
    seen = await penstock("logs", job["id"])
    assert "attempt 1  processor  warning   no \\x1b[31mtransform" in seen.out
    assert "attempt 1  runner     info      warm" in seen.out
    assert "3 lines were left out" in seen.err
    assert (await penstock("logs", "01890000-0000-7000-8000-000000000000")).code == 3


async def test_without_lines_the_state_and_the_error_of_a_job_are_told(service: Service, penstock: Shell) -> None:
    job = await service.submit()
    seen = await penstock("logs", job["id"])
    assert (seen.out, seen.err) == ("", "the job is queued, and its code has logged nothing\n")
    await service.end(await service.claim(), Outcome(State.FAILED, error=InvalidInput("no raster: x.tif").report()))
    for words in (["logs", job["id"]], ["logs", "-f", job["id"]]):
        seen = await penstock(*words)
        assert (seen.code, seen.out) == (0, "")
        assert "the job is failed" in seen.err
        assert "invalid_input: no raster: x.tif" in seen.err


async def test_a_trace_says_that_redis_lost_what_was_before(service: Service, penstock: Shell) -> None:
    waiting = await service.submit(priority="low")
    ended = await service.submit(priority="high")
    claim = await service.claim()
    await service.succeed(claim)
    await service.jobs.client.flushall()

    rows = (await penstock("trace", ended["id"], "--json")).document()["timeline"]
    assert [row["event"] for row in rows] == ["request", "attempt 1", "succeeded", "recovered"]
    assert (rows[1]["data"]["fence"], rows[1]["data"]["worker"]) == (str(claim.fence), "w")
    assert "lost" in rows[3]["data"]["what"]
    rows = (await penstock("trace", waiting["id"], "--json")).document()["timeline"]
    assert [row["event"] for row in rows] == ["request", "recovered", "next attempt"]
    assert rows[2]["data"] == {"model_problem": "no worker serves this queue"}
    assert rows[1]["after_s"] > 0
    assert "restored from its manifest" in (await penstock("trace", waiting["id"])).out


async def test_an_attempt_that_is_tried_again_tells_how_long_it_took(service: Service) -> None:
    job = await service.submit()
    error = InvalidInput("for once").report()
    await service.end(await service.claim(), Outcome(State.DELAYED, error=error, metrics={"fetch_ms": 0.1}))

    events = (await service.http.get(job["links"]["events"], headers={"Accept": "application/json"})).json()["events"]
    retrying = events[-1]
    assert (retrying["type"], retrying["data"]["metrics"]) == ("job.retrying", {"fetch_ms": 0.1})
    assert (retrying["data"]["attempt"], retrying["data"]["delay_s"]) == (1, 0)
