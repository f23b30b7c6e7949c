"""The `options` of a model that speaks OpenAI's protocol, for its runner and its processors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, StringConstraints, ValidationError

from penstock.errors import ModelUnavailable
from penstock.json_body import wrong_fields
from penstock.models import Model, Record

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Parameter = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
MediaKind = Literal["image", "video", "audio", "file"]
MEDIA_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
#: Seconds that vLLM may take to start, by default: large weights from a slow disk, compilation and graphs included.
START_TIMEOUT_S = 1800.0
Adapter = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]


class RequestOptions(Record):
    """The options that all runners of this protocol have."""

    #: Requests that are computed at the same time, at most.
    concurrency: int = Field(default=8, ge=1, le=1024)
    #: Seconds without a byte of the answer after which a request counts as stalled.
    timeout_s: float = Field(default=300, gt=0)
    #: Names of further parameters that a request may have, such as `["top_k", "min_p"]`; true: any.
    passed: bool | tuple[Parameter, ...] = Field(default=(), alias="pass")
    #: Media of each kind that a chat may have, at most, such as `{ image = 4, video = 1, audio = 0, file = 0 }`. Of
    #: kinds that are not named, vLLM takes those that the model's directory speaks of, and another server decides.
    media: Mapping[MediaKind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    #: Names of the LoRA adapters that a request may name.
    adapters: tuple[Adapter, ...] | Mapping[Adapter, str] = ()

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a model's options; raise `ModelUnavailable` that names the wrong ones."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        try:
            return cls.model_validate(dict(model.options))
        except ValidationError as error:
            raise ModelUnavailable(f"model {model.name!r}: options: {wrong_fields(error, known=known)}") from error


class ServerOptions(RequestOptions):
    """The options of a record with the runner `openai-server`."""

    #: The model's name at the server; default: the record's name.
    model: str | None = Field(default=None, min_length=1, max_length=200)
    #: Names of LoRA adapters at the server.
    adapters: tuple[Adapter, ...] = ()
    #: Environment variable of the worker that holds the server's API key.
    api_key_variable: Variable | None = None
    #: Seconds that a connection may take.
    connect_timeout_s: float = Field(default=5, gt=0)
    #: Further tries of a request within an attempt, after failures of the server.
    retries: int = Field(default=4, ge=0, le=100)

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a model's options; raise `ModelUnavailable` that names the wrong ones."""
        found = super().of(model)
        return found if found.model is not None else found.model_copy(update={"model": model.name})


class EngineOptions(RequestOptions):
    """The options of a record with the runner `vllm` whose processor is one of `TASKS`."""

    #: The task of vLLM for each processor.
    TASKS: ClassVar[Mapping[str, str]] = {
        "openai-chat": "generate", "openai-completion": "generate", "openai-embedding": "pooling",
    }  # fmt: skip

    #: Requests in vLLM's batches at the same time, at most: its `max_num_seqs`.
    concurrency: int = Field(default=32, ge=1, le=1024)
    #: Folders of LoRA adapters by their names, below the model's directory.
    adapters: Mapping[Adapter, str] = Field(default_factory=dict)
    #: Seconds that vLLM may take to start, after which its processes are ended.
    start_timeout_s: float = Field(default=START_TIMEOUT_S, gt=0, allow_inf_nan=False)
    #: vLLM's engine arguments, such as `{"max_model_len": 8192, "tensor_parallel_size": 2}`.
    engine: Mapping[str, Any] = Field(default_factory=dict)


def options_of(model: Model) -> RequestOptions:
    """Return the options of a model, by its runner; raise `ModelUnavailable` that names the wrong ones."""
    return (EngineOptions if model.runner == "vllm" else ServerOptions).of(model)
