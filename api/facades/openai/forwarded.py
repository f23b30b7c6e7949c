"""Chats and completions by models of ours, and by those behind a server of the same protocol.

The parameters of the latter go on as they are: the model's own schema says which there are, and the server answers for
them. `data:` URLs become uploads where the job is submitted, as in the native API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.api.facades.capabilities import Capability, is_forwarded
from penstock.api.facades.openai.requests import (
    ChatRequest,
    CompletionRequest,
    Generation,
    Head,
    Metadata,
    chat_job,
    check_images,
    completion_job,
    read_chat,
    read_completion,
)
from penstock.errors import InvalidRequest, PenstockError
from penstock.intake.inline_media import is_inline
from penstock.json_body import validated
from penstock.media_types import is_reference
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest

#: Parameters of the facade itself, and those without an effect on the answer.
_NOT_FORWARDED = frozenset({"model", "stream", "stream_options", "metadata", "user", "store", "service_tier"})

OwnT = TypeVar("OwnT", bound=Generation)
#: Returns the model of a name with a capability, or raises an error.
Models = Callable[[str, Capability], CatalogueEntry]


class ForwardedHead(Head):
    """The parameters for the facade itself of a request that is forwarded."""

    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Either(Generic[OwnT]):
    """A request to a model of ours or of a server: its model decides which."""

    raw: Any
    #: The request as models of ours understand it, or the error if they do not.
    found: OwnT | InvalidRequest

    def job(
        self, models: Models, capability: Capability, job_of: Callable[[CatalogueEntry, OwnT], JobRequest]
    ) -> tuple[Head, JobRequest]:
        """Return the facade's parameters and the job, by `job_of` for a model of ours.

        Raises `InvalidRequest` and the errors of `models`.
        """
        if (entry := _served(self.raw, models, capability)) is not None:
            return validated(ForwardedHead, self.raw), forwarded_job(entry, self.raw)
        if isinstance(self.found, InvalidRequest):
            raise self.found
        return self.found, job_of(models(self.found.model, capability), self.found)


def read_either_chat(body: Any) -> Either[ChatRequest]:
    """Return a chat for a model of either kind."""
    return _either(body, read_chat)


def read_either_completion(body: Any) -> Either[CompletionRequest]:
    """Return a completion for a model of either kind."""
    return _either(body, read_completion)


def chat(given: Either[ChatRequest], models: Models, seed: int) -> tuple[Head, JobRequest]:
    """Return the facade's parameters and the job of a chat; raise the errors of `Either.job` and of its images."""
    return given.job(models, Capability.CHAT, partial(_own_chat, seed=seed))


def completion(given: Either[CompletionRequest], models: Models, seed: int) -> tuple[Head, JobRequest]:
    """Return the facade's parameters and the job of a completion; raise the errors of `Either.job`."""
    return given.job(models, Capability.COMPLETION, partial(completion_job, seed=seed))


def forwarded_job(entry: CatalogueEntry, raw: Mapping[str, Any]) -> JobRequest:
    """Return the job of a forwarded request, with the base64 of recordings as `data:` URLs; raise `InvalidRequest`."""
    value = {name: given for name, given in raw.items() if name not in _NOT_FORWARDED and given is not None}
    if isinstance(prompt := value.get("prompt"), list) and len(prompt) == 1 and isinstance(prompt[0], str):
        value["prompt"] = prompt[0]
    if "messages" in value:
        value["messages"] = deepcopy(value["messages"])
        for recording in _recordings(value["messages"]):
            recording["data"] = f"data:audio/{recording['format'].lower()};base64,{recording['data']}"
    return JobRequest(model=entry.name, input=value, metadata=validated(ForwardedHead, raw).metadata or {})


def _own_chat(entry: CatalogueEntry, wanted: ChatRequest, *, seed: int) -> JobRequest:
    check_images(entry, wanted.messages)
    return chat_job(entry, wanted, seed=seed)


def _either(body: Any, read: Callable[[Any], OwnT]) -> Either[OwnT]:
    try:
        return Either(body, read(body))
    except InvalidRequest as error:
        return Either(body, error)


def _served(raw: Any, models: Models, capability: Capability) -> CatalogueEntry | None:
    """Return the model of a request whose parameters go on as they are; None for other models, and wrong ones."""
    try:
        entry = models(str(raw.get("model")), capability) if isinstance(raw, dict) else None
    except PenstockError:  # raised again where the request is read
        return None
    return entry if entry is not None and is_forwarded(entry) else None


def _recordings(messages: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a chat with a recording in base64, which has no media type of its own."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            match part:
                case {"input_audio": {"data": str(data), "format": str()} as found}:
                    if not (is_reference(data) or is_inline(data)):
                        yield found
