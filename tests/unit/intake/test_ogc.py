"""OGC API - Processes, the pure half: descriptions in the standard's dialect, and what became of each output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from penstock.api.facades.ogc import processes
from penstock.api.facades.ogc.routes import wait_preference
from penstock.intake import ogc
from penstock.intake.ogc import RequestedAnswer, RequestedOutput
from penstock.jobs import Artifact, Job, JobKey, Progress, State, Status, Submission
from penstock.models import CatalogueEntry, Output
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.language.request import TextEmbeddingRequest

BASE = "http://h"
KEY = JobKey("default", "01999999-0000-7000-8000-000000000001")
#: Keywords of the standard's `schema.yaml`, which is OpenAPI 3.0.
WORDS = {
    "title", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength",
    "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties", "minProperties", "required", "enum", "type",
    "not", "allOf", "oneOf", "anyOf", "items", "properties", "additionalProperties", "description", "format",
    "default", "nullable", "readOnly", "writeOnly", "example", "deprecated", "contentMediaType", "contentEncoding",
    "contentSchema",
}  # fmt: skip


def an_entry(request: Any, *outputs: Output) -> CatalogueEntry:
    return CatalogueEntry(
        name="m", title="M", revision="1", queue="default", input_schema=request.model_json_schema(), outputs=outputs,
        execution_timeout_s=1, queue_ttl_s=1, max_attempts=1,
    )  # fmt: skip


def a_job(
    *files: tuple[str, str], text: str | None = None, data: Mapping[str, Any] | None = None, **fields: Any
) -> Job:
    wanted = Submission(KEY, "m", "default", {}, "f")
    made = tuple(Artifact(name, kind, 1, "0", f"k/{name}") for name, kind in files)
    job = Job(wanted, State.SUCCEEDED, 1.0, started_s=2.0, completed_s=3.0, artifacts=made, text=text, data=data)
    return replace(job, **fields)


def schemas_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    inside = [schema[name] for name in ("items", "not", "additionalProperties") if isinstance(schema.get(name), dict)]
    inside += [part for name in ("allOf", "oneOf", "anyOf") for part in schema.get(name, ())]
    for part in (*inside, *schema.get("properties", {}).values()):
        yield from schemas_in(part)


def test_the_change_of_a_scene_is_an_output() -> None:
    entry = an_entry(SegmentationRequest, *(Output(**asdict(spec)) for spec in RasterSegmentation.outputs))
    assert "change.tif" in (processes.description(entry, BASE).outputs["change"].description or "")
    geotiff = next(output.media_type for output in entry.outputs if output.name == "change")
    job = a_job(
        ("before-classes.tif", geotiff), ("classes.tif", geotiff), ("change.tif", geotiff), ("change.png", "image/png")
    )
    wanted = [RequestedOutput(output.name, output.media_type) for output in entry.outputs]
    found = [(part.output, part.file.name) for part in ogc.output_parts(job, wanted, BASE) if part.file is not None]
    assert ("classes", "classes.tif") in found
    assert [name for output, name in found if output == "change"] == ["change.tif"]


def test_a_word_of_the_standard_may_stand_for_several_statuses() -> None:
    assert ogc.statuses("failed") == {Status.FAILED, Status.EXPIRED}
    assert ogc.statuses("dismissed") == {Status.CANCELED, Status.CANCELING}
    assert ogc.statuses("accepted") == {Status.QUEUED}


@pytest.mark.parametrize("request_model", [SegmentationRequest, TextEmbeddingRequest])
def test_inputs_are_described_in_the_standards_dialect(request_model: Any) -> None:
    described = processes.description(an_entry(request_model), BASE)
    assert set(described.inputs) == set(request_model.model_fields)
    for found in described.inputs.values():
        for schema in schemas_in(found.schema_):
            assert set(schema) <= WORDS
            assert schema.get("type", "string") in {"array", "boolean", "integer", "number", "object", "string"}
            assert isinstance(schema.get("exclusiveMinimum", False), bool)
            assert schema.get("required", ["x"])


def test_lists_are_inputs_that_occur_several_times() -> None:
    found = processes.description(an_entry(SegmentationRequest), BASE).inputs
    assert {name: (found[name].minOccurs, found[name].maxOccurs) for name in ("scene", "files", "bands")} == {
        "scene": (0, 1), "files": (0, 100), "bands": (0, 1000)
    }  # fmt: skip
    assert [part["type"] for part in found["bands"].schema_["oneOf"]] == ["string", "integer"]
    assert found["files"].schema_["properties"]["radiometry"]["nullable"] is True


def test_a_schema_that_holds_itself_has_an_end() -> None:
    root = {"$defs": {"Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}}}
    found = processes.openapi_schema(root, {"$ref": "#/$defs/Tree"})
    depth = 0
    while found:
        found, depth = found.get("properties", {}).get("left", {}), depth + 1
    assert 3 < depth < 20


def test_the_outputs_parameter_stands_for_the_models_own() -> None:
    names = ("json", "safetensors")
    outputs = tuple(Output(name=name, media_type="application/json", description="") for name in names)
    assert "outputs" not in processes.input_names(an_entry(TextEmbeddingRequest, *outputs))
    other = Output(name="other", media_type="text/plain", description="")
    assert "outputs" in processes.input_names(an_entry(TextEmbeddingRequest, other))


TIFF, PNG = "image/tiff; application=geotiff", "image/png"
FGB, GEOJSON = "application/vnd.flatgeobuf", "application/geo+json"


@pytest.mark.parametrize(
    ("wanted", "job", "files"),
    [
        (("classes", TIFF), a_job(("classes.tif", TIFF), ("classes.tif.aux.xml", "application/xml")), ["classes.tif"]),
        (("polygons", FGB), a_job(("polygons.fgb", FGB), ("polygons.geojson", GEOJSON)), ["polygons.fgb"]),
        (("chance", TIFF), a_job(("chance_float32.tif", TIFF), ("chance.tif", TIFF)), ["chance.tif"]),
        (("map", PNG), a_job(("map-1.png", PNG), ("map-2.png", PNG)), ["map-1.png", "map-2.png"]),
        (("weights", "a/b"), a_job(("embeddings.bin", "a/b"), data={"n": 1}), ["embeddings.bin"]),
        (("classes", TIFF), a_job(("other.png", "image/png")), []),
    ],
)  # fmt: skip
def test_an_output_is_the_files_that_are_called_as_it_is(wanted: tuple[str, str], job: Job, files: list[str]) -> None:
    found = ogc.output_parts(job, [RequestedOutput(*wanted)], BASE)
    assert [piece.file.name for piece in found if piece.file] == files
    assert [piece.href for piece in found] == [f"{BASE}/v1/jobs/{KEY.id}/artifacts/{name}" for name in files]


def test_an_output_without_a_file_is_the_jobs_own() -> None:
    job = a_job(("embeddings.bin", "a/b"), text="words", data={"n": 1})
    numbers, words = ogc.output_parts(
        job, [RequestedOutput("json", "application/json"), RequestedOutput("text", "text/plain")], BASE
    )
    assert (numbers.data, words.data) == (b'{"n":1}', b"words")
    assert words.href == f"{BASE}/ogc/jobs/{KEY.id}/results/text"


def test_several_pieces_of_an_output_are_a_list() -> None:
    assert ogc.document([("a", {"value": 1}), ("b", {"href": "x"}), ("a", {"value": 2})]) == {
        "a": [{"value": 1}, {"value": 2}], "b": {"href": "x"}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "canceling", "shown"),
    [
        (State.RESERVED, False, "accepted"),
        (State.QUEUED, False, "accepted"),
        (State.DELAYED, False, "accepted"),
        (State.RUNNING, False, "running"),
        (State.RUNNING, True, "dismissed"),
        (State.SUCCEEDED, False, "successful"),
        (State.FAILED, False, "failed"),
        (State.CANCELED, False, "dismissed"),
        (State.EXPIRED, False, "failed"),
    ],
)
def test_each_state_has_one_of_the_standards(state: State, canceling: bool, shown: str) -> None:
    assert ogc.status_info(a_job(state=state, cancel_requested=canceling), BASE)["status"] == shown


def test_progress_is_a_percentage_that_is_100_only_at_the_end() -> None:
    done = a_job(progress=Progress(3, 4))
    running = replace(done, state=State.RUNNING)
    shown = [ogc.status_info(job, BASE).get("progress") for job in (
        done, running, replace(running, progress=Progress(4, 4)), replace(running, progress=Progress(4, None)),
    )]  # fmt: skip
    assert shown == [100, 75, 99, None]


def test_a_callback_is_the_results_or_how_the_job_stands() -> None:
    asked = RequestedAnswer("raw", (RequestedOutput("classes", TIFF), RequestedOutput("text", "text/plain")))
    wanted = replace(a_job().submission, facade=json.loads(json.dumps(asked.to_facade())))
    job = a_job(("classes.tif", TIFF), text="words" * 100, submission=wanted)
    told = json.loads(ogc.callback(job, "job.succeeded", BASE, 20_000) or "")
    assert told["classes"]["href"].endswith("/artifacts/classes.tif")
    assert told["text"]["value"] == "words" * 100
    small = json.loads(ogc.callback(job, "job.succeeded", BASE, 400) or "")
    assert small["text"]["href"].endswith("/results/text")
    begun = json.loads(ogc.callback(job, "job.started", BASE, 20_000) or "")
    assert (begun["status"], "finished" in begun) == ("running", False)
    assert ogc.callback(a_job(), "job.succeeded", BASE, 20_000) is None


@pytest.mark.parametrize(
    ("prefer", "wait_s", "applied"),
    [
        (None, 55, None),
        ("respond-sync", 55, None),
        ("respond-async", 0, "respond-async"),
        ("return=minimal, Respond-Async", 0, "respond-async"),
        ("wait=5", 5, "wait=5"),
        ("respond-async; wait=500", 55, "respond-async, wait=55"),
        ("respond-asynchronously", 55, None),
    ],
)
def test_preferences_say_how_long_to_wait(prefer: str | None, wait_s: float, applied: str | None) -> None:
    assert wait_preference(prefer) == (wait_s, applied)
