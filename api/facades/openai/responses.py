"""OpenAI's Responses API over chats: requests become chats, and jobs become response objects. Pure.

A response is a job, so it can be read until the job expires. Conversations are not stored, and there are no tools.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.facades.openai import answers
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.openai.requests import Body, Metadata, ModelName, invalid
from penstock.errors import UnknownJob
from penstock.jobs import Job, State, Status
from penstock.json_body import validated

ID_PREFIX = "resp_"
#: Metadata of the jobs that are responses.
MARK: Mapping[str, str] = MappingProxyType({"openai.endpoint": "/v1/responses"})

_CONVERSATION = "is not supported: conversations are not stored here; send all messages as `input`"
#: Parameters that would change the answer -> their values without effect, and the reason for the others' refusal.
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "previous_response_id": ((), _CONVERSATION),
        "conversation": ((), _CONVERSATION),
        "prompt": ((), "is not supported: prompts are not stored here; send `instructions` and `input`"),
        "tools": (([],), "is not supported: this service runs no tools, built-in or others; leave it out"),
        "tool_choice": (("none", "auto"), "is not supported: this service runs no tools; leave it out"),
        "text": (({}, {"format": {"type": "text"}}), "is not supported but as plain text; leave it out"),
        "reasoning": (({},), "is not supported; leave it out"),
        "top_logprobs": ((0,), "is not supported; leave it out"),
    }
)


class TextPart(Body):
    """A text of a message; `output_text` where it repeats an answer."""

    type: Literal["input_text", "output_text"]
    text: str


class ImagePart(Body):
    """An image of a message, by its URL, reference or `data:` URL."""

    type: Literal["input_image"]
    image_url: Annotated[str, StringConstraints(min_length=1)]


class InputMessage(Body):
    """A message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(min_length=1)]


class ResponseRequest(Body):
    """`POST /v1/responses`."""

    model: ModelName
    input: str | Annotated[list[InputMessage], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    metadata: Metadata | None = None
    #: Answer at once, with the response in its queue.
    background: bool | None = False
    #: Answer with events.
    stream: bool | None = False


def read_response(body: Any) -> ResponseRequest:
    """Return a request; raise `InvalidRequest`, also for stored conversations and tools."""
    for name, (without_effect, why) in _REFUSED.items() if isinstance(body, dict) else ():
        given = body.get(name)
        if given is not None and not any(given == value for value in without_effect):
            raise invalid(name, why)
    return validated(ResponseRequest, body)


def chat_body(wanted: ResponseRequest) -> dict[str, Any]:
    """Return the request as the body of a chat."""
    messages = [] if wanted.instructions is None else [{"role": "system", "content": wanted.instructions}]
    if isinstance(wanted.input, str):
        messages.append({"role": "user", "content": wanted.input})
    else:
        messages += [{"role": each.role, "content": _content(each)} for each in wanted.input]
    found = {
        "model": wanted.model, "messages": messages, "max_completion_tokens": wanted.max_output_tokens,
        "temperature": wanted.temperature, "top_p": wanted.top_p, "metadata": wanted.metadata,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _content(message: InputMessage) -> Any:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.image_url}}
        for part in message.content
    ]


def job_id_of(response_id: str) -> str:
    """Return the id of a response's job; raise `UnknownJob` for the id of no response."""
    try:
        return str(uuid.UUID(hex=response_id.removeprefix(ID_PREFIX)))
    except ValueError as error:
        raise UnknownJob from error


def require_response(job: Job) -> Job:
    """Return the job of a response; raise `UnknownJob` for another job."""
    if job.submission.metadata.get("openai.endpoint") != MARK["openai.endpoint"]:
        raise UnknownJob
    return job


def response(job: Job) -> dict[str, Any]:
    """Return a job as a response object."""
    result = JobResult.of(job)
    ended = job.state is State.SUCCEEDED
    chat = answers.chat(result) if ended else {"choices": [], "usage": None}
    is_cut = ended and any(choice["finish_reason"] == "length" for choice in chat["choices"])
    sent = job.submission.input
    return {
        "id": _id("resp", job), "object": "response", "created_at": int(job.created_s),
        "status": "incomplete" if is_cut else _STATUSES[job.status], "background": None,
        "error": _error(job), "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None, "max_output_tokens": sent.get("max_new_tokens", sent.get("max_completion_tokens")),
        "metadata": {name: text for name, text in job.submission.metadata.items() if name not in MARK},
        "model": result.model, "output": [_message(job, choice, is_cut) for choice in chat["choices"]],
        "parallel_tool_calls": False, "previous_response_id": None, "temperature": sent.get("temperature"),
        "text": {"format": {"type": "text"}}, "tool_choice": "none", "tools": [], "top_p": sent.get("top_p"),
        "truncation": "disabled", "usage": None if chat["usage"] is None else _usage(chat["usage"]),
    }  # fmt: skip


class ResponseEvents:
    """The events of a response that is streamed: one message with one text."""

    #: Data of the stream's last event; None for none.
    end: str | None = None

    def __init__(self, job: Job) -> None:
        """Take the job before its first text."""
        self.job = job
        self._sent = 0

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the events before the first text."""
        begun = {**response(self.job), "status": "in_progress"}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        item = {"id": _id("msg", self.job), "type": "message", "role": "assistant"}
        yield self._event(
            "response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []}
        )
        yield self._event("response.content_part.added", **self._place(), part=_part(""))

    def text(self, delta: str) -> dict[str, Any]:
        """Return the event of further text."""
        return self._event("response.output_text.delta", **self._place(), delta=delta, logprobs=[])

    def last(self, ended: Job) -> Iterator[dict[str, Any]]:
        """Yield the events after the text, with the whole response."""
        found = response(ended)
        [item] = found["output"][:1]
        [part] = item["content"]
        yield self._event("response.output_text.done", **self._place(), text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{found['status']}", response=found)

    def failed(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return the event of an error, given as OpenAI's error object."""
        return self._event("error", code=error["code"], message=error["message"], param=error.get("param"))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1, **fields}

    def _place(self) -> dict[str, Any]:
        return {"item_id": _id("msg", self.job), "output_index": 0, "content_index": 0}


#: Status of a job -> status of its response. OpenAI has no word for an expired one.
_STATUSES: Mapping[Status, str] = MappingProxyType(
    {
        Status.QUEUED: "queued", Status.RUNNING: "in_progress", Status.CANCELING: "in_progress",
        Status.SUCCEEDED: "completed",
        Status.FAILED: "failed", Status.CANCELED: "cancelled", Status.EXPIRED: "failed",
    }
)  # fmt: skip


def _id(kind: str, job: Job) -> str:
    return f"{kind}_{job.key.id.replace('-', '')}"


def _error(job: Job) -> dict[str, str] | None:
    if _STATUSES[job.status] != "failed":
        return None
    if job.error is None:
        return {"code": "server_error", "message": f"the job was {job.status}"}
    return {"code": job.error.code, "message": job.error.detail}


def _message(job: Job, choice: Mapping[str, Any], is_cut: bool) -> dict[str, Any]:
    status, part = "incomplete" if is_cut else "completed", _part(choice["message"]["content"] or "")
    return {"id": _id("msg", job), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(chat: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": chat["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": chat["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": chat["total_tokens"],
    }  # fmt: skip
