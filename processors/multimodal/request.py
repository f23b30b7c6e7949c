"""The `input` of chats about images, and of texts and images to embed.

The API publishes their JSON Schemas, so nothing heavy is imported here.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.models import ITEMS, TENSORS, MediaReference
from penstock.processors.language.request import EmbeddingOutput, NewTokens, Seed, Stop, Temperature, Texts, TopP

_KINDS = "PNG, JPEG, WebP, TIFF, BMP or GIF; only the first frame is used"


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


#: The fields for the beginning of a chat; a request has exactly one of them.
_SOURCES = ("images", "messages", "processed")


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
        Field(default=None, description=f"One image or a list of them ({_KINDS}).")
    )
    prompt: str | None = Field(default=None, description="A question or an instruction about `images`.")
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        default=None, description="A conversation instead; its messages have text and images in any order."
    )
    processed: MediaReference | None = Field(
        default=None,
        description="The network's inputs as the library's processor makes them (`input_ids`, `pixel_values`, ...), in "
        "a .safetensors file, instead of a conversation. Only tenants with `raw_tensors` may send them.",
        json_schema_extra={TENSORS: True},
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


class TextImageEmbeddingRequest(BaseModel):
    """Texts, images or both to embed: one vector each, of one space. Vectors of texts come first in the result."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"anyOf": [{"required": ["texts"]}, {"required": ["images"]}]}
    )

    texts: Texts | None = Field(default=None, description="One text or a list of them.")
    images: MediaReference | Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS] | None = (
        Field(default=None, description=f"One image or a list of them ({_KINDS}).")
    )
    outputs: tuple[EmbeddingOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )

    @property
    def listed_texts(self) -> list[str]:
        """The texts, in order."""
        return [self.texts] if isinstance(self.texts, str) else self.texts or []

    @property
    def listed_images(self) -> list[str]:
        """The media references of the images, in order."""
        return [self.images] if isinstance(self.images, str) else self.images or []

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.texts is None and self.images is None:
            raise ValueError("give texts, images or both")
        return self
