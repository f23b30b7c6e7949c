"""The catalogue, the queues, and the API's description of itself."""

from __future__ import annotations

import re
import subprocess
import sys

from jsonschema import Draft202012Validator

from tests.integration.service import ECHO, Service

#: Everything the API answers to, written by hand.
ROUTES = {
    ("/v1/jobs", "post"), ("/v1/jobs", "get"), ("/v1/jobs/{job_id}", "put"), ("/v1/jobs/{job_id}", "get"),
    ("/v1/jobs/{job_id}", "delete"), ("/v1/jobs/{job_id}/cancel", "post"), ("/v1/jobs/{job_id}/events", "get"),
    ("/v1/jobs/{job_id}/artifacts/{name}", "get"), ("/v1/jobs/{job_id}/deliveries", "get"), ("/v1/uploads", "post"),
    ("/v1/models", "get"), ("/v1/models/{name}", "get"), ("/v1/queues/{name}", "get"), ("/livez", "get"),
    ("/readyz", "get"), ("/v1/jobs/{job_id}/retry", "post"),
    ("/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver", "post"), ("/v1/queues/{name}/pause", "post"),
    ("/v1/queues/{name}/resume", "post"), ("/v1/queues/{name}/drain", "post"), ("/v1/queues/{name}/purge", "post"),
    ("/v1/queues/{name}/dead-letters", "get"), ("/v1/queues/{name}/dead-letters/requeue", "post"),
}  # fmt: skip


async def test_the_catalogue_serves_each_models_schema(service: Service) -> None:
    models = (await service.http.get("/v1/models")).json()["models"]
    assert [(model["name"], model["problem"]) for model in models] == [
        ("broken", "its weights are not those it names"), ("echo", None)
    ]  # fmt: skip
    echo = (await service.http.get("/v1/models/echo")).json()
    assert echo == models[1]
    assert echo["input_schema"] == ECHO.input_schema
    assert (echo["limits"]["max_bytes"], echo["outputs"][0]["media_type"]) == (1000, "text/plain")


async def test_a_queue_tells_its_depth(service: Service) -> None:
    empty = (await service.http.get("/v1/queues/default")).json()
    await service.submit()
    await service.submit()
    await service.claim()
    busy = (await service.http.get("/v1/queues/default")).json()
    assert (empty["name"], empty["queued"], empty["running"], empty["oldest_age_s"]) == ("default", 0, 0, 0)
    assert (busy["queued"], busy["running"]) == (1, 1)
    assert busy["oldest_age_s"] > 0
    assert {"throughput_per_s", "workers", "slots", "eta_s"} <= busy.keys()


async def test_the_description_names_every_route_and_body(service: Service) -> None:
    document = (await service.http.get("/openapi.json")).json()
    assert {(path, verb) for path, verbs in document["paths"].items() for verb in verbs} == ROUTES
    for path, verb in [("/v1/jobs", "post"), ("/v1/jobs/{job_id}", "put"), ("/v1/uploads", "post")]:
        schema = document["paths"][path][verb]["requestBody"]["content"]["application/json"]["schema"]
        Draft202012Validator.check_schema(schema)
        assert "$ref" not in str(schema)
    assert document["openapi"].startswith("3.1")


async def test_every_failure_is_described_as_a_problem(service: Service) -> None:
    document = (await service.http.get("/openapi.json")).json()
    assert "ValidationError" not in str(document)
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    described = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            failures = {int(s): found for s, found in operation["responses"].items() if int(s) >= 400}
            assert all(found["content"] == problem for found in failures.values()), (path, verb)
            described[path, verb] = set(failures)
    assert described["/v1/jobs", "post"] == {400, 408, 410, 413, 415, 422, 429, 503}
    assert described["/v1/jobs/{job_id}", "get"] == {404, 410, 422, 503}
    assert described["/v1/jobs/{job_id}/retry", "post"] == {404, 409, 410, 422, 429, 503}
    assert described["/v1/uploads", "post"] == {400, 408, 413, 415, 422, 503}
    assert described["/livez", "get"] == set()
    assert {route for route, failures in described.items() if 503 not in failures} == {("/livez", "get")}


async def test_a_submit_is_described_with_both_its_answers_and_a_problem_as_it_is(service: Service) -> None:
    document = (await service.http.get("/openapi.json")).json()
    answers = document["paths"]["/v1/jobs"]["post"]["responses"]
    views = [answers[status]["content"]["application/json"]["schema"] for status in ("200", "202")]
    assert views == [{"$ref": "#/components/schemas/JobView"}] * 2
    refused = (await service.http.post("/v1/jobs", json={})).json()
    assert refused["errors"]
    schema = {"$ref": "#/components/schemas/Problem", "components": document["components"]}
    Draft202012Validator(schema).validate(refused)


async def test_the_way_in_leads_to_the_documentation(service: Service) -> None:
    answer = await service.http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")


async def test_the_documentation_loads_nothing_from_elsewhere(service: Service) -> None:
    page = (await service.http.get("/docs")).text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) >= 2
    for source in sources:
        assert source.startswith("/docs/static/")
        assert (await service.http.get(source)).status_code == 200
    assert "https://" not in page


def test_the_api_loads_no_numerical_library() -> None:
    heavy = ["torch", "numpy", "rasterio", "transformers", "PIL", "pyproj", "penstock.processors", "penstock.workers"]
    modules = "penstock.api.app, penstock.queue, penstock.storage.objects"
    code = f"import sys, {modules}; print(set({heavy}) & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"
