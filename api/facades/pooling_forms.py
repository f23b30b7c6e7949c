"""What vLLM's `/pooling` takes and answers for models with an IO processor, translated.

The fields are those of vLLM's `IOProcessorRequest` and of TerraTorch's segmentation plugin. What they have and we do
not go by (`softmax`, `priority`, `image_format`) is let through, as it is there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from penstock.documents import validated
from penstock.errors import InputError, InvalidRequest, UnknownArtifact
from penstock.jobs import Artifact, Job
from penstock.models import MAX_NAME_CHARS, CatalogueEntry
from penstock.reports import Issue
from penstock.requests import JobRequest

#: The one of a processor's outputs that stands for what a plugin answers: its raster. A plugin's own is the file at
#: the place `data` of its answer.
RASTERS: Mapping[str, str] = MappingProxyType(
    {"raster-segmentation": "classes", "raster-regression": "values", "vllm-plugin": "data"}
)
#: A whole number of base64's groups of three bytes.
_CHUNK_BYTES = 3 << 18

_BANDS = "/input/bands"
_WITHOUT_NAMES = re.compile(r"`bands` \(names or numbers from 1\)")
_NO_PATHS = "names a file of the server, which clients may not: use `url` or `b64_json`"
_NO_PATHS_OUT = "would leave a file on the server, where clients cannot read it: use `b64_json`"

#: Where vLLM's requests about text have it.
_TEXTS = ("input", "messages")
_NO_TEXTS = "this route runs models on scenes, which come in `data`; for embeddings of text POST /openai/v1/embeddings"


class PoolingData(BaseModel):
    """A scene, and how the result is to come back."""

    model_config = ConfigDict(frozen=True, strict=True)

    data: Annotated[str, StringConstraints(min_length=1)]
    data_format: Literal["url", "b64_json", "path"]
    out_data_format: Literal["b64_json", "path"] = "b64_json"
    #: Bands of the file that the model takes, in its order, counted from 0.
    indices: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None

    @field_validator("data_format")
    @classmethod
    def _no_path_in(cls, given: str) -> str:
        if given == "path":
            raise ValueError(_NO_PATHS)
        return given

    @field_validator("out_data_format")
    @classmethod
    def _no_path_out(cls, given: str) -> str:
        if given == "path":
            raise ValueError(_NO_PATHS_OUT)
        return given


class PoolingRequest(BaseModel):
    """A request to a model with an IO processor."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
    data: PoolingData


def read_pooling(body: Any) -> PoolingRequest:
    """Return the body of a request; raise `InvalidRequest`, for one about text in vLLM's other forms too."""
    if isinstance(body, dict) and "data" not in body and not body.keys().isdisjoint(_TEXTS):
        raise InvalidRequest(_NO_TEXTS, errors=[Issue("/data", "is required")])
    return validated(PoolingRequest, body)


def job_request(entry: CatalogueEntry, wanted: PoolingData, scene: str) -> JobRequest:
    """Return the job that a request asks for. `scene` is the reference of its medium."""
    if entry.processor == "vllm-plugin":
        indices = {} if wanted.indices is None else {"indices": wanted.indices}
        return JobRequest(model=entry.name, input={"data": scene, **indices})
    value: dict[str, Any] = {"scene": scene, "outputs": [RASTERS[entry.processor]]}
    if wanted.indices is not None:
        value["bands"] = [index + 1 for index in wanted.indices]
    return JobRequest(model=entry.name, input=value)


def in_its_words(error: InputError, wanted: PoolingData) -> InputError:
    """Return why a job failed as an error about `indices`, which count from 0, where it is one about `bands`."""
    where = next((issue for issue in error.errors if issue.pointer.startswith(_BANDS)), None)
    if where is None or wanted.indices is None:
        return type(error)(_WITHOUT_NAMES.sub("`indices`, which counts from 0", error.detail), errors=error.errors)
    at = where.pointer.removeprefix(_BANDS).removeprefix("/")
    said = f"asks for {wanted.indices[int(at)]}, counted from 0, and that {where.detail}" if at else where.detail
    return type(error)(f"`indices` {said}.", errors=[Issue(where.pointer, f"`indices` {said}.")])


def raster_of(job: Job) -> Artifact:
    """Return the file of a finished job that is answered; raise `UnknownArtifact` where it has none."""
    names = {f"{output}.tif" for output in RASTERS.values()}
    found = next((artifact for artifact in job.artifacts if artifact.name in names), None)
    if found is None:
        raise UnknownArtifact(f"the job {job.key.id} made no raster")
    return found


def answer_bytes(job_id: str, created_s: float, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the answer as JSON while its raster is read; no more than a few chunks are in memory."""
    head = f'{{"request_id":"{job_id}","created_at":{int(created_s)},'
    yield f'{head}"data":{{"data_format":"b64_json","request_id":"{job_id}","data":"'.encode()
    yield from base64_of(chunks)
    yield b'"}}'


def base64_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield base64 of the bytes in these chunks, as of one."""
    kept = b""
    for chunk in chunks:
        kept += chunk
        whole = len(kept) - len(kept) % 3
        if whole >= _CHUNK_BYTES:
            yield base64.b64encode(kept[:whole])
            kept = kept[whole:]
    yield base64.b64encode(kept)
