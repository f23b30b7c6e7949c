"""The catalogue, the queues, and the OpenAPI description."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import SecretStr

from docs.generator import openapi
from penstock.api.app import create_app
from penstock.config import Settings
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.records import AsyncJobStore
from tests.fuzz.links import LINKS, with_links
from tests.support.service import ECHO, Service
from tests.support.valkey import ValkeyProcess

#: Everything the API answers to, written by hand.
ROUTES = {
    ("/v1/jobs", "post"), ("/v1/jobs", "get"), ("/v1/jobs/{job_id}", "put"), ("/v1/jobs/{job_id}", "get"),
    ("/v1/jobs/{job_id}", "delete"), ("/v1/jobs/{job_id}/cancel", "post"), ("/v1/jobs/{job_id}/events", "get"),
    ("/v1/jobs/{job_id}/artifacts/{name}", "get"), ("/v1/jobs/{job_id}/deliveries", "get"), ("/v1/uploads", "post"),
    ("/v1/jobs/{job_id}/logs", "get"),
    ("/v1/jobs/{job_id}/output", "get"), ("/v1/jobs/{job_id}/links", "get"), ("/v1/events", "get"), ("/v1/key", "get"),
    ("/v1/uploads/{upload_id}/{name}", "get"), ("/v1/uploads/{upload_id}/{name}", "delete"),
    ("/v1/uploads/{upload_id}/{name}/parts", "post"), ("/v1/uploads/{upload_id}/{name}/complete", "post"),
    ("/v1/models", "get"), ("/v1/models/{name}", "get"), ("/v1/queues", "get"), ("/v1/queues/{name}", "get"),
    ("/v1/workers", "get"), ("/v1/workers/{worker_id}/logs", "get"),
    ("/v1/subscriptions", "post"), ("/v1/subscriptions", "get"), ("/v1/subscriptions/{name}", "get"),
    ("/v1/subscriptions/{name}", "delete"), ("/v1/subscriptions/{name}/pause", "post"),
    ("/v1/subscriptions/{name}/resume", "post"), ("/v1/subscriptions/{name}/stac/{path}", "get"),
    ("/v1/usage", "get"), ("/v1/tenants", "get"), ("/v1/drops", "get"),
    ("/livez", "get"), ("/metrics", "get"), ("/readyz", "get"), ("/v1/jobs/{job_id}/retry", "post"),
    ("/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver", "post"), ("/v1/queues/{name}/pause", "post"),
    ("/v1/queues/{name}/resume", "post"), ("/v1/queues/{name}/drain", "post"), ("/v1/queues/{name}/purge", "post"),
    ("/v1/queues/{name}/dead-letters", "get"), ("/v1/queues/{name}/dead-letters/requeue", "post"),
    ("/v1/webhook-endpoints", "get"), ("/v1/webhook-endpoints", "post"), ("/v1/webhook-endpoints/{endpoint_id}", "get"),
    ("/v1/webhook-endpoints/{endpoint_id}", "patch"), ("/v1/webhook-endpoints/{endpoint_id}", "delete"),
    ("/v1/webhook-endpoints/{endpoint_id}/rotate", "post"), ("/v1/webhook-endpoints/{endpoint_id}/test", "post"),
    ("/v1/webhook-endpoints/{endpoint_id}/deliveries", "get"), ("/v1/deliveries/{delivery_id}", "get"),
    ("/v1/deliveries/{delivery_id}/redeliver", "post"), ("/v1/deliveries/dead-letters", "get"),
    ("/v1/deliveries/dead-letters/redeliver", "post"),
    ("/v1/batches", "post"), ("/v1/batches", "get"), ("/v1/batches/{batch_id}", "get"),
    ("/v1/batches/{batch_id}", "delete"), ("/v1/batches/{batch_id}/cancel", "post"),
    ("/v1/batches/{batch_id}/artifacts/{name}", "get"),
    ("/ogc", "get"), ("/ogc/conformance", "get"), ("/ogc/processes", "get"), ("/ogc/processes/{process_id}", "get"),
    ("/ogc/processes/{process_id}/execution", "post"), ("/ogc/jobs", "get"), ("/ogc/jobs/{job_id}", "get"),
    ("/ogc/jobs/{job_id}", "delete"), ("/ogc/jobs/{job_id}/results", "get"),
    ("/ogc/jobs/{job_id}/results/{output}", "get"),
    ("/v1/events/s3", "post"),
}  # fmt: skip


async def test_the_catalogue_serves_each_models_schema(service: Service) -> None:
    models = (await service.http.get("/v1/models")).json()["models"]
    assert [(model["name"], model["problem"]) for model in models] == [
        ("broken", "its weights are not those it names"), ("echo", None)
    ]  # fmt: skip
    echo = (await service.http.get("/v1/models/echo")).json()
    assert echo == models[1]
    assert echo["input_schema"] == ECHO.input_schema
    assert (await service.http.get("/v1/models/parrot")).json() == echo
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


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the description of an API without keys, made once for all tests."""
    settings = Settings(data=tmp_path_factory.mktemp("data"), secret=SecretStr("of the tests"))
    jobs, objects = AsyncJobStore.open("redis://127.0.0.1:1"), open_store(settings.store_url, settings)
    return create_app(settings, jobs=jobs, objects=objects, send_hint=str).openapi()


