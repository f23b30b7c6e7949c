"""The `input` of chats about images, and of texts and images to embed.

The API publishes their JSON Schemas, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from penstock.media_types import IMAGE_FILES, TENSOR_FILES
from penstock.models import ITEMS, TENSORS, MediaReference
from penstock.processors.language.request import EmbeddingOutput, NewTokens, Seed, Stop, Temperature, Texts, TopP

_KINDS = "PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC; only the first frame is used"
#: The fields for the beginning of a chat; a request has exactly one of them.
_SOURCES = ("images", "messages", "processed")


class TextPart(BaseModel):
    """Text in a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"]
    text: str


class ImagePart(BaseModel):
    """An image in a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image"]
    image: MediaReference


class VideoPart(BaseModel):
    """A video in a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["video"]
    video: MediaReference


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)]

    @property
    def parts(self) -> list[TextPart | ImagePart]:
        """The message's parts, in order."""
        return [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class ImageTextRequest(BaseModel):
    """Images with a prompt, or a whole conversation. The same request gives the same text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            # Files of the command line are the first of `anyOf`.
            "anyOf": [{"required": [name]} for name in _SOURCES],
            "allOf": [{"not": {"required": list(pair)}} for pair in combinations(_SOURCES, 2)],
            "dependentRequired": {"images": ["prompt"], "prompt": ["images"]},
        },
    )

    images: MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=1000), ITEMS] | None = (
        Field(default=None, description=f"One image or a list of them ({_KINDS}).", json_schema_extra=IMAGE_FILES)
    )
    prompt: str | None = Field(default=None, description="A question or an instruction about `images`.")
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        default=None, description="A conversation instead; its messages have text and images in any order."
    )
    processed: MediaReference | None = Field(
        default=None,
        description="The network's inputs as the library's processor makes them (`input_ids`, `pixel_values`, ...), in "
        "a .safetensors file, instead of a conversation. Only tenants with `raw_tensors` may send them.",
        json_schema_extra={TENSORS: True} | TENSOR_FILES,
    )
    max_new_tokens: NewTokens = None
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed = 0
    stop: Stop = []

    @property
    def turns(self) -> list[ChatMessage]:
        """The conversation. `images` and `prompt` become one message, with the images first."""
        if self.messages is not None:
            return self.messages
        given = [self.images] if isinstance(self.images, str) else self.images or ()
        images: list[TextPart | ImagePart] = [ImagePart(type="image", image=image) for image in given]
        return [ChatMessage(role="user", content=[*images, TextPart(type="text", text=self.prompt or "")])]

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(getattr(self, name) is not None for name in _SOURCES) != 1:
            raise ValueError("give either images with a prompt, or messages, or processed")
        if (self.images is None) != (self.prompt is None):
            raise ValueError("images and prompt go together")
        return self


def with_videos() -> type[ImageTextRequest]:
    """Return the request class of a model that takes videos, as parts of messages with `"type": "video"`."""
    part = Annotated[TextPart | ImagePart | VideoPart, Field(discriminator="type")]
    content: Any = (str | Annotated[list[part], Field(min_length=1)], ...)
    message: Any = create_model("ChatMessage", __base__=ChatMessage, __module__=__name__, content=content)
    about = "A conversation instead; its messages have text, images and videos in any order."
    messages: Any = (Annotated[list[message], Field(min_length=1)] | None, Field(default=None, description=about))
    return create_model("ImageTextRequest", __base__=ImageTextRequest, __module__=__name__, messages=messages)


def videos_of(turns: Iterable[ChatMessage]) -> list[str]:
    """Return the references of the videos of a conversation, in order."""
    parts: list[TextPart | ImagePart | VideoPart] = [part for turn in turns for part in turn.parts]
    return [part.video for part in parts if isinstance(part, VideoPart)]


class TextImageEmbeddingRequest(BaseModel):
    """Texts, images or both to embed: one vector each, of one space. Vectors of texts come first in the result."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"anyOf": [{"required": ["texts"]}, {"required": ["images"]}]}
    )

    texts: Texts | None = Field(default=None, description="One text or a list of them.")
    images: MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS] | None = (
        Field(default=None, description=f"One image or a list of them ({_KINDS}).", json_schema_extra=IMAGE_FILES)
    )
    outputs: tuple[EmbeddingOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )

    @property
    def groups(self) -> dict[str, list[list[TextPart | ImagePart]]]:
        """The items that get a vector each, in the order of the result, by the names of the fields."""
        texts = [self.texts] if isinstance(self.texts, str) else self.texts or []
        images = [self.images] if isinstance(self.images, str) else self.images or []
        return {
            "texts": [[TextPart(type="text", text=text)] for text in texts],
            "images": [[ImagePart(type="image", image=image)] for image in images],
        }

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not any(self.groups.values()):
            raise ValueError(f"give {' or '.join(self.groups)}")
        return self


class MessageEmbeddingRequest(TextImageEmbeddingRequest):
    """Texts, images, and items of both to embed, by a model that reads them together: one vector each, of one space.

    Vectors of texts come first in the result, then those of images, then those of items.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["texts"]}, {"required": ["images"]}, {"required": ["items"]}]}
    )

    items: Annotated[list[Annotated[list[Part], Field(min_length=1, max_length=100)]], Field(min_length=1), ITEMS] | (
        None
    ) = Field(default=None, description="Lists of texts and images that get one vector together, in any order.")
    prompt_name: str | None = Field(
        default=None, description="Name of one of the model's instructions; default: the model's default one, if any."
    )
    prompt: Annotated[str, Field(max_length=10_000)] | None = Field(
        default=None, description='An instruction for all items, instead of the model\'s own; "" for none.'
    )

    @property
    def groups(self) -> dict[str, list[list[TextPart | ImagePart]]]:
        """As of the base class, with the items."""
        return {**super().groups, "items": self.items or []}

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt is not None and self.prompt_name is not None:
            raise ValueError("give either prompt or prompt_name")
        return self
