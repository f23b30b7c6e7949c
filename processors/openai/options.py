"""The `options` of a model behind a server that speaks OpenAI's protocol, for its runner and its processors."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from penstock.documents import wrong_fields
from penstock.errors import ModelUnavailable
from penstock.models import Model, Record

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Parameter = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class ServerOptions(Record):
    """The options of a record with the runner `openai-server`."""

    #: The model's name at the server; default: the record's name.
    model: str | None = Field(default=None, min_length=1, max_length=200)
    #: Requests at the server at the same time, at most.
    concurrency: int = Field(default=8, ge=1, le=1024)
    #: Environment variable of the worker that holds the server's API key.
    api_key_variable: Variable | None = None
    #: Seconds that a connection may take.
    connect_timeout_s: float = Field(default=5, gt=0)
    #: Seconds without a byte from the server after which a request counts as stalled.
    timeout_s: float = Field(default=300, gt=0)
    #: Further tries of a request within an attempt, after failures of the server.
    retries: int = Field(default=4, ge=0, le=100)
    #: Names of further parameters that a request may have, such as `["top_k", "min_p"]`; true: any.
    passed: bool | tuple[Parameter, ...] = Field(default=(), alias="pass")

    @classmethod
    def of(cls, model: Model) -> ServerOptions:
        """Return a model's options; raise `ModelUnavailable` that names the wrong ones."""
        try:
            found = cls.model_validate(dict(model.options))
        except ValidationError as error:
            raise ModelUnavailable(f"model {model.name!r}: options: {wrong_fields(error)}") from error
        return found if found.model is not None else found.model_copy(update={"model": model.name})
