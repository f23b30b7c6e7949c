"""Schemas of vLLM's `/pooling` for models with an IO processor, and their translation to jobs.

The fields are those of vLLM's `IOProcessorRequest` and of TerraTorch's segmentation plugin. Other fields (`softmax`,
`priority`, `image_format`) are accepted and ignored.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator

from penstock.errors import InputError, InvalidRequest, Issue, UnknownArtifact
from penstock.intake.inline_media import is_inline
from penstock.jobs import Artifact, Job
from penstock.json_body import validated
from penstock.media_types import is_reference
from penstock.models import MAX_NAME_CHARS, CatalogueEntry, media_references
from penstock.requests import JobRequest
from penstock.storage.objects.base import DEFAULT_CONTENT_TYPE

#: Processor -> the output whose raster is the response. For a vLLM plugin: the file in field `data` of its response.
RASTERS: Mapping[str, str] = MappingProxyType(
    {"raster-segmentation": "classes", "raster-regression": "values", "vllm-plugin": "data"}
)
#: Bytes per base64 chunk, a multiple of three.
_CHUNK_BYTES = 3 << 18

_BANDS = "/input/bands"
_WITHOUT_NAMES = re.compile(r"`bands` \(names or numbers from 1\)(: .*(?=\.$))?")
_NO_PATHS = {
    "data_format": "refers to a file on the server, which is not allowed; use `url` or `b64_json`",
    "out_data_format": "would write a file on the server, which clients cannot read; use `b64_json`",
}


class PoolingData(BaseModel):
    """A scene and the format of its result."""

    model_config = ConfigDict(frozen=True, strict=True)

    data: Annotated[str, StringConstraints(min_length=1)]
    data_format: Literal["url", "b64_json", "path"]
    out_data_format: Literal["b64_json", "path"] = "b64_json"
    #: Zero-based bands of the file, in the model's order.
    indices: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None

    @field_validator("data_format", "out_data_format")
    @classmethod
    def _no_path(cls, given: str, field: ValidationInfo) -> str:
        if given == "path":
            raise ValueError(_NO_PATHS[str(field.field_name)])
        return given


class PoolingRequest(BaseModel):
    """A request to a model with an IO processor. What its `data` may be depends on the model."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
    data: Any

    def scene(self) -> PoolingData:
        """Return the data for a model of scenes; raise `InvalidRequest`."""
        return validated(_SceneRequest, {"data": self.data}).data


class _SceneRequest(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    data: PoolingData


def read_pooling(body: Any) -> PoolingRequest:
    """Return the request; raise `InvalidRequest`."""
    if isinstance(body, dict) and "data" not in body:
        raise InvalidRequest(errors=[Issue("/data", "is required")])
    return validated(PoolingRequest, body)


def takes_scenes(entry: CatalogueEntry) -> bool:
    """Return True for Penstock's models of scenes, and for plugins with TerraTorch's fields."""
    return entry.processor != "vllm-plugin" or {"data", "indices"} <= entry.input_schema.get("properties", {}).keys()


def job_request(entry: CatalogueEntry, wanted: PoolingData) -> JobRequest:
    """Return the job request. The worker fetches a URL through the guard; base64 becomes an upload of the job."""
    scene = wanted.data if wanted.data_format == "url" else f"data:image/tiff;base64,{wanted.data}"
    if entry.processor == "vllm-plugin":
        indices = {} if wanted.indices is None else {"indices": wanted.indices}
        return JobRequest(model=entry.name, input={"data": scene, **indices})
    value: dict[str, Any] = {"scene": scene, "outputs": [RASTERS[entry.processor]]}
    if wanted.indices is not None:
        value["bands"] = [index + 1 for index in wanted.indices]
    return JobRequest(model=entry.name, input=value)


def in_client_terms(error: InputError, wanted: PoolingData) -> InputError:
    """Return a job's error; an error about `bands` becomes one about the zero-based `indices`."""
    where = next((issue for issue in error.errors if issue.pointer.startswith(_BANDS)), None)
    if where is None or wanted.indices is None:
        return type(error)(_WITHOUT_NAMES.sub("`indices` (counted from 0)", error.detail), errors=error.errors)
    at = where.pointer.removeprefix(_BANDS).removeprefix("/")
    what = f"has {wanted.indices[int(at)]} (counted from 0), which {where.detail}" if at else where.detail
    return type(error)(f"`indices` {what}.", errors=[Issue(where.pointer, f"`indices` {what}.")])


def raster_artifact(job: Job) -> Artifact:
    """Return the raster of a finished job; raise `UnknownArtifact` where there is none."""
    names = {f"{output}.tif" for output in RASTERS.values()}
    found = next((artifact for artifact in job.artifacts if artifact.name in names), None)
    if found is None:
        raise UnknownArtifact(f"the job {job.key.id} has no raster output")
    return found


def answer_bytes(job_id: str, created_s: float, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the response as JSON while its raster is read, with a few chunks in memory."""
    head = f'{{"request_id":"{job_id}","created_at":{int(created_s)},'
    yield f'{head}"data":{{"data_format":"b64_json","request_id":"{job_id}","data":"'.encode()
    yield from base64_of(chunks)
    yield b'"}}'


def base64_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the base64 of the concatenated chunks."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        whole = len(rest) - len(rest) % 3
        if whole >= _CHUNK_BYTES:
            yield base64.b64encode(rest[:whole])
            rest = rest[whole:]
    yield base64.b64encode(rest)


#: Function from an artifact's key to its bytes.
Read = Callable[[str], Iterable[bytes]]


def plugin_job(entry: CatalogueEntry, data: Any) -> JobRequest:
    """Return the job request for a plugin's data, with the base64 of files as `data:` URLs; raise `InvalidRequest`."""
    fields = entry.input_schema.get("properties", {})
    if not isinstance(data, dict):
        known = ", ".join(fields) or "none"
        raise InvalidRequest(errors=[Issue("/data", f"must be an object with the fields of {entry.name}: {known}")])
    given = {place.removeprefix("/"): text for place, text in media_references(entry.input_schema, data)}
    files = {name: text for name, text in given.items() if name in data and not is_reference(text)}
    urls = {
        name: text if is_inline(text) else f"data:{DEFAULT_CONTENT_TYPE};base64,{text}" for name, text in files.items()
    }
    return JobRequest(model=entry.name, input={**data, **urls})


def answer_of(job: Job, read: Read) -> Iterator[bytes]:
    """Yield the response as JSON while the files of the answer are read, with a few chunks in memory."""
    keys = {artifact.name: artifact.key for artifact in job.artifacts}
    mark = secrets.token_hex(16)  # no answer holds it
    data = _marked((job.data or {}).get("data"), keys, mark)
    document = {"request_id": job.key.id, "created_at": int(job.created_s), "data": data}
    # Every second piece is the name of a file.
    for number, piece in enumerate(re.split(f"{mark}:([^:]*):", json.dumps(document, ensure_ascii=False))):
        if number % 2:
            yield from base64_of(read(keys[piece]))
        else:
            yield piece.encode()


def _marked(answer: Any, keys: Mapping[str, str], mark: str) -> Any:
    """Return the answer with a marked text in the place of each `{"artifact": name}` of a file that the job has."""
    match answer:
        case {"artifact": str(name), **others} if not others and name in keys:
            return f"{mark}:{name}:"
        case dict():
            return {key: _marked(value, keys, mark) for key, value in answer.items()}
        case list():
            return [_marked(value, keys, mark) for value in answer]
        case _:
            return answer
