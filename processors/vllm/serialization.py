"""Serialization of plugins' prompts and outputs: a JSON tree plus numpy arrays.

Nested objects, lists, texts and numbers become JSON. Each tensor, array, image or bytes object in them becomes an array
that the tree refers to. Other objects are rejected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from penstock.errors import ProcessorFailed
from penstock.processors.base import Array, Value

#: Key of the objects that represent an array or a tuple. Objects of the plugin must not have this key.
_TAG = "@"


def serialize(name: str, tree: Any) -> dict[str, Value]:
    """Return a tree under its name, and its arrays under `name.0`, `name.1`, ...

    Raises `ProcessorFailed` for objects that cannot be serialized.
    """
    serializer = _Serializer(name)
    return {name: serializer.plain(tree), **serializer.arrays}


def deserialize(name: str, data: Mapping[str, Value]) -> Any:
    """Return the tree that was serialized under this name; raise `ProcessorFailed` for invalid data."""
    try:
        return _rebuilt(data[name], data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ProcessorFailed(f"{name!r} is not a serialized prompt or answer of a plugin: {error!r}") from error


@dataclass(slots=True)
class _Serializer:
    """A serializer, with the arrays found so far."""

    name: str
    arrays: dict[str, Array] = field(default_factory=dict)

    def plain(self, value: Any) -> Any:
        """Return a value as JSON, and collect its arrays."""
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return {self._key(key): self.plain(inner) for key, inner in value.items()}
            case list():
                return [self.plain(inner) for inner in value]
            case tuple():
                return {_TAG: ["tuple", [self.plain(inner) for inner in value]]}
            case bytes():
                return self._leaf("bytes", np.frombuffer(value, np.uint8))
            case Image.Image():
                return self._leaf("image", np.asarray(value), value.mode)
            case np.ndarray() | np.generic():
                return self._leaf("array", np.asarray(value))
        if _is_tensor(value):
            return self._leaf("tensor", *_tensor_array(value))
        raise ProcessorFailed(f"the plugin made a {_named(value)}, which cannot be serialized")

    def _key(self, key: object) -> str:
        if not isinstance(key, str) or key == _TAG:
            raise ProcessorFailed(f"the plugin made an object with the key {key!r}, which cannot be serialized")
        return key

    def _leaf(self, kind: str, array: Array, *more: str) -> dict[str, Any]:
        name = f"{self.name}.{len(self.arrays)}"
        self.arrays[name] = array
        return {_TAG: [kind, name, *more]}


def _rebuilt(plain: Any, data: Mapping[str, Value]) -> Any:
    match plain:
        case {"@": ["tuple", items]}:
            return tuple(_rebuilt(item, data) for item in items)
        case {"@": [kind, name, *more]}:
            return _LEAVES[kind](data[name], *more)
        case dict():
            return {key: _rebuilt(inner, data) for key, inner in plain.items()}
        case list():
            return [_rebuilt(inner, data) for inner in plain]
        case _:
            return plain


def _is_tensor(value: Any) -> bool:
    """Return True for torch's tensors. The plugin that made one has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_array(tensor: Any) -> tuple[Array, str]:
    """Return a tensor as an array, and the name of its dtype. bfloat16, which numpy lacks, becomes uint16 bits."""
    tensor, dtype = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(sys.modules["torch"].uint16) if dtype == "bfloat16" else tensor).numpy(), dtype


def _tensor(array: Array, dtype: str) -> Any:
    import torch

    # Received arrays are views of read-only shared memory.
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


#: Functions by kind that rebuild an object from its array.
_LEAVES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "bytes": lambda array: array.tobytes(),
        "image": lambda array, mode: Image.fromarray(array, mode),
        "array": np.array,
        "tensor": _tensor,
    }
)


def _named(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
