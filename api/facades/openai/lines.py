"""Translates batch lines between OpenAI's format and Penstock's. Pure.

Request fields that a response needs and a job does not store are in the job's metadata, under `openai.`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from penstock.api.errors import error_of, status_of
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.errors import facade_status, openai_error
from penstock.api.facades.openai import answers, forwarded, requests
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.openai.forwarded import Models
from penstock.batches import Batch, Line, lines_of
from penstock.errors import ErrorReport, InvalidRequest, PayloadTooLarge, PenstockError
from penstock.json_body import parse_json, validated
from penstock.requests import JobRequest

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
_ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)

METADATA_PREFIX = "openai."
#: Line limit for our own result files: none.
_ANY_BYTES = 1 << 40


class RequestLine(requests.Body):
    """A line of a batch's input file."""

    custom_id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any] = Field(description="The body of a request to the endpoint.")


def endpoint_of(batch: Batch) -> Endpoint | None:
    """Return the endpoint of a batch; None for a batch of another interface."""
    found = batch.manifest.metadata.get(f"{METADATA_PREFIX}endpoint")
    return next((endpoint for endpoint in _ENDPOINTS if endpoint == found), None)


def job_lines(chunks: Iterable[bytes], endpoint: Endpoint, models: Models, *, limit_bytes: int) -> Iterator[Any]:
    """Yield the requests of a file as Penstock's batch lines.

    Raises `InvalidRequest`, `PayloadTooLarge` and the errors of `models`, with the line number.
    """
    seen: set[str] = set()
    for line in lines_of(chunks, limit_bytes=limit_bytes):
        try:
            wanted = _request(line, endpoint, limit_bytes)
            if wanted.custom_id in seen:
                raise InvalidRequest(f"the custom_id {wanted.custom_id!r} is not unique")
            seen.add(wanted.custom_id)
            yield _job_line(wanted, models)
        except PenstockError as error:
            raise type(error)(f"line {line.number}: {error}", retry_after_s=error.retry_after_s) from error


def result_lines(chunks: Iterable[bytes], endpoint: Endpoint, ended_s: float) -> Iterator[bytes]:
    """Yield the lines of `results.jsonl` in OpenAI's format."""
    for line in lines_of(chunks, limit_bytes=_ANY_BYTES):
        yield _dumped(_answered(json.loads(line.data or b""), endpoint, ended_s))


def error_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of `errors.jsonl` in OpenAI's format."""
    for line in lines_of(chunks, limit_bytes=_ANY_BYTES):
        row = json.loads(line.data or b"")
        report = ErrorReport.from_json(row["error"])
        yield _dumped(_ended(row, report) if row["status"] in _ENDED else _refused(row, report))


def _request(line: Line, endpoint: Endpoint, limit_bytes: int) -> RequestLine:
    if line.data is None:
        raise PayloadTooLarge(f"the line exceeds the limit of {limit_bytes} bytes")
    wanted = validated(RequestLine, parse_json(line.data))
    if wanted.url != endpoint:
        raise InvalidRequest(f"the url {wanted.url!r} is not the batch's endpoint {endpoint!r}")
    if wanted.body.get("stream"):
        raise InvalidRequest("`stream` is not supported in a batch; leave it out")
    return wanted


def _job_line(wanted: RequestLine, models: Models) -> dict[str, Any]:
    job, more = _JOBS[wanted.url](wanted, models)
    metadata = {**job.metadata, f"{METADATA_PREFIX}model": job.model, **more}
    return {"custom_id": wanted.custom_id, "model": job.model, "input": job.input, "metadata": metadata}


def _seed(wanted: RequestLine) -> int:
    """Return a seed that differs between lines and is the same when the batch is submitted again."""
    return int.from_bytes(hashlib.sha256(wanted.custom_id.encode()).digest()[:7])


def _chat(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    return forwarded.chat(forwarded.read_either_chat(wanted.body), models, _seed(wanted))[1], {}


def _completion(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    return forwarded.completion(forwarded.read_either_completion(wanted.body), models, _seed(wanted))[1], {}


def _embedding(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    embedding = requests.read_embedding(wanted.body)
    metadata: dict[str, str] = {f"{METADATA_PREFIX}encoding_format": embedding.encoding_format or "float"}
    if embedding.dimensions is not None:
        metadata[f"{METADATA_PREFIX}dimensions"] = str(embedding.dimensions)
    if embedding.truncate_prompt_tokens is not None:
        metadata[f"{METADATA_PREFIX}truncated"] = "true"
    return requests.embedding_job(models(embedding.model, Capability.EMBEDDING), embedding), metadata


_JOBS: Mapping[str, Callable[[RequestLine, Models], tuple[JobRequest, Mapping[str, str]]]] = MappingProxyType(
    {"/v1/chat/completions": _chat, "/v1/completions": _completion, "/v1/embeddings": _embedding}
)


def _answered(row: Mapping[str, Any], endpoint: Endpoint, ended_s: float) -> dict[str, Any]:
    metadata, output = row["metadata"], row["output"]
    model = metadata.get(f"{METADATA_PREFIX}model", "")
    result = JobResult(row["job_id"], ended_s, model, output["text"] or "", output["json"] or {})
    try:
        return _row(row, 200, _body(result, endpoint, metadata))
    except PenstockError as error:
        return _refused(row, error.report())


def _body(result: JobResult, endpoint: Endpoint, metadata: Mapping[str, str]) -> dict[str, Any]:
    match endpoint:
        case "/v1/chat/completions":
            return answers.chat(result)
        case "/v1/completions":
            return answers.completion(result)
        case "/v1/embeddings":
            wanted = metadata.get(f"{METADATA_PREFIX}dimensions")
            encoding = metadata.get(f"{METADATA_PREFIX}encoding_format")
            return answers.embeddings(
                result, encoding=encoding, dimensions=int(wanted) if wanted else None,
                truncated=f"{METADATA_PREFIX}truncated" in metadata,
            )  # fmt: skip


#: Status of an unfinished line -> OpenAI's error code.
_ENDED: Mapping[str, str] = MappingProxyType({"canceled": "batch_cancelled", "expired": "batch_expired"})


def _ended(row: Mapping[str, Any], report: ErrorReport) -> dict[str, Any]:
    error = {"code": _ENDED[row["status"]], "message": report.detail}
    return {"id": _id(row), "custom_id": row["custom_id"], "response": None, "error": error}


def _refused(row: Mapping[str, Any], report: ErrorReport) -> dict[str, Any]:
    status = facade_status(report, status_of(error_of(report)))
    return _row(row, status, {"error": openai_error(report, status)})


def _row(row: Mapping[str, Any], status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    response = {"status_code": int(status), "request_id": row["job_id"] or "", "body": body}
    return {"id": _id(row), "custom_id": row["custom_id"], "response": response, "error": None}


def _id(row: Mapping[str, Any]) -> str:
    return f"batch_req_{(row['job_id'] or '').replace('-', '') or row['line']}"


def _dumped(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