async def test_the_description_is_served(service: Service, document: dict[str, Any]) -> None:
    served = await service.http.get("/openapi.json")
    assert served.json() == json.loads(json.dumps(document))


def test_the_description_names_every_route_and_body(document: dict[str, Any]) -> None:
    assert {(path, verb) for path, verbs in document["paths"].items() for verb in verbs} == ROUTES
    for path, verb in [("/v1/jobs", "post"), ("/v1/jobs/{job_id}", "put"), ("/v1/uploads", "post")]:
        schema = document["paths"][path][verb]["requestBody"]["content"]["application/json"]["schema"]
        Draft202012Validator.check_schema(schema)
        assert "$ref" not in str(schema)
    assert document["openapi"].startswith("3.1")


def test_every_failure_is_described_as_a_problem(document: dict[str, Any]) -> None:
    assert "ValidationError" not in str(document)
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    described = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            failures = {int(s): found for s, found in operation["responses"].items() if int(s) >= 400}
            assert all(found["content"] == problem for found in failures.values()), (path, verb)
            assert all("Retry-After" in failures[s]["headers"] for s in failures.keys() & {429, 503}), (path, verb)
            described[path, verb] = set(failures)
    anywhere = {405, 421, 500}
    assert described["/v1/jobs", "post"] == anywhere | {400, 403, 408, 410, 413, 415, 422, 429, 503}
    assert described["/v1/jobs/{job_id}", "get"] == anywhere | {404, 410, 422, 503}
    assert described["/v1/jobs/{job_id}/retry", "post"] == anywhere | {403, 404, 409, 410, 422, 429, 503}
    assert described["/v1/uploads", "post"] == anywhere | {400, 403, 408, 413, 415, 422, 503}
    assert described["/livez", "get"] == anywhere
    assert {route for route, failures in described.items() if 503 not in failures} == {
        ("/livez", "get"), ("/metrics", "get"), ("/ogc", "get"), ("/ogc/conformance", "get"),
    }  # fmt: skip


def test_the_description_in_the_repository_is_the_apis() -> None:
    stored = (Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert stored == openapi.text(), "the API has changed: run `make openapi` and look at the diff"


def test_every_link_leads_from_an_operation_to_parameters_of_another(document: dict[str, Any]) -> None:
    document = with_links(deepcopy(document))
    operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
    parameters = {op["operationId"]: {p["name"] for p in op.get("parameters", ())} for op in operations}
    assert len(parameters) == len(operations)
    found = [
        link for op in operations for answer in op["responses"].values() for link in answer.get("links", {}).values()
    ]  # fmt: skip
    assert len(found) > 40
    made = document["paths"]["/v1/webhook-endpoints"]["post"]["responses"]["201"]["links"]
    assert {"read", "change", "rotate", "test", "deliveries", "delete"} == made.keys()
    assert {"read", "cancel", "delete", "jobs"} == document["paths"]["/v1/batches"]["post"]["responses"]["202"][
        "links"
    ].keys()
    for link in found:
        assert set(link["parameters"]) <= parameters[link["operationId"]]
    assert set(LINKS) <= set(parameters)


async def test_a_submit_is_described_with_both_its_answers_and_a_problem_as_it_is(
    service: Service, document: dict[str, Any]
) -> None:
    answers = document["paths"]["/v1/jobs"]["post"]["responses"]
    views = [answers[status]["content"]["application/json"]["schema"] for status in ("200", "202")]
    job = {"$ref": "#/components/schemas/JobView"}
    assert (views[0]["anyOf"], views[1]) == ([job, {"$ref": "#/components/schemas/EstimateView"}], job)
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


def test_the_api_on_a_local_store_loads_no_numerical_library_and_no_s3_client(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    """Nor anything else that it does not need: importing boto3 takes as long as a third of all the rest."""
    heavy = {
        "torch", "numpy", "rasterio", "transformers", "PIL", "pyproj", "penstock.processors", "penstock.workers",
        "boto3", "botocore",
    }  # fmt: skip
    code = (
        "import asyncio, sys\n"
        "import penstock.storage.hints, penstock.storage.objects.opening\n"
        "from penstock.api.app import from_settings\n"
        "app = from_settings()\n"
        "async def served():\n"
        "    async with app.router.lifespan_context(app): return app.openapi()['paths']\n"
        "paths = asyncio.run(served())\n"
        f"print(len(paths) > 20, {heavy} & set(sys.modules))"
    )
    settings = {"PENSTOCK_REDIS_URL": valkey.url, "PENSTOCK_DATA": str(tmp_path), "PENSTOCK_SECRET": "of the test"}
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip().splitlines()[-1] == "True set()"
