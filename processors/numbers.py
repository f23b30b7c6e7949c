"""Prompts of a file's own numbers: they are normalised on the device, or here for a runner that takes floats only.

A prompt of numbers has `pixels` in the file's data type (bands, H, W), and beside them

    pixels.valid        bool (H, W)            False for pixels without data and for padding
    pixels.radiometry   float64 (4, bands)     scale, offset, mean and standard deviation of each band

and stands for `pixels` as float32: `(number * scale + offset - mean) / std` where valid, else `(0 - mean) / std`. Both
are computed in float64, operation by operation in this order, and rounded once at the end: the same bits everywhere.
Numbers of one or two bytes take half or a quarter of the memory that floats take, between processes and to the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.processors.base import Prompt
from penstock.processors.prompt_names import PIXELS, RADIOMETRY, VALID, has_numbers

#: Largest numbers that are sent as they are, in bytes: larger ones take as much memory as floats.
_MOST_BYTES = 2


def is_compact(dtype: np.dtype[Any]) -> bool:
    """Return True for integers that take less memory than float32."""
    return dtype.kind in "iu" and dtype.itemsize <= _MOST_BYTES


def normalised(
    numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_], radiometry: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Return float32 (bands, H, W) of numbers (bands, H, W), as the module describes."""
    pixels = np.empty(numbers.shape, dtype=np.float32)
    for band, (scale, offset, mean, std) in enumerate(radiometry.T):
        values = numbers[band].astype(np.float64) * scale + offset
        pixels[band] = np.where(valid, (values - mean) / std, -mean / std)
    return pixels


def as_floats(prompt: Prompt) -> Prompt:
    """Return a prompt of numbers as one of floats; any other prompt as it is."""
    if not has_numbers(prompt.data):
        return prompt
    pixels = normalised(prompt.data[PIXELS], prompt.data[VALID], prompt.data[RADIOMETRY])
    others = {name: value for name, value in prompt.data.items() if name not in (VALID, RADIOMETRY)}
    return replace(prompt, data={**others, PIXELS: pixels})
