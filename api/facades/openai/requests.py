"""Requests of OpenAI's interface and their translation to jobs.

Unsupported parameters that would change the result are rejected by name. Parameters without an effect on the result
(`user`, `store`, `service_tier`) are accepted and ignored, as other servers of this interface do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.api.facades.capabilities import Capability, capabilities_of, is_forwarded
from penstock.errors import InvalidRequest, Issue
from penstock.intake.inline_media import is_inline, read_image
from penstock.json_body import validated
from penstock.models import MAX_NAME_CHARS, CatalogueEntry
from penstock.requests import JobRequest

#: OpenAI's default `max_tokens` for completions; chats have no default.
COMPLETION_TOKENS = 16
MAX_STOPS = 16

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
Stop = str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None
_MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Metadata = Annotated[dict[_MetadataKey, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]

#: Parameters that no model supports -> their values without effect, which are accepted.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "n": (1,), "best_of": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},),
        "logprobs": (False, 0), "top_logprobs": (0,), "echo": (False,), "suffix": ("",), "tools": ([],),
        "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (), "web_search_options": (),
        "prediction": (),
    }
)  # fmt: skip


class Body(BaseModel):
    """Base class of request bodies. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)


class TextContent(Body):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """The URL of an image. `detail` is ignored: models process images as they were trained."""

    url: Annotated[str, StringConstraints(min_length=1)]


class ImageContent(Body):
    """An image part of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(Body):
    """A file within a request, as a `data:` URL."""

    file_data: str | None = None


class OtherContent(Body):
    """A video, a recording or a file in a message. Models of ours accept files that are images, and no others."""

    type: Literal["video_url", "input_audio", "file"]
    file: FileData | None = None


BodyT = TypeVar("BodyT", bound=Body)
AnyContent = TextContent | ImageContent | OtherContent
Part = Annotated[AnyContent, Field(discriminator="type")]

#: Types of parts -> their contents in the plural.
_CONTENTS: Mapping[str, str] = MappingProxyType(
    {"image_url": "images", "video_url": "videos", "input_audio": "recordings", "file": "files"}
)


class ConversationMessage(Body):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)]


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = False


class Head(Body):
    """The parameters of a chat or completion for the facade itself."""

    model: ModelName
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def with_usage(self) -> bool:
        """True where a stream ends with the token usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Generation(Head):
    """The common parameters of chats and completions by models of this service."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop = None


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ConversationMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: Metadata | None = None


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`. `messages` is vLLM's form: a message of the user, perhaps after an instruction."""

    model: ModelName
    input: str | Annotated[list[str], Field(min_length=1, max_length=10_000)] | None = None
    messages: Annotated[list[ConversationMessage], Field(min_length=1, max_length=3)] | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    #: vLLM's parameter: -1 truncates texts to the model's context. Without it, longer texts are rejected.
    truncate_prompt_tokens: Literal[-1] | None = None
    #: Parameters of the model's job: a prompt of the model before each text, or a prompt of the request.
    prompt_name: str | None = None
    prompt: str | None = None


def read_chat(body: Any) -> ChatRequest:
    """Return a chat request; raise `InvalidRequest`."""
    return read_body(ChatRequest, body)


def read_completion(body: Any) -> CompletionRequest:
    """Return a completion request; raise `InvalidRequest`, also for several prompts and for token ids."""
    given = body.get("prompt") if isinstance(body, dict) else None
    if isinstance(given, list):
        if any(isinstance(item, int | list) for item in given):
            raise invalid("prompt", "has token ids, which are not supported; send text")
        if len(given) != 1:
            raise invalid("prompt", f"has {len(given)} texts; send one text per request, or a batch (/v1/batches)")
    return read_body(CompletionRequest, body)


