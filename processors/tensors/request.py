"""The `input` of tensor jobs. Its JSON Schema is the API's: numpy is not imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.models import TENSORS, MediaReference

TensorOutput = Literal["safetensors", "npy", "json"]


class TensorRequest(BaseModel):
    """Tensors for a network, without a batch axis. Only tenants with `raw_tensors` may send them."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={TENSORS: True})

    file: MediaReference = Field(
        description="A .safetensors file with a tensor for each of the network's inputs, or an .npy file for a network "
        "with one input. Nothing pickled.",
    )
    outputs: tuple[TensorOutput, ...] = Field(
        default=("safetensors",),
        min_length=1,
        description="safetensors: all outputs in tensors.safetensors; npy: each output in a file of its own; "
        "json: their numbers in the result.",
    )
