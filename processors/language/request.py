"""The `input` of text jobs. Their JSON Schemas are the API's: neither numpy nor a tokenizer is imported here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.models import ITEMS, TENSORS, MediaReference

EmbeddingOutput = Literal["json", "safetensors"]

#: How a text is continued: what every request for one has.
NewTokens = Annotated[
    int | None,
    Field(ge=1, description="At most so many tokens are made; without it 256, or what the model has room for."),
]
Temperature = Annotated[
    float, Field(ge=0, le=2, allow_inf_nan=False, description="0 takes the likeliest token; more is more varied.")
]
TopP = Annotated[
    float,
    Field(gt=0, le=1, allow_inf_nan=False, description="Only the likeliest tokens of this share are drawn from."),
]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="Another seed gives another text where temperature > 0.")]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    Field(max_length=16, description="The text ends before the first of these."),
]


class TextEmbeddingRequest(BaseModel):
    """Texts to embed, given as they are or as files."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"oneOf": [{"required": ["texts"]}, {"required": ["files"]}]}
    )

    texts: str | Annotated[list[str], Field(min_length=1, max_length=10_000), ITEMS] | None = Field(
        default=None, description="One text or a list of them."
    )
    files: Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS] | None = Field(
        default=None, description="UTF-8 text files instead, one embedding each."
    )
    outputs: tuple[EmbeddingOutput, ...] = Field(
        default=("json",),
        min_length=1,
        description="json: the embeddings in the result; safetensors: the artifact embeddings.safetensors.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.texts is None) == (self.files is None):
            raise ValueError("give either texts or files")
        return self


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


#: How a text may begin; a request has one of these.
_BEGINNINGS = ("prompt", "messages", "prompt_embeds")


class GenerationRequest(BaseModel):
    """A text to continue, or a conversation to answer. The same request gives the same text."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"oneOf": [{"required": [name]} for name in _BEGINNINGS]}
    )

    prompt: str | None = Field(default=None, description="The text to continue.")
    messages: Annotated[list[Message], Field(min_length=1)] | None = Field(
        default=None, description="A conversation instead, for models with a chat template."
    )
    prompt_embeds: MediaReference | None = Field(
        default=None,
        description="The embeddings of the prompt's tokens instead, (tokens, hidden size), in an .npy or .safetensors "
        "file. Only tenants with `raw_tensors` may send them.",
        json_schema_extra={TENSORS: True},
    )
    max_new_tokens: NewTokens = None
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed = 0
    stop: Stop = []

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(getattr(self, name) is not None for name in _BEGINNINGS) != 1:
            raise ValueError("give one of prompt, messages and prompt_embeds")
        return self
