"""Responses of OpenAI's interface, from finished jobs."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import ContextExceeded, InvalidRequest, Issue
from penstock.jobs import Job, JobEvent
from penstock.models import CatalogueEntry

Kind = Literal["chat.completion", "text_completion"]
_PREFIXES: Mapping[Kind, str] = {"chat.completion": "chatcmpl-", "text_completion": "cmpl-"}


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a finished job, from the job store or from a line of a batch's results."""

    job_id: str
    created_s: float
    model: str
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> JobResult:
        """Return the result of a job."""
        return cls(job.key.id, job.created_s, job.submission.model, job.text or "", job.data or {})


def model_card(entry: CatalogueEntry) -> dict[str, Any]:
    """Return a model object. `created` is unknown and always 0."""
    return {"id": entry.name, "object": "model", "created": 0, "owned_by": "penstock"}


def chat(result: JobResult) -> dict[str, Any]:
    """Return a chat completion."""
    return {**_head("chat.completion", result), "choices": _choices(result, "chat.completion"), "usage": _usage(result)}


def completion(result: JobResult) -> dict[str, Any]:
    """Return a text completion."""
    return {**_head("text_completion", result), "choices": _choices(result, "text_completion"), "usage": _usage(result)}


def embeddings(
    result: JobResult, *, encoding: str | None, dimensions: int | None = None, truncated: bool = False
) -> dict[str, Any]:
    """Return embeddings, as numbers or as base64 of little-endian float32.

    Raises `InvalidRequest` where `dimensions` is not the model's number, and `ContextExceeded` where texts were
    truncated without `truncated`.
    """
    require_whole(result, truncated)
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


def require_whole(
    result: JobResult, truncated: bool, place: Callable[[int], tuple[str, int]] = lambda at: ("input", at)
) -> None:
    """Raise `ContextExceeded` where texts were truncated without `truncated`.

    `place` returns the field and the index in it of a text of the job.
    """
    cut = result.data.get("truncated") or ()
    if cut and not truncated:
        why = f"is longer than the context of {result.model}; shorten or truncate it (`truncate_prompt_tokens: -1`)"
        field, number = place(cut[0])
        raise ContextExceeded(f"{field}[{number}] {why}", errors=[Issue(f"/{field}", f"{field}[{number}] {why}")])


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a streamed response."""

    kind: Kind
    job: Job
    with_usage: bool
    #: Data of the stream's last event.
    end: str | None = "[DONE]"

    def failed(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chunk of an error, given as OpenAI's error object."""
        return {"error": error}

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks before the text."""
        if self.kind == "chat.completion":
            yield self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def text(self, delta: str) -> dict[str, Any]:
        """Return the chunk of new text."""
        choice = {"delta": {"content": delta}} if self.kind == "chat.completion" else {"text": delta}
        return self._chunk({**choice, "finish_reason": None})

    def last(self, job: Job) -> Iterator[dict[str, Any]]:
        """Yield the chunks after the text, from the finished job."""
        result = JobResult.of(job)
        for choice in _choices(result, self.kind):
            yield self._chunk(rest_of(choice, self.kind))
        if self.with_usage:
            yield {**self._head, "choices": [], "usage": _usage(result)}

    @property
    def _head(self) -> dict[str, Any]:
        head = _head(self.kind, JobResult.of(self.job))
        return head | {"object": "chat.completion.chunk"} if self.kind == "chat.completion" else head

    def _chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.with_usage else {}
        return {**self._head, "choices": [{"index": 0, "logprobs": None, **choice}], **usage}


def rest_of(choice: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the part of a choice that a stream sends after the texts: the text of the first choice was sent."""
    sent = choice["index"] == 0
    if kind != "chat.completion":
        return {**choice, "text": "" if sent else choice["text"]}
    without = ("role", "content") if sent else ()
    message = {name: value for name, value in choice["message"].items() if value and name not in without}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": message}


class UnsentText:
    """Tracks the sent text of a job, so that each character is sent once although further attempts repeat the text."""

    def __init__(self, sent_chars: int = 0) -> None:
        #: Characters that were sent so far.
        self.sent_chars = sent_chars

    def delta(self, event: JobEvent) -> str:
        """Return an event's unsent text; empty for an event after a gap, which `rest` fills."""
        if event.type != "job.text":
            return ""
        at, text = int(event.data["at"]), str(event.data["text"])
        return self._sent(text[self.sent_chars - at :]) if at <= self.sent_chars else ""

    def rest(self, text: str) -> str:
        """Return the unsent end of the complete text."""
        return self._sent(text[self.sent_chars :])

    def _sent(self, delta: str) -> str:
        self.sent_chars += len(delta)
        return delta


def _head(kind: Kind, result: JobResult) -> dict[str, Any]:
    name = _PREFIXES[kind] + result.job_id
    return {"id": name, "object": kind, "created": int(result.created_s), "model": result.model}


def _choices(result: JobResult, kind: Kind) -> list[dict[str, Any]]:
    """Return the choices: those of a server in its result, or the one of a model with a text alone."""
    if given := result.data.get("choices"):
        return [_complete(choice) for choice in given]
    common = {"index": 0, "logprobs": None, "finish_reason": _reason(result)}
    if kind == "chat.completion":
        return [{**common, "message": {"role": "assistant", "content": result.text, "refusal": None}}]
    return [{**common, "text": result.text}]


def _complete(choice: Mapping[str, Any]) -> dict[str, Any]:
    common = {"index": 0, "logprobs": None, "finish_reason": "stop"}
    if "message" not in choice:
        return {**common, "text": "", **choice}
    return {**common, **choice, "message": {"role": "assistant", "content": None, "refusal": None, **choice["message"]}}


def _reason(result: JobResult) -> str:
    return str(result.data.get("finish_reason") or "stop")


def _usage(result: JobResult) -> dict[str, int]:
    given = dict(result.data.get("usage") or {})
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: count if isinstance(count := given.get(name), int) else 0 for name in names}


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
