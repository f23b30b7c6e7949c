"""The `input` of text jobs. The API publishes their JSON Schemas, so neither numpy nor a tokenizer is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from penstock.media_types import TENSOR_FILES, TEXT_FILES
from penstock.models import ITEMS, TENSORS, MediaReference

EmbeddingOutput = Literal["json", "safetensors"]
RequestT = TypeVar("RequestT", bound=BaseModel)

#: Fields of every request for generated text.
NewTokens = Annotated[
    int | None,
    Field(ge=1, description="Maximum number of new tokens; default: 256, within the model's maximum."),
]
Temperature = Annotated[
    float,
    Field(ge=0, le=2, allow_inf_nan=False, description="0 takes the likeliest token; more is more varied."),
]
TopP = Annotated[
    float,
    Field(gt=0, le=1, allow_inf_nan=False, description="Share of the probability that tokens are sampled from."),
]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="Seed of the random choices; used where temperature > 0.")]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    Field(max_length=16, description="Stop strings: the text ends before the first of them."),
]
#: The fields for the beginning of the text; a request has exactly one of them.
_BEGINNINGS = ("prompt", "messages", "prompt_embeds")


class TextEmbeddingRequest(BaseModel):
    """Texts to embed, as strings or as files; a prompt before each of them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"oneOf": [{"required": ["texts"]}, {"required": ["files"]}]}
    )

    texts: str | Annotated[list[str], Field(min_length=1, max_length=10_000), ITEMS] | None = Field(
        default=None, description="One text or a list of them."
    )
    files: Annotated[list[MediaReference], Field(min_length=1, max_length=10_000), ITEMS] | None = Field(
        default=None, description="UTF-8 text files instead; each file has one embedding.", json_schema_extra=TEXT_FILES
    )
    prompt_name: str | None = Field(
        default=None, description="Name of one of the model's prompts; default: the model's default prompt, if any."
    )
    prompt: Annotated[str, Field(max_length=10_000)] | None = Field(
        default=None, description='A text before each text, instead of the model\'s prompts; "" for none.'
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
        if self.prompt is not None and self.prompt_name is not None:
            raise ValueError("give either prompt or prompt_name")
        return self


def with_prompts(request: type[RequestT], prompts: Sequence[str]) -> type[RequestT]:
    """Return the request of a model with prompts of these names, which its JSON Schema lists."""
    if not prompts:
        return request
    fields: dict[str, Any] = {"prompt_name": (Literal[tuple(prompts)] | None, request.model_fields["prompt_name"])}
    return create_model(request.__name__, __base__=request, __module__=request.__module__, **fields)


Texts = str | Annotated[list[str], Field(min_length=1, max_length=10_000), ITEMS]
Raw = Annotated[bool, Field(description="Scores as the network computes them, instead of probabilities.")]


class TextClassificationRequest(BaseModel):
    """Texts to classify."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: Texts = Field(description="One text or a list of them.")
    top_k: int = Field(default=5, ge=1, le=1000, description="Number of classes per text in the result, best first.")
    raw: Raw = False


class TextRankingRequest(BaseModel):
    """Documents to rank by how well they answer a query. Texts of the command line are the first field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    documents: Texts = Field(description="One document or a list of them.")
    queries: Texts = Field(
        description="One query for all documents, or one for each document.", examples=["Where is the lagoon?"]
    )
    max_query_tokens: int | None = Field(default=None, ge=1, description="Longer queries are cut to these tokens.")
    max_document_tokens: int | None = Field(default=None, ge=1, description="Longer documents are cut to these tokens.")
    raw: Raw = False

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The queries with their documents, in the order of the documents."""
        documents = [self.documents] if isinstance(self.documents, str) else self.documents
        queries = [self.queries] if isinstance(self.queries, str) else self.queries
        return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True))

    @model_validator(mode="after")
    def _one_query_each(self) -> Self:
        documents = 1 if isinstance(self.documents, str) else len(self.documents)
        queries = 1 if isinstance(self.queries, str) else len(self.queries)
        if queries not in (1, documents):
            raise ValueError(f"give one query, or one for each document: there are {queries} and {documents} documents")
        return self


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


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
        json_schema_extra={TENSORS: True} | TENSOR_FILES,
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
