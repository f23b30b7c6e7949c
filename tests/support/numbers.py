"""Prompts of a file's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.processors.base import Prompt


def numbers_prompt(dtype: str = "uint16", *, bands: int = 6, side: int = 64, seed: int = 3, **others: Any) -> Prompt:
    """Return noise with a tenth of invalid pixels, which is normalised as reflectance."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    numbers = rng.integers(limits.min, limits.max, size=(bands, side, side), endpoint=True, dtype=dtype)
    means, stds = rng.uniform(0.1, 0.3, bands), rng.uniform(0.1, 0.3, bands)
    radiometry = np.array([[1 / limits.max] * bands, [-0.1] * bands, means, stds])
    valid = rng.random((side, side)) > 0.1
    return Prompt({"pixels": numbers, "pixels.valid": valid, "pixels.radiometry": radiometry, **others}, cost=side**2)
