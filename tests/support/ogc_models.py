"""OGC API - Processes for tests: a model with selectable outputs and files, and execute requests."""

from __future__ import annotations

from typing import Any

import httpx2
from pydantic import TypeAdapter

from penstock.jobs import Claim
from penstock.models import Output
from penstock.storage.redis import catalogues
from penstock.times import Time
from tests.support.claims import claiming
from tests.support.service import ECHO, Service

EXCEPTIONS = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0/"
RELATIONS = "http://www.opengis.net/def/rel/ogc/1.0/"
ASYNC = {"Prefer": "respond-async"}
HELLO = {"inputs": {"text": "hello"}}

#: A model that chooses its outputs by name and makes files.
MAPS = ECHO.model_copy(
    update={
        "name": "maps",
        "aliases": (),
        "input_schema": {
            "type": "object",
            "properties": {
                "scene": {"type": "string", "format": "media", "title": "Scene"},
                "files": {"type": "array", "items": {"$ref": "#/$defs/File"}, "minItems": 1, "maxItems": 5},
                "gain": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}], "default": None},
                "datetime": TypeAdapter(Time).json_schema(),
                "outputs": {"type": "array", "items": {"enum": ["classes", "stats", "labels"], "type": "string"}},
            },
            "$defs": {
                "File": {
                    "type": "object",
                    "properties": {"media": {"type": "string", "format": "media"}},
                    "required": ["media"],
                }
            },
            "anyOf": [{"required": ["scene"]}, {"required": ["files"]}],
            "additionalProperties": False,
        },
        "outputs": (
            Output(name="classes", media_type="image/tiff; application=geotiff", description="The map."),
            Output(name="stats", media_type="application/json", description="Numbers."),
            Output(name="labels", media_type="text/plain", description="Names.", default=False),
        ),
        "limits": ECHO.limits.model_copy(update={"max_bytes": 1_000_000_000}),
    }
)
#: A model that declares no outputs: its answer is JSON.
LABELS = ECHO.model_copy(update={"name": "labels", "aliases": (), "outputs": ()})
SCENE = {"scene": {"href": "http://files.test:80/scene.tif", "type": "image/tiff"}}
STATUS_INFO = {
    "type": "object",
    "required": ["jobID", "processID", "status", "type", "created", "updated", "links"],
    "properties": {
        "status": {"enum": ["accepted", "running", "successful", "failed", "dismissed"]},
        "type": {"const": "process"},
        "progress": {"type": "integer", "minimum": 0, "maximum": 100},
        "message": {"type": "string"},
    }
    | {name: {"type": "string", "format": "date-time"} for name in ("created", "started", "finished", "updated")},
    "additionalProperties": {"not": {"type": "null"}},
}


async def serve_maps(service: Service) -> None:
    """Let a service have the models `echo` and `maps`."""
    await service.jobs.run(catalogues.publish([ECHO, MAPS], worker="w", queues=["default"], alive_s=600))


async def execute(
    service: Service, body: dict[str, Any], process: str = "echo", headers: dict[str, str] | None = None
) -> httpx2.Response:
    return await service.http.post(f"/ogc/processes/{process}/execution", json=body, headers=headers or ASYNC)


async def started(service: Service, body: dict[str, Any], process: str = "maps") -> tuple[str, Claim]:
    """Execute and lease the job."""
    answer = await execute(service, body, process)
    assert answer.status_code == 201, answer.text
    claim = await service.jobs.run(claiming("default", models=[process]))
    assert claim is not None
    return answer.json()["jobID"], claim


async def mapped(service: Service, body: dict[str, Any], image: bytes = b"II*\0map", text: str = "water, land") -> str:
    """Execute `maps` and let it make two files and a text; return the job."""
    job, claim = await started(service, body)
    files = (
        service.store_artifact(claim, "classes.tif", image, "image/tiff; application=geotiff"),
        service.store_artifact(claim, "classes.tif.aux.xml", b"<names/>", "application/xml"),
        service.store_artifact(claim, "stats.json", b'{"water": 7}', "application/json"),
    )
    await service.succeed(claim, text=text, artifacts=files)
    return job


def refused(answer: httpx2.Response, status: int, kind: str) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == kind
    assert problem["status"] == status
    return problem
