"""Resizing and reduction of a network's answer, in numpy."""

from __future__ import annotations

from typing import Any, Literal, assert_never

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def resized(channels: Array, height: int, width: int) -> Array:
    """Resize (channels, h, w) bilinearly to float32 (channels, height, width).

    Equals `torch.nn.functional.interpolate` with `align_corners=False`: pixels have centres, and edges are repeated.
    """
    rows, columns = _weights(channels.shape[1], height), _weights(channels.shape[2], width)
    return np.asarray(rows @ channels.astype(np.float32) @ columns.T, dtype=np.float32)


def reduced(channels: Array, reduce: Literal["none", "softmax", "argmax"]) -> Array:
    """Return (channels, ...) unchanged, as float32 probabilities, or as ids: uint8, or uint16 above 256 channels."""
    match reduce:
        case "none":
            return channels
        case "softmax":
            raised = np.exp(channels.astype(np.float32) - channels.max(axis=0))
            return np.asarray(raised / raised.sum(axis=0), dtype=np.float32)
        case "argmax":
            return np.asarray(channels.argmax(axis=0), np.uint8 if len(channels) <= 256 else np.uint16)
        case _:
            assert_never(reduce)


def _weights(before: int, after: int) -> npt.NDArray[np.float32]:
    """Return the matrix (after, before) that resizes one axis."""
    at = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, before - 1)
    weights = np.zeros((after, before), np.float32)
    np.add.at(weights, (np.arange(after), low), 1 - (at - low))
    np.add.at(weights, (np.arange(after), high), at - low)
    return weights
