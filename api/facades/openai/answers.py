"""Finished jobs as OpenAI's clients read them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import ContextExceeded, InvalidRequest
from penstock.jobs import Job, JobEvent
from penstock.models import CatalogueEntry
from penstock.reports import Issue

Kind = Literal["chat.completion", "text_completion"]
_PREFIXES: Mapping[Kind, str] = {"chat.completion": "chatcmpl-", "text_completion": "cmpl-"}


@dataclass(frozen=True, slots=True)
class Result:
    """What an answer is made of: a finished job, from the job store or from a line of a batch's results."""

    job_id: str
    created_s: float
    model: str
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> Result:
        """Return that of a job."""
        return cls(job.key.id, job.created_s, job.submission.model, job.text or "", job.data or {})


def model_card(entry: CatalogueEntry) -> dict[str, Any]:
    """Return a model; when it was made nobody knows here."""
    return {"id": entry.name, "object": "model", "created": 0, "owned_by": "penstock"}


def chat(result: Result) -> dict[str, Any]:
    """Return the answer to a chat."""
    message = {"role": "assistant", "content": result.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(result)}
    return {**_head("chat.completion", result), "choices": [choice], "usage": _usage(result)}


def completion(result: Result) -> dict[str, Any]:
    """Return the answer to a completion."""
    choice = {"index": 0, "text": result.text, "logprobs": None, "finish_reason": _reason(result)}
    return {**_head("text_completion", result), "choices": [choice], "usage": _usage(result)}


def embeddings(
    result: Result, *, encoding: str | None, dimensions: int | None = None, truncated: bool = False
) -> dict[str, Any]:
    """Return vectors, as numbers or as base64 of little-endian float32.

    Raises `InvalidRequest` where the model's vectors have not as many dimensions as were asked for, and
    `ContextExceeded` where texts had to be cut, unless they may be (`truncated`).
    """
    cut = result.data.get("truncated") or ()
    if cut and not truncated:
        why = f"is longer than {result.model} takes: shorten it, or let it be cut with `truncate_prompt_tokens: -1`"
        raise ContextExceeded(f"input[{cut[0]}] {why}", errors=[Issue("/input", f"input[{cut[0]}] {why}")])
    made = result.data.get("dimensions")
    if dimensions is not None and dimensions != made:
        why = f"the embeddings of {result.model} have {made} dimensions"
        raise InvalidRequest(why, errors=[Issue("/dimensions", why)])
    vectors: Sequence[Sequence[float]] = result.data.get("embeddings") or ()
    rows = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if encoding == "base64" else vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = dict(result.data.get("usage") or {}).get("prompt_tokens", 0)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": rows, "model": result.model, "usage": usage}


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a stream."""

    kind: Kind
    job: Job
    with_usage: bool

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield what comes before the text."""
        if self.kind == "chat.completion":
            yield self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def text(self, piece: str) -> dict[str, Any]:
        """Return a piece of the text."""
        what = {"delta": {"content": piece}} if self.kind == "chat.completion" else {"text": piece}
        return self._chunk({**what, "finish_reason": None})

    def last(self, job: Job) -> Iterator[dict[str, Any]]:
        """Yield what comes after the text, of the finished job."""
        result = Result.of(job)
        nothing: dict[str, Any] = {"delta": {}} if self.kind == "chat.completion" else {"text": ""}
        yield self._chunk({**nothing, "finish_reason": _reason(result)})
        if self.with_usage:
            yield {**self._head, "choices": [], "usage": _usage(result)}

    @property
    def _head(self) -> dict[str, Any]:
        head = _head(self.kind, Result.of(self.job))
        return head | {"object": "chat.completion.chunk"} if self.kind == "chat.completion" else head

    def _chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.with_usage else {}
        return {**self._head, "choices": [{"index": 0, "logprobs": None, **choice}], **usage}


class Telling:
    """What was told of a job's text, so that each character is told once whatever its attempts repeat."""

    def __init__(self) -> None:
        self._told = 0

    def piece(self, event: JobEvent) -> str:
        """Return what an event has that was not told: nothing of one that leaves a gap, `rest` will have it."""
        if event.type != "job.text":
            return ""
        at, text = int(event.data["at"]), str(event.data["text"])
        return self._tell(text[self._told - at :]) if at <= self._told else ""

    def rest(self, text: str) -> str:
        """Return what was not told of the whole text."""
        return self._tell(text[self._told :])

    def _tell(self, piece: str) -> str:
        self._told += len(piece)
        return piece


def _head(kind: Kind, result: Result) -> dict[str, Any]:
    name = _PREFIXES[kind] + result.job_id
    return {"id": name, "object": kind, "created": int(result.created_s), "model": result.model}


def _reason(result: Result) -> str:
    return str(result.data.get("finish_reason") or "stop")


def _usage(result: Result) -> dict[str, int]:
    given = dict(result.data.get("usage") or {})
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: int(given.get(name, 0)) for name in names}


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
