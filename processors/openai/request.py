"""The `input` of models behind a server that speaks OpenAI's protocol: its parameters under its names.

The API publishes the JSON Schemas, so nothing heavy is imported here. Media are references, which the service fetches:
the server gets the files themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_
from types import new_class
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.media_types import IMAGE_FILES
from penstock.models import ITEMS, TENSORS, MediaReference
from penstock.processors.openai.options import MediaKind, RequestOptions

Tokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=1_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Part):
    """Text in a message."""

    type: Literal["text"]
    text: Text


class MediaUrl(_Part):
    """An image or video of a message."""

    url: MediaReference
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Part):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: MediaUrl


class VideoPart(_Part):
    """A video in a message, for servers that accept them."""

    type: Literal["video_url"]
    video_url: MediaUrl


class Audio(_Part):
    """A recording of a message."""

    data: MediaReference
    format: Annotated[str, Field(pattern=r"^[a-z0-9]{2,8}$")] | None = Field(
        default=None, description="Format of the recording, such as wav or mp3; default: that of the file."
    )


class AudioPart(_Part):
    """A recording in a message."""

    type: Literal["input_audio"]
    input_audio: Audio


class Embeddings(_Part):
    """The embeddings of an image, in place of the image."""

    data: MediaReference = Field(
        description="A .safetensors file with `image_embeds` (embeddings, width) and `image_grid_thw` (1, 3) of one "
        "image. Only tenants with `raw_tensors` may send them.",
        json_schema_extra={TENSORS: True},
    )


class EmbeddingsPart(_Part):
    """The embeddings of an image in a message, for models in vLLM that take them."""

    type: Literal["image_embeds"]
    image_embeds: Embeddings


class FileData(_Part):
    """A file of a message."""

    file_data: MediaReference
    filename: Name | None = None


class FilePart(_Part):
    """A file in a message, such as a PDF."""

    type: Literal["file"]
    file: FileData


Part = Annotated[TextPart | ImagePart | VideoPart | AudioPart | FilePart, Field(discriminator="type")]


#: The part of a message for each kind of media.
_MEDIA_PARTS: Mapping[MediaKind, type[_Part]] = {
    "image": ImagePart, "video": VideoPart, "audio": AudioPart, "file": FilePart
}  # fmt: skip


class Function(_Part):
    """The function of a call: its name, and its arguments as the model wrote them."""

    name: Name
    arguments: Text = ""


class ToolCall(_Part):
    """A call of a function that the model asked for."""

    id: Name
    type: Literal["function"] = "function"
    function: Function


class Message(_Part):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Part], Field(min_length=1)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None
    refusal: Text | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ValueError("content is missing")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id is missing")
        return self


class Sampling(BaseModel):
    """Parameters of chats and completions. The server has defaults for those that are left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: Tokens | None = Field(default=None, description="Maximum number of new tokens.")
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(default=None, description="Number of answers.")
    stop: Name | Annotated[list[Name], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None

    @property
    def repeatable(self) -> bool:
        """True where the same request has the same answer, as far as the server keeps its promise."""
        return self.temperature == 0 or self.seed is not None


class Conversation(BaseModel):
    """The beginning of a chat. It comes before the parameters, so that texts of the command line are its prompt."""

    messages: Annotated[list[Message], Field(min_length=1)] | None = Field(
        default=None, description="The conversation; `url`, `data` and `file_data` of its parts are references."
    )
    prompt: Text | None = Field(default=None, description="A message of the user instead.")
    images: MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=1000), ITEMS] | None = (
        Field(default=None, description="Images before `prompt`: one or a list.", json_schema_extra=IMAGE_FILES)
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if self.images is not None and self.prompt is None:
            raise ValueError("images need a prompt")
        return self


class ChatRequest(Sampling, Conversation):
    """A conversation to answer, as of `POST /v1/chat/completions`, or a prompt with images."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "oneOf": [{"required": ["messages"]}, {"required": ["prompt"]}],
            "dependentRequired": {"images": ["prompt"]},
        },
    )

    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    response_format: dict[str, Any] | None = Field(
        default=None, description="Such as {type: json_schema, json_schema: {name, schema}}."
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Name | None = None


class Beginning(BaseModel):
    """The beginning of a text."""

    prompt: Text = Field(description="The text to continue.")


class CompletionRequest(Sampling, Beginning):
    """A text to continue, as of `POST /v1/completions`."""

    suffix: Text | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None


class EmbeddingRequest(BaseModel):
    """Texts to embed, as of `POST /v1/embeddings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: Text | Annotated[list[Text], Field(min_length=1, max_length=10_000), ITEMS] = Field(
        description="One text or a list of them."
    )
    dimensions: Annotated[int, Field(ge=1)] | None = None
    outputs: tuple[Literal["json", "safetensors"], ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )


RequestT = TypeVar("RequestT", bound=BaseModel)


def request_for(request: type[RequestT], options: RequestOptions) -> type[RequestT]:
    """Return the request type of a model, with its adapters and the further parameters that it passes on."""
    if options.adapters:
        about = Field(default=None, description="LoRA adapter of the model; default: none.")
        named: dict[str, Any] = {"adapter": (Literal[tuple(options.adapters)] | None, about)}
        request = create_model(request.__name__, __base__=request, __module__=__name__, **named)
    return passing(request, options.passed)


def taking(kinds: Collection[MediaKind] | None, *, embeddings: bool = False) -> type[ChatRequest]:
    """Return the request type of chats with media of these kinds (None: all), and perhaps embeddings of images."""
    if kinds is None and not embeddings:
        return ChatRequest
    kinds = _MEDIA_PARTS if kinds is None else kinds
    parts: Any = [TextPart, *(part for kind, part in _MEDIA_PARTS.items() if kind in kinds)]
    if embeddings and "image" in kinds:
        parts.append(EmbeddingsPart)
    either: Any = reduce(or_, parts)
    if len(parts) > 1:
        either = Annotated[either, Field(discriminator="type")]
    content: Any = Text | Annotated[list[either], Field(min_length=1)] | None
    message: Any = create_model("Message", __base__=Message, __module__=__name__, content=(content, None))
    fields: dict[str, Any] = {
        "messages": (Annotated[list[message], Field(min_length=1)] | None, Conversation.model_fields["messages"])
    }
    if "image" not in kinds:
        fields["images"] = (Annotated[None, SkipJsonSchema()], None)  # type: ignore[type-arg]
    return create_model("ChatRequest", __base__=ChatRequest, __module__=__name__, **fields)


def passing(request: type[RequestT], passed: bool | Sequence[str]) -> type[RequestT]:
    """Return the request type with further parameters of any value: those of these names, or all for True."""
    if passed is True:
        config = {**request.model_config, "extra": "allow"}
        inside = {"__module__": __name__, "model_config": config}
        return cast("type[RequestT]", new_class(request.__name__, (request,), {}, lambda space: space.update(inside)))
    more: dict[str, Any] = {
        name: (Any, Field(default=None)) for name in passed or () if name not in request.model_fields
    }
    if not more:
        return request
    return create_model(request.__name__, __base__=request, __module__=__name__, **more)