def read_embedding(body: Any) -> EmbeddingRequest:
    """Return an embedding request; raise `InvalidRequest`, also for token ids."""
    given = body.get("input") if isinstance(body, dict) else None
    if isinstance(given, list) and any(isinstance(item, int | list) for item in given):
        raise invalid("input", "has token ids, which are not supported; send text")
    wanted = read_body(EmbeddingRequest, body)
    if (wanted.input is None) == (wanted.messages is None):
        raise invalid("input", "is required" if wanted.input is None else "and `messages` exclude each other")
    return wanted


def chat_job(entry: CatalogueEntry, wanted: ChatRequest, *, seed: int) -> JobRequest:
    """Return the job of a chat, with its `data:` URLs. `seed` applies where the request samples and has none."""
    accepts_images = Capability.IMAGE_CHAT in capabilities_of(entry)
    messages = [
        {
            "role": "system" if m.role == "developer" else m.role,
            "content": _parts(entry, m.content, at) if accepts_images else _text(entry, m.content, at),
        }
        for at, m in enumerate(wanted.messages)
    ]
    tokens = wanted.max_completion_tokens or wanted.max_tokens
    value = {"messages": messages, **_sampling(wanted, tokens, seed)}
    return JobRequest(model=entry.name, input=value, metadata=wanted.metadata or {})


def completion_job(entry: CatalogueEntry, wanted: CompletionRequest, *, seed: int) -> JobRequest:
    """Return the job of a completion. `seed` as in `chat_job`."""
    [prompt] = [wanted.prompt] if isinstance(wanted.prompt, str) else wanted.prompt
    value = {"prompt": prompt, **_sampling(wanted, wanted.max_tokens or COMPLETION_TOKENS, seed)}
    return JobRequest(model=entry.name, input=value)


def embedding_job(entry: CatalogueEntry, wanted: EmbeddingRequest) -> JobRequest:
    """Return the job of an embedding request, with its `data:` URLs."""
    named: dict[str, Any] = {"prompt_name": wanted.prompt_name, "prompt": wanted.prompt}
    if wanted.messages is not None:
        value = _embedded(entry, wanted.messages)
        if "prompt" in value and (wanted.prompt or wanted.prompt_name):
            raise invalid("messages", "has an instruction, and so has the request")
        named.update(value)
    else:
        named["texts"] = [wanted.input] if isinstance(wanted.input, str) else wanted.input or []
    if is_forwarded(entry):
        named["dimensions"] = wanted.dimensions
    return JobRequest(model=entry.name, input={name: value for name, value in named.items() if value is not None})


