"""Tensors: an array from `.npy` or a safetensors file of one tensor; `.npy` out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import InvalidInput
from penstock.models import Limits
from penstock.processors.base import ArtifactSink
from penstock.processors.outputs import OUTPUTS
from penstock.processors.tensors.reading import open_tensors


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> Any:  # noqa: ARG001  (a codec's form)
    """Return the file's array; raise `InvalidInput` for a file of several."""
    arrays = open_tensors(source).load()
    if len(arrays) != 1:
        raise InvalidInput(f"The file has {len(arrays)} tensors ({', '.join(arrays)}); one is needed.")
    return next(iter(arrays.values()))


def encode(sink: ArtifactSink, name: str, value: Any) -> dict[str, Any]:
    """Write the array as `.npy`."""
    OUTPUTS.put(sink, name or "tensor", value, kind="npy")
    return {"dtype": str(value.dtype), "shape": list(value.shape)}
