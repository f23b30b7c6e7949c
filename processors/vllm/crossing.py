"""What plugins make of their own accord, as prompts and outputs hold it: trees of JSON beside arrays, and back.

Nested objects, lists, texts and numbers become JSON, and each tensor, array, picture or bytes in them an array that the
tree points to. Anything else cannot cross.
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

#: The key of what stands for a leaf, or for a tuple. Objects of the plugin may not have it.
_MARK = "@"


def taken_apart(name: str, tree: Any) -> dict[str, Value]:
    """Return a tree under its name, and its arrays under `name.0`, `name.1`, ...

    Raises `ProcessorFailed` for what cannot cross.
    """
    taken = _Taken(name)
    return {name: taken.plain(tree), **taken.arrays}


def put_together(name: str, data: Mapping[str, Value]) -> Any:
    """Return the tree that was taken apart under this name; raise `ProcessorFailed` for what is none."""
    try:
        return _whole(data[name], data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ProcessorFailed(f"{name!r} is not what a plugin's prompt or answer becomes: {error!r}") from error


@dataclass(slots=True)
class _Taken:
    """The arrays that were found so far."""

    name: str
    arrays: dict[str, Array] = field(default_factory=dict)

    def plain(self, value: Any) -> Any:
        """Return JSON for a value; its arrays are kept."""
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return {self._key(key): self.plain(inner) for key, inner in value.items()}
            case list():
                return [self.plain(inner) for inner in value]
            case tuple():
                return {_MARK: ["tuple", [self.plain(inner) for inner in value]]}
            case bytes():
                return self._leaf("bytes", np.frombuffer(value, np.uint8))
            case Image.Image():
                return self._leaf("image", np.asarray(value), value.mode)
            case np.ndarray() | np.generic():
                return self._leaf("array", np.asarray(value))
        if _is_tensor(value):
            return self._leaf("tensor", *_of_tensor(value))
        raise ProcessorFailed(f"the plugin made a {_named(value)}, which cannot cross between processes")

    def _key(self, key: object) -> str:
        if not isinstance(key, str) or key == _MARK:
            raise ProcessorFailed(f"the plugin made an object with the key {key!r}, which cannot cross")
        return key

    def _leaf(self, kind: str, array: Array, *more: str) -> dict[str, Any]:
        name = f"{self.name}.{len(self.arrays)}"
        self.arrays[name] = array
        return {_MARK: [kind, name, *more]}


def _whole(plain: Any, data: Mapping[str, Value]) -> Any:
    match plain:
        case {"@": ["tuple", items]}:
            return tuple(_whole(item, data) for item in items)
        case {"@": [kind, name, *more]}:
            return _LEAVES[kind](data[name], *more)
        case dict():
            return {key: _whole(inner, data) for key, inner in plain.items()}
        case list():
            return [_whole(inner, data) for inner in plain]
        case _:
            return plain


def _is_tensor(value: Any) -> bool:
    """Whether this is torch's: whoever made one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_tensor(tensor: Any) -> tuple[Array, str]:
    """Return a tensor as an array and the name of its dtype: numpy has no bfloat16, so that its bits cross."""
    tensor, dtype = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(sys.modules["torch"].uint16) if dtype == "bfloat16" else tensor).numpy(), dtype


def _tensor(array: Array, dtype: str) -> Any:
    import torch

    # Arrays that crossed are views of shared memory that nobody may write to.
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


#: What is made again of an array.
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
