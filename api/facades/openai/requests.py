"""What OpenAI's clients send, and the jobs that it asks for.

What a model here cannot do and would change the answer is refused by name. What would not change it (`user`, `store`,
`service_tier`) is let through, as every server of this interface does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.api.facades.abilities import Ability, abilities_of
from penstock.documents import validated
from penstock.errors import InvalidRequest
from penstock.models import MAX_NAME_CHARS, CatalogueEntry
from penstock.reports import Issue
from penstock.requests import JobRequest

#: OpenAI's own default for completions; a chat has none.
COMPLETION_TOKENS = 16
MAX_STOPS = 16

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]
Stop = str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None
_MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Metadata = Annotated[dict[_MetadataKey, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)]

#: Parameters that would change an answer in ways that no model here can -> the values that do not.
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
    """A request's body. What it does not name is not looked at here."""

    model_config = ConfigDict(frozen=True, strict=True)


class TextPart(Body):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where a picture is; `detail` is not looked at: models see pictures in the one way that they were trained for."""

    url: Annotated[str, StringConstraints(min_length=1)]


class ImagePart(Body):
    """A picture in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


BodyT = TypeVar("BodyT", bound=Body)
Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ChatMessage(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)]


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = False


class Generation(Body):
    """What chats and completions share."""

    model: ModelName
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: Metadata | None = None


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`."""

    model: ModelName
    input: str | Annotated[list[str], Field(min_length=1, max_length=10_000)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    #: vLLM's: -1 cuts texts to what the model takes. Without it they are refused, as OpenAI does.
    truncate_prompt_tokens: Literal[-1] | None = None


class Named(Body):
    """A request of which only the model is looked at."""

    model: ModelName


def read_chat(body: Any) -> ChatRequest:
    """Return the body of a chat; raise `InvalidRequest`."""
    return read_body(ChatRequest, body)


def read_completion(body: Any) -> CompletionRequest:
    """Return the body of a completion; raise `InvalidRequest`, for several prompts and for tokens too."""
    given = body.get("prompt") if isinstance(body, dict) else None
    if isinstance(given, list):
        if any(isinstance(item, int | list) for item in given):
            raise _refusal("prompt", "has tokens: send text, of which the model makes its own tokens")
        if len(given) != 1:
            raise _refusal("prompt", f"has {len(given)} texts: send one in a request; many go as a batch (/v1/batches)")
    return read_body(CompletionRequest, body)


def read_embedding(body: Any) -> EmbeddingRequest:
    """Return the body of a request for embeddings; raise `InvalidRequest`, for tokens in place of text too."""
    given = body.get("input") if isinstance(body, dict) else None
    if isinstance(given, list) and any(isinstance(item, int | list) for item in given):
        raise _refusal("input", "has tokens: send text, of which the model makes its own tokens")
    return read_body(EmbeddingRequest, body)


def chat_job(
    entry: CatalogueEntry, wanted: ChatRequest, *, seed: int, stored: Mapping[str, str] = MappingProxyType({})
) -> JobRequest:
    """Return the job of a chat. `seed` is taken where the request is to vary and names none.

    `stored` has the references of pictures that came inside the request, by their `data:` URLs.
    """
    sees = Ability.PICTURES in abilities_of(entry)
    messages = [
        {
            "role": "system" if m.role == "developer" else m.role,
            "content": _parts(m.content, at, stored) if sees else _text(entry, m.content, at),
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
    """Return the job of a request for embeddings."""
    texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input
    return JobRequest(model=entry.name, input={"texts": texts})


def read_body(model: type[BodyT], body: Any, refused: Mapping[str, tuple[Any, ...]] = _REFUSED) -> BodyT:
    """Return a body; raise `InvalidRequest`, for parameters that are `refused` but for their harmless values too."""
    if isinstance(body, dict):
        for name, harmless in refused.items():
            given = body.get(name)
            if given is not None and not any(given == value for value in harmless):
                raise _refusal(name, "is not supported by the models of this service")
    return validated(model, body)


def _refusal(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} {why}", errors=[Issue(f"/{name}", why)])


def _sampling(wanted: Generation, tokens: int | None, seed: int) -> dict[str, Any]:
    """Return what was asked for; the model's own defaults stand for the rest."""
    stops = [wanted.stop] if isinstance(wanted.stop, str) else wanted.stop
    varied = bool(wanted.temperature)
    found = {
        "max_new_tokens": tokens,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "seed": natural(wanted.seed) if wanted.seed is not None else seed if varied else None,
        "stop": stops,
    }
    return {name: value for name, value in found.items() if value is not None}


def natural(seed: int, bits: int = 63) -> int:
    """Return a seed that models take: OpenAI's may be negative."""
    return int(seed % 2**bits)


def _parts(content: str | list[TextPart | ImagePart], at: int, stored: Mapping[str, str]) -> str | list[dict[str, str]]:
    """Return a message as models that see pictures take it."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "image": _reference(part.image_url.url, f"/messages/{at}/content/{place}", stored)}
        for place, part in enumerate(content)
    ]


def _reference(url: str, place: str, stored: Mapping[str, str]) -> str:
    if url[:5].lower() != "data:":
        return url
    if url not in stored:
        why = "a picture inside a line of a batch is not taken: name it by its URL, or upload it first"
        raise InvalidRequest(why, errors=[Issue(place, why)])
    return stored[url]


def _text(entry: CatalogueEntry, content: str | list[TextPart | ImagePart], at: int) -> str:
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if isinstance(part, ImagePart):
            why = f"{entry.name} takes no images"
            raise InvalidRequest(why, errors=[Issue(f"/messages/{at}/content/{place}", why)])
    return "".join(part.text for part in content if isinstance(part, TextPart))
