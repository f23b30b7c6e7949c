"""OGC API - Processes under `/ogc`: the standard's requirements for each response, on real stores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.config import Settings
from penstock.errors import InvalidInput
from penstock.intake.guard import GuardedClient
from penstock.jobs import State
from penstock.storage.redis.records import JobStore, Outcome
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.ogc_models import (
    EXCEPTIONS,
    HELLO,
    RELATIONS,
    SCENE,
    STATUS_INFO,
    execute,
    mapped,
    refused,
    serve_maps,
    started,
)
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving


@pytest.fixture
async def ogc(service: Service) -> Service:
    """Return a service with the models `echo` and `maps`."""
    await serve_maps(service)
    return service


async def test_the_landing_page_leads_to_what_there_is(ogc: Service) -> None:
    for path in ("/ogc", "/ogc/", "/ogc?f=json"):
        links = {link["rel"]: link["href"] for link in (await ogc.http.get(path)).json()["links"]}
        assert {"self", "service-desc", "service-doc", f"{RELATIONS}conformance", f"{RELATIONS}processes"} <= set(links)
    for href in links.values():
        assert (await ogc.http.get(href)).status_code == 200
    classes = (await ogc.http.get(links[f"{RELATIONS}conformance"])).json()["conformsTo"]
    assert {name.rpartition("/")[2] for name in classes} == {
        "core", "json", "ogc-process-description", "dismiss", "callback"
    }  # fmt: skip


async def test_only_json_is_spoken(ogc: Service) -> None:
    refused(await ogc.http.get("/ogc?f=html"), 400, "InvalidParameterValue")


async def test_usable_models_are_processes_page_by_page(ogc: Service) -> None:
    first = (await ogc.http.get("/ogc/processes?limit=1")).json()
    assert [process["id"] for process in first["processes"]] == ["echo"]
    assert first["processes"][0]["version"] == "1"
    assert first["processes"][0]["jobControlOptions"] == ["sync-execute", "async-execute", "dismiss"]
    [following] = [link["href"] for link in first["links"] if link["rel"] == "next"]
    second = (await ogc.http.get(following)).json()
    assert [process["id"] for process in second["processes"]] == ["maps"]
    assert [link["rel"] for link in second["links"]] == ["self"]
    refused(await ogc.http.get("/ogc/processes?limit=0"), 400, "InvalidParameterValue")


async def test_a_process_says_what_it_takes_and_makes(ogc: Service) -> None:
    found = (await ogc.http.get("/ogc/processes/maps")).json()
    assert set(found["inputs"]) == {"scene", "files", "gain", "datetime"}
    scene = {"type": "string", "format": "uri", "title": "Scene"}
    assert found["inputs"]["scene"] == {"title": "Scene", "minOccurs": 0, "maxOccurs": 1, "schema": scene}
    assert (found["inputs"]["files"]["minOccurs"], found["inputs"]["files"]["maxOccurs"]) == (0, 5)
    assert found["inputs"]["files"]["schema"]["properties"]["media"] == {"type": "string", "format": "uri"}
    assert found["inputs"]["gain"]["schema"] == {"type": "number", "minimum": 0, "exclusiveMinimum": True}
    assert found["outputs"]["classes"]["schema"]["contentMediaType"] == "image/tiff; application=geotiff"
    assert found["outputs"]["stats"]["schema"]["type"] == "object"
    [execution] = [link["href"] for link in found["links"] if link["rel"] == f"{RELATIONS}execute"]
    assert execution.endswith("/ogc/processes/maps/execution")
    assert (await ogc.http.get("/ogc/processes/parrot")).json()["inputs"]["text"]["minOccurs"] == 1


async def test_what_is_unknown_has_the_standards_exception(ogc: Service) -> None:
    missing = "01999999-0000-7000-8000-00000000000f"
    refused(await ogc.http.get("/ogc/processes/nothing"), 404, f"{EXCEPTIONS}no-such-process")
    refused(await execute(ogc, HELLO, "nothing"), 404, f"{EXCEPTIONS}no-such-process")
    for path in (missing, "nonsense", f"{missing}/results"):
        refused(await ogc.http.get(f"/ogc/jobs/{path}"), 404, f"{EXCEPTIONS}no-such-job")
    refused(await ogc.http.delete(f"/ogc/jobs/{missing}"), 404, f"{EXCEPTIONS}no-such-job")


async def test_asynchronously_the_job_is_told_at_once_and_followed(ogc: Service) -> None:
    answer = await execute(ogc, HELLO)
    assert (answer.status_code, answer.headers["preference-applied"]) == (201, "respond-async")
    Draft202012Validator(STATUS_INFO).validate(answer.json())
    assert (answer.json()["status"], answer.json()["processID"], answer.json()["progress"]) == ("accepted", "echo", 0)
    here = answer.headers["location"]
    assert here.endswith(f"/ogc/jobs/{answer.json()['jobID']}")
    refused(await ogc.http.get(f"{here}/results"), 404, f"{EXCEPTIONS}result-not-ready")
    claim = await ogc.claim()
    running = (await ogc.http.get(here)).json()
    assert (running["status"], "started" in running, "finished" in running) == ("running", True, False)
    await ogc.succeed(claim)
    done = (await ogc.http.get(here)).json()
    Draft202012Validator(STATUS_INFO).validate(done)
    assert (done["status"], done["progress"], done["updated"]) == ("successful", 100, done["finished"])
    [results] = [link["href"] for link in done["links"] if link["rel"] == f"{RELATIONS}results"]
    found = await ogc.http.get(results)
    assert (found.status_code, found.headers["content-type"], found.text) == (200, "text/plain; charset=utf-8", "hello")


async def test_without_a_preference_the_results_are_waited_for(ogc: Service) -> None:
    waiting = asyncio.create_task(execute(ogc, HELLO, headers={"Prefer": "respond-sync"}))
    await asyncio.to_thread(ogc.hints.get)
    assert not waiting.done()
    await ogc.succeed(await ogc.claim())
    answer = await waiting
    assert (answer.status_code, answer.text) == (200, "hello")
    assert 'rel="monitor"' in answer.headers["link"]
    assert "preference-applied" not in answer.headers


async def test_who_waits_long_enough_gets_the_job(ogc: Service) -> None:
    answer = await execute(ogc, HELLO, headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (201, "wait=0")
    assert answer.headers["location"].endswith(answer.json()["jobID"])


async def test_a_failure_is_told_in_place_of_the_results(ogc: Service) -> None:
    job, claim = await started(ogc, HELLO, "echo")
    await ogc.end(claim, Outcome(State.FAILED, error=InvalidInput("the scene has no bands").report()))
    info = (await ogc.http.get(f"/ogc/jobs/{job}")).json()
    assert (info["status"], info["message"]) == ("failed", "the scene has no bands")
    problem = refused(await ogc.http.get(f"/ogc/jobs/{job}/results"), 400, "InvalidParameterValue")
    assert problem["detail"] == "the scene has no bands"


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        ({}, "/inputs/text"),
        ({"text": 7}, "/inputs/text"),
        ({"text": "hi", "colour": "red"}, "/inputs/colour"),
        ({"text": {"href": "http://files.test:80/a.txt"}}, "/inputs/text"),
        ({"text": "hi", "count": {"value": 0}}, "/inputs/count"),
        ({"text": "hi", "scene": {"href": "http://elsewhere.example/a.tif"}}, "/inputs/scene"),
        ({"text": "hi", "scene": {"value": "AAAA", "encoding": "base64", "mediaType": "image/tiff"}}, "/inputs/scene"),
        ({"text": "hi", "scene": {"href": 7}}, "/inputs/scene/href"),
    ],
)
async def test_what_is_wrong_with_an_input_is_told_by_its_place(
    ogc: Service, inputs: dict[str, Any], place: str
) -> None:
    answer = await execute(ogc, {"inputs": inputs})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, place), answer.text


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"outputs": {"map": {}}}, "/outputs/map"),
        ({"outputs": {"text": {"transmissionMode": "pigeon"}}}, "/outputs/text/transmissionMode"),
        ({"outputs": {"text": {"format": {"mediaType": "image/png"}}}}, "/outputs/text/format/mediaType"),
        ({"response": "html"}, "/response"),
        ({"subscriber": {"successUri": "http://169.254.169.254/"}}, "/subscriber/successUri"),
        ({"subscriber": {"failedUri": "ftp://files.test/"}}, "/subscriber/failedUri"),
    ],
)
async def test_what_is_wrong_with_a_request_is_told_by_its_place(
    ogc: Service, body: dict[str, Any], place: str
) -> None:
    problem = refused(await execute(ogc, HELLO | body), 400, "InvalidParameterValue")
    assert problem["errors"][0]["pointer"] == place


async def test_inputs_come_by_value_qualified_or_by_reference(ogc: Service) -> None:
    body = {
        "inputs": {
            "files": [{"value": {"media": "http://files.test:80/a.tif"}}, {"media": "http://files.test:80/b.tif"}],
            "gain": {"value": 2.5, "mediaType": "application/json"},
        },
        "outputs": {"stats": {}},
    }
    _, claim = await started(ogc, body)
    files = [{"media": "http://files.test:80/a.tif"}, {"media": "http://files.test:80/b.tif"}]
    assert claim.submission.input == {"files": files, "gain": 2.5, "outputs": ["stats"]}
    one = {"inputs": {"files": {"value": {"media": "http://files.test:80/a.tif"}}}}
    _, claim = await started(ogc, one)
    assert claim.submission.input == {"files": files[:1], "outputs": ["classes", "stats", "labels"]}
    _, claim = await started(ogc, {"inputs": SCENE})
    assert claim.submission.input["scene"] == "http://files.test:80/scene.tif"


@pytest.mark.parametrize("given", ["2020", 2020, "2020-01-01"])
async def test_a_time_without_its_zone_is_refused_here_as_by_the_api(ogc: Service, given: Any) -> None:
    scene = "http://files.test:80/scene.tif"
    body = {"model": "maps", "input": {"scene": scene, "datetime": given}}
    told = assert_problem(await ogc.http.post("/v1/jobs", json=body), 422, "invalid_request")["errors"]
    assert [issue["pointer"] for issue in told] == ["/input/datetime"]
    for value in (given, {"value": given}):
        answer = await execute(ogc, {"inputs": SCENE | {"datetime": value}}, "maps")
        assert answer.json()["errors"] == [{**told[0], "pointer": "/inputs/datetime"}], answer.text
    _, claim = await started(ogc, {"inputs": SCENE | {"datetime": "2020-01-01T00:00:00Z"}})
    assert claim.submission.input["datetime"] == "2020-01-01T00:00:00Z"


async def test_jobs_are_listed_page_by_page(ogc: Service) -> None:
    made = [(await execute(ogc, HELLO)).json()["jobID"] for _ in range(3)]
    seen: list[str] = []
    href: str | None = "/ogc/jobs?limit=2"
    while href:
        page = (await ogc.http.get(href)).json()
        assert len(page["jobs"]) <= 2
        seen += [job["jobID"] for job in page["jobs"]]
        href = next((link["href"] for link in page["links"] if link["rel"] == "next"), None)
    assert seen == made[::-1]
    refused(await ogc.http.get("/ogc/jobs?limit=1000"), 400, "InvalidParameterValue")
    refused(await ogc.http.get("/ogc/jobs?cursor=x"), 400, "InvalidParameterValue")


async def test_jobs_are_listed_by_how_they_stand_and_by_their_process(ogc: Service) -> None:
    waits, runs, made, failed, ends, dismissed, again = [(await execute(ogc, HELLO)).json()["jobID"] for _ in range(7)]
    claims = {claim.key.id: claim for claim in await ogc.claims()}
    await ogc.succeed(claims[made])
    for job in (failed, again):
        await ogc.end(claims[job], Outcome(State.FAILED, error=InvalidInput("no").report()))
    for job in (ends, dismissed):
        await ogc.http.delete(f"/ogc/jobs/{job}")

    async def listed(query: str) -> set[str]:
        return {job["jobID"] for job in (await ogc.http.get(f"/ogc/jobs?{query}")).json()["jobs"]}

    assert await listed("status=failed") == {failed, again}
    assert await listed("status=successful") == {made}
    assert await listed("status=running") == {waits, runs}
    assert await listed("status=dismissed") == {ends, dismissed}
    assert await listed("status=accepted") == set()
    assert await listed("status=failed&processID=echo&f=json") == {failed, again}
    assert await listed("processID=nothing") == set()
    [link] = [
        link["href"] for link in (await ogc.http.get("/ogc/jobs?status=failed&limit=1")).json()["links"]
        if link["rel"] == "next"
    ]  # fmt: skip
    assert await listed(link.partition("?")[2]) == {failed}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("datetime=2026-01-01/..", "query parameter datetime is not known: limit, cursor, status, processID, f"),
        ("status=queued", "'accepted', 'running', 'successful', 'failed' or 'dismissed'"),
    ],
)
async def test_a_filter_that_there_is_not_is_refused(ogc: Service, query: str, said: str) -> None:
    problem = refused(await ogc.http.get(f"/ogc/jobs?{query}"), 400, "InvalidParameterValue")
    assert said in problem["errors"][0]["detail"]


async def test_an_unknown_input_is_answered_with_those_that_there_are(ogc: Service) -> None:
    problem = refused(await execute(ogc, {"inputs": {"text": "hi", "colour": "red"}}), 400, "InvalidParameterValue")
    assert problem["errors"][0]["detail"].startswith("is not an input; known inputs: text, ")


async def test_a_dismissed_job_is_canceled_and_can_be_seen(ogc: Service) -> None:
    waiting = (await execute(ogc, HELLO)).json()["jobID"]
    answer = await ogc.http.delete(f"/ogc/jobs/{waiting}")
    Draft202012Validator(STATUS_INFO).validate(answer.json())
    assert (answer.status_code, answer.json()["status"]) == (200, "dismissed")
    assert (await ogc.http.get(f"/ogc/jobs/{waiting}")).json()["status"] == "dismissed"
    assert (await ogc.http.get(f"/v1/jobs/{waiting}")).json()["status"] == "canceled"
    refused(await ogc.http.get(f"/ogc/jobs/{waiting}/results"), 404, "urn:penstock:problem:canceled")
    assert (await ogc.http.delete(f"/ogc/jobs/{waiting}")).json()["status"] == "dismissed"
    refused(await ogc.http.get(f"/ogc/jobs/{waiting}"), 404, f"{EXCEPTIONS}no-such-job")
    job, _ = await started(ogc, HELLO, "echo")
    assert (await ogc.http.delete(f"/ogc/jobs/{job}")).json()["status"] == "dismissed"
    assert (await ogc.http.get(f"/v1/jobs/{job}")).json()["status"] == "canceling"
    assert (await ogc.http.get(f"/ogc/jobs/{job}")).json()["status"] == "dismissed"


async def test_what_a_retry_answers_with_is_as_the_first_was_asked(ogc: Service) -> None:
    told = {"failedUri": "http://files.test:80/bad", "inProgressUri": "http://files.test:80/busy"}
    job, claim = await started(ogc, HELLO | {"response": "document", "subscriber": told}, "echo")
    await ogc.end(claim, Outcome(State.FAILED, error=InvalidInput("bad").report()))
    again = (await ogc.http.post(f"/v1/jobs/{job}/retry")).json()["id"]
    await ogc.succeed(await ogc.claim())
    found = (await ogc.http.get(f"/ogc/jobs/{again}/results")).json()
    assert found == {"text": {"value": "hello", "mediaType": "text/plain"}}
    urls = [
        row["url"]
        for each in (job, again)
        for row in (await ogc.http.get(f"/v1/jobs/{each}/deliveries")).json()["deliveries"]
    ]
    assert urls == [told["inProgressUri"], told["failedUri"], told["inProgressUri"]]


async def test_dismissing_a_finished_job_deletes_what_it_made(ogc: Service) -> None:
    job = await mapped(ogc, {"inputs": SCENE})
    [file] = [f for f in (await ogc.http.get(f"/v1/jobs/{job}")).json()["artifacts"] if f["name"] == "stats.json"]
    assert (await ogc.http.delete(f"/ogc/jobs/{job}")).json()["status"] == "dismissed"
    for path in (f"/ogc/jobs/{job}", f"/ogc/jobs/{job}/results"):
        refused(await ogc.http.get(path), 404, f"{EXCEPTIONS}no-such-job")
    assert (await ogc.http.get(file["url"])).status_code in (404, 410)


async def test_subscribers_are_told_what_the_standard_says(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with receiving() as good, receiving() as bad, receiving() as busy:
        pairs = (good.pair, bad.pair, busy.pair, "files.test:80")
        async with serving(valkey.url, tmp_path, allowed_hosts=pairs) as service:
            await serve_maps(service)
            told = {"successUri": good.url, "failedUri": bad.url, "inProgressUri": busy.url}
            done = await mapped(service, {"inputs": SCENE, "subscriber": told})
            dismissed = (await execute(service, HELLO | {"subscriber": told})).json()["jobID"]
            await service.http.delete(f"/ogc/jobs/{dismissed}")
            await asyncio.to_thread(deliver, service, pairs)
            headers, results = sent(good)
            assert set(results) == {"classes", "stats", "labels"}
            assert (await service.http.get(results["classes"]["href"])).content == b"II*\0map"
            assert results["labels"] == {"value": "water, land", "mediaType": "text/plain"}
            assert headers["webhook-signature"].startswith("v1,")
            started_info, failed_info = sent(busy)[1], sent(bad)[1]
            for info in (started_info, failed_info):
                Draft202012Validator(STATUS_INFO).validate(info)
            assert (started_info["jobID"], started_info["status"]) == (done, "running")
            assert (failed_info["jobID"], failed_info["status"]) == (dismissed, "dismissed")
            assert good.got.empty()
            assert bad.got.empty()


def deliver(service: Service, pairs: tuple[str, ...]) -> None:
    """Send what is due, once."""
    store = JobStore.open(str(service.settings.redis_url))
    guard = GuardedClient(Settings(allowed_hosts=pairs))
    deliverer = Deliverer(store, service.objects, guard, base_url=service.settings.base_url)
    deliverer.deliver_due()
    deliverer.close()
    store.close()


def sent(receiver: Any) -> tuple[dict[str, str], dict[str, Any]]:
    headers, body = receiver.got.get(timeout=10)
    return headers, json.loads(body)
