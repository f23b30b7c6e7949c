"""A directory for the runner `torch`: `penstock.toml`, and an exported program or the weights of a known network.

    network = "csmask-unet"                # with model.safetensors and nothing else

or, beside a `program.pt2` of `torch.export.save`, the inputs in the program's order, whose batch axis comes before
the axes named here:

    multiples = { H = 16, W = 16 }         # sides must be multiples of these
    [inputs.pixels]
    dtype = "float32"
    shape = ["bands=6", "H", "W"]          # a number, a name for any number, or a name with its only number
    [outputs.probability]                  # by name if the program returns a dictionary, else in its order
    reduce = "softmax"                     # over the classes, on the device; or "argmax" (class ids), or "none"

For tables (`rows = true` above the inputs) the first axis of a prompt's arrays is the program's batch:
`shape = ["rows", "columns=4"]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from penstock.models import Record
from penstock.processors.io_signature import IOSignature
from penstock.processors.tensors.description import Inputs

DESCRIPTION = "penstock.toml"
#: Kinds of outputs by their reduction, before the axes.
_DTYPES = {"none": "array{0}", "softmax": "float32{0}", "argmax": "uint8{0} or uint16{0}"}


class TorchOutput(Record):
    """An output of the program."""

    reduce: Literal["none", "softmax", "argmax"] = "none"


class TorchDescription(Inputs):
    """The content of `penstock.toml`."""

    network: str | None = None
    outputs: Mapping[str, TorchOutput] = Field(default_factory=dict)
    rows: bool = False

    @property
    def signature(self) -> IOSignature:
        """The values of the program's prompts and outputs."""
        kinds = self.kinds
        if self.rows:
            kinds = {name: kind.replace("(_", "(rows", 1) for name, kind in kinds.items()}
        axes = " (rows, ...)" if self.rows else " (_, ...)"
        made = {name: _DTYPES[spec.reduce].format(axes) for name, spec in self.outputs.items()}
        return IOSignature(prompt=kinds, output=made)


def describe(folder: Path) -> TorchDescription:
    """Read a directory's `penstock.toml`; raise the errors of reading, of TOML and of pydantic."""
    return TorchDescription.model_validate(tomllib.loads((folder / DESCRIPTION).read_text(encoding="utf-8-sig")))