def _embedded(entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> dict[str, Any]:
    """Return the input of a job for one vector: a message of the user, and the instruction before it.

    An empty answer behind the message, which vLLM needs to begin one, changes nothing here.
    """
    if Capability.IMAGE_EMBEDDING not in capabilities_of(entry):
        raise invalid("messages", f"is not supported by {entry.name}, which embeds texts alone; send `input`")
    together = "items" in entry.input_schema.get("properties", {})
    *before, message = messages[:-1] if len(messages) > 1 and _is_empty_answer(messages[-1]) else messages
    parts = _parts(entry, message.content, len(before))
    parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    if message.role != "user" or (not together and (before or len(parts) > 1)):
        raise invalid("messages", f"is one message of the user with one text or image: {entry.name} embeds each alone")
    if [one.role for one in before] not in ([], ["system"], ["developer"]):
        raise invalid("messages", "is one message of the user, perhaps after a system message")
    prompt = {"prompt": _text(entry, before[0].content, 0)} if before else {}
    if len(parts) > 1:
        return {"items": [parts], **prompt}
    return {"texts": [parts[0]["text"]], **prompt} if "text" in parts[0] else {"images": [parts[0]["image"]], **prompt}


def _is_empty_answer(message: ConversationMessage) -> bool:
    parts = [message.content] if isinstance(message.content, str) else message.content
    texts = [part.text if isinstance(part, TextContent) else part for part in parts]
    return message.role == "assistant" and not any(texts)


def read_body(model: type[BodyT], body: Any, refused: Mapping[str, tuple[Any, ...]] = _REFUSED) -> BodyT:
    """Return a body; raise `InvalidRequest`, also for `refused` parameters with an effect."""
    if isinstance(body, dict):
        for name, without_effect in refused.items():
            given = body.get(name)
            if given is not None and not any(given == value for value in without_effect):
                raise invalid(name, "is not supported by the models of this service; leave it out")
    return validated(model, body)


def invalid(name: str, why: str) -> InvalidRequest:
    """Return the error about a parameter."""
    return InvalidRequest(f"{name!r} {why}", errors=[Issue(f"/{name}", why)])


def _sampling(wanted: Generation, tokens: int | None, seed: int) -> dict[str, Any]:
    """Return the given sampling parameters; the model has defaults for the others."""
    stops = [wanted.stop] if isinstance(wanted.stop, str) else wanted.stop
    samples = bool(wanted.temperature)
    found = {
        "max_new_tokens": tokens,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "seed": non_negative(wanted.seed) if wanted.seed is not None else seed if samples else None,
        "stop": stops,
    }
    return {name: value for name, value in found.items() if value is not None}


def non_negative(seed: int, bits: int = 63) -> int:
    """Return a non-negative seed of this many bits; OpenAI's seeds may be negative."""
    return int(seed % 2**bits)


def image_of(part: AnyContent) -> str | None:
    """Return the URL of a part's image, which may stand in it as a file; None for other parts."""
    if isinstance(part, ImageContent):
        return part.image_url.url
    data = part.file.file_data if isinstance(part, OtherContent) and part.file is not None else None
    return data if data is not None and data[:11].lower() == "data:image/" else None


def _parts(entry: CatalogueEntry, content: str | list[Part], at: int) -> str | list[dict[str, str]]:
    """Return a message's content in the format of models with image input; raise `InvalidRequest` for other media."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextContent)
        else {"type": "image", "image": _image(entry, part, f"/messages/{at}/content/{place}")}
        for place, part in enumerate(content)
    ]


def _image(entry: CatalogueEntry, part: ImageContent | OtherContent, where: str) -> str:
    url = image_of(part)
    if url is None:
        what = "files that are no images" if part.type == "file" else _CONTENTS[part.type]
        raise _refused(entry, what, where)
    return url


def _text(entry: CatalogueEntry, content: str | list[Part], at: int) -> str:
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if not isinstance(part, TextContent):
            raise _refused(entry, _CONTENTS[part.type], f"/messages/{at}/content/{place}")
    return "".join(part.text for part in content if isinstance(part, TextContent))


def _refused(entry: CatalogueEntry, what: str, where: str) -> InvalidRequest:
    why = f"{entry.name} does not accept {what}"
    return InvalidRequest(why, errors=[Issue(where, why)])


def check_images(entry: CatalogueEntry, messages: Sequence[ConversationMessage]) -> None:
    """Check each inline image of a chat for a model that accepts images.

    Raises `InvalidRequest` for a medium that is no image and for too many images.
    """
    if capabilities_of(entry).isdisjoint((Capability.IMAGE_CHAT, Capability.IMAGE_EMBEDDING)):
        return
    found = dict(_inline_images(messages))
    most = entry.limits.max_items
    if most is not None and len(found) > most:
        raise InvalidRequest(f"the chat has {len(found)} images; {entry.name} accepts at most {most}")
    for url, place in found.items():
        read_image(url, place)


def _inline_images(messages: Sequence[ConversationMessage]) -> Iterator[tuple[str, str]]:
    """Yield the `data:` URLs of a chat with their JSON pointers."""
    for at, message in enumerate(messages):
        for place, part in enumerate(message.content):
            url = None if isinstance(part, str) else image_of(part)
            if url is not None and is_inline(url):
                field = "image_url/url" if isinstance(part, ImageContent) else "file/file_data"
                yield url, f"/messages/{at}/content/{place}/{field}"
