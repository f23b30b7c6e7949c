"""The `input` of tensor jobs. The API publishes its JSON Schema, so numpy is not imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from penstock.media_types import TENSOR_FILES
from penstock.models import TENSORS, MediaReference, Record

TensorOutput = Literal["safetensors", "npy", "json"]


class TensorRequest(Record):
    """Tensors for a network, without a batch axis. Only tenants with `raw_tensors` may send them."""

    model_config = ConfigDict(json_schema_extra={TENSORS: True})

    file: MediaReference = Field(
        description="A .safetensors file with one tensor per input of the network, or an .npy file for a network with "
        "one input; pickled data is rejected.",
        json_schema_extra=TENSOR_FILES,
    )
    outputs: tuple[TensorOutput, ...] = Field(
        default=("safetensors",),
        min_length=1,
        description="safetensors: all outputs in tensors.safetensors; npy: each output in its own file; json: the "
        "numbers in the result.",
    )
