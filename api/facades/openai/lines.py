"""OpenAI's lines of a batch as ours and back. Nothing here does I/O.

What an answer needs to know of its request beside what a job keeps lies in the job's metadata, under `openai.`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from penstock.api.errors import error_of, status_of
from penstock.api.facades.abilities import Ability
from penstock.api.facades.errors import facade_status, openai_error
from penstock.api.facades.openai import answers, requests
from penstock.api.facades.openai.answers import Result
from penstock.batches import Batch, Line, lines_of
from penstock.documents import parse_json, validated
from penstock.errors import InvalidRequest, PayloadTooLarge, PenstockError
from penstock.models import CatalogueEntry
from penstock.reports import ErrorReport
from penstock.requests import JobRequest

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
_ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
#: Gives the model of a name that has an ability, or raises why there is none.
Models = Callable[[str, Ability], CatalogueEntry]

MARK = "openai."
#: Rows that we wrote ourselves: as long as they are.
_ANY_BYTES = 1 << 40


class RequestLine(requests.Body):
    """A line of a batch's input file."""

    custom_id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any] = Field(description="As the endpoint takes it.")


def endpoint_of(batch: Batch) -> Endpoint | None:
    """Return what a batch asks its models for; None for one that was not made here."""
    mark = batch.manifest.metadata.get(f"{MARK}endpoint")
    return next((endpoint for endpoint in _ENDPOINTS if endpoint == mark), None)


def job_lines(chunks: Iterable[bytes], endpoint: Endpoint, models: Models, *, limit_bytes: int) -> Iterator[Any]:
    """Yield the requests of a file as lines of a batch of ours.

    Raises, with the number of the line, `InvalidRequest` for one that does not fit, `PayloadTooLarge`, and what
    `models` does.
    """
    seen: set[str] = set()
    for line in lines_of(chunks, limit_bytes=limit_bytes):
        try:
            wanted = _request(line, endpoint, limit_bytes)
            if wanted.custom_id in seen:
                raise InvalidRequest(f"the custom_id {wanted.custom_id!r} was used before")
            seen.add(wanted.custom_id)
            yield _job_line(wanted, models)
        except PenstockError as error:
            raise type(error)(f"line {line.number}: {error}", retry_after_s=error.retry_after_s) from error


def result_lines(chunks: Iterable[bytes], endpoint: Endpoint, ended_s: float) -> Iterator[bytes]:
    """Yield the rows of our results as OpenAI's clients read them."""
    for line in lines_of(chunks, limit_bytes=_ANY_BYTES):
        yield _dumped(_answered(json.loads(line.data or b""), endpoint, ended_s))


def error_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows of our errors as OpenAI's clients read them."""
    for line in lines_of(chunks, limit_bytes=_ANY_BYTES):
        row = json.loads(line.data or b"")
        report = ErrorReport.from_json(row["error"])
        yield _dumped(_ended(row, report) if row["status"] in _ENDED else _refused(row, report))


def _request(line: Line, endpoint: Endpoint, limit_bytes: int) -> RequestLine:
    if line.data is None:
        raise PayloadTooLarge(f"a line may hold {limit_bytes} bytes")
    wanted = validated(RequestLine, parse_json(line.data))
    if wanted.url != endpoint:
        raise InvalidRequest(f"the url is {wanted.url!r}, the batch's endpoint {endpoint!r}")
    if wanted.body.get("stream"):
        raise InvalidRequest("a batch does not stream")
    return wanted


def _job_line(wanted: RequestLine, models: Models) -> dict[str, Any]:
    job, marks = _JOBS[wanted.url](wanted, models)
    metadata = {**job.metadata, f"{MARK}model": job.model, **marks}
    return {"custom_id": wanted.custom_id, "model": job.model, "input": job.input, "metadata": metadata}


def _seed(wanted: RequestLine) -> int:
    """Return a seed that differs from line to line and is the same when a batch is sent again."""
    return int.from_bytes(hashlib.sha256(wanted.custom_id.encode()).digest()[:7])


def _chat(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    chat = requests.read_chat(wanted.body)
    return requests.chat_job(models(chat.model, Ability.CHAT), chat, seed=_seed(wanted)), {}


def _completion(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    completion = requests.read_completion(wanted.body)
    entry = models(completion.model, Ability.COMPLETION)
    return requests.completion_job(entry, completion, seed=_seed(wanted)), {}


def _embedding(wanted: RequestLine, models: Models) -> tuple[JobRequest, Mapping[str, str]]:
    embedding = requests.read_embedding(wanted.body)
    marks: dict[str, str] = {f"{MARK}encoding_format": embedding.encoding_format or "float"}
    if embedding.dimensions is not None:
        marks[f"{MARK}dimensions"] = str(embedding.dimensions)
    if embedding.truncate_prompt_tokens is not None:
        marks[f"{MARK}truncated"] = "true"
    return requests.embedding_job(models(embedding.model, Ability.EMBEDDING), embedding), marks


_JOBS: Mapping[str, Callable[[RequestLine, Models], tuple[JobRequest, Mapping[str, str]]]] = MappingProxyType(
    {"/v1/chat/completions": _chat, "/v1/completions": _completion, "/v1/embeddings": _embedding}
)


def _answered(row: Mapping[str, Any], endpoint: Endpoint, ended_s: float) -> dict[str, Any]:
    marks, output = row["metadata"], row["output"]
    result = Result(row["job_id"], ended_s, marks.get(f"{MARK}model", ""), output["text"] or "", output["json"] or {})
    try:
        return _row(row, 200, _body(result, endpoint, marks))
    except PenstockError as error:
        return _refused(row, error.report())


def _body(result: Result, endpoint: Endpoint, marks: Mapping[str, str]) -> dict[str, Any]:
    match endpoint:
        case "/v1/chat/completions":
            return answers.chat(result)
        case "/v1/completions":
            return answers.completion(result)
        case "/v1/embeddings":
            wanted = marks.get(f"{MARK}dimensions")
            encoding = marks.get(f"{MARK}encoding_format")
            return answers.embeddings(
                result, encoding=encoding, dimensions=int(wanted) if wanted else None,
                truncated=f"{MARK}truncated" in marks,
            )  # fmt: skip


#: What became of lines that were ended -> OpenAI's word for it.
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
