"""Whisper's features: a log mel spectrogram of a hundred frames per second.

The formulas are those of https://github.com/openai/whisper/blob/main/whisper/audio.py (`log_mel_spectrogram`), and of
librosa's `filters.mel` with `htk=False, norm="slaney"`; `preprocessor_config.json` has the
parameters of `WhisperFeatureExtractor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config

#: The upper edge of the filters, at any sample rate.
_HIGHEST_HZ = 8000.0
#: Slaney's mel scale: linear below `_LINEAR_HZ`, logarithmic above.
_LINEAR_HZ, _HZ_PER_MEL = 1000.0, 200 / 3
_MEL_GROWTH = np.log(6.4) / 27
#: Frames whose spectra are in memory at once.
_FRAMES_AT_A_TIME = 3000


@dataclass(frozen=True)
class LogMel:
    """Computes features from samples."""

    bands: int = 80
    rate_hz: int = 16_000
    #: Samples from frame to frame, and of the window around each frame.
    hop: int = 160
    window: int = 400
    #: Seconds of the shortest input; shorter audio is padded with silence.
    chunk_s: int = 30

    def __call__(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return float32 (bands, frames) of (samples,), at least `chunk_s` of them."""
        missing = max(0, self.chunk_s * self.rate_hz - len(samples))
        half = self.window // 2
        padded = np.pad(np.pad(samples, (0, missing)), half, mode="reflect")
        frames = sliding_window_view(padded, self.window)[:: self.hop][: (len(samples) + missing) // self.hop]
        power = [self._power(frames[at : at + _FRAMES_AT_A_TIME]) for at in range(0, len(frames), _FRAMES_AT_A_TIME)]
        loud = np.log10(np.maximum(np.concatenate(power, axis=1), 1e-10))
        return np.asarray((np.maximum(loud, loud.max() - 8) + 4) / 4, dtype=np.float32)

    def frames(self, samples: int) -> int:
        """Return the number of frames of so many samples."""
        return -(-samples // self.hop)

    def _power(self, frames: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        spectra = np.fft.rfft(frames * self._hann, axis=1)
        return np.asarray(self._filters @ (spectra.real**2 + spectra.imag**2).T.astype(np.float32))

    @cached_property
    def _hann(self) -> npt.NDArray[np.float32]:
        """The periodic Hann window."""
        turns = np.arange(self.window) / self.window
        return (0.5 - 0.5 * np.cos(2 * np.pi * turns)).astype(np.float32)

    @cached_property
    def _filters(self) -> npt.NDArray[np.float32]:
        """Triangular filters of equal area, float32 (bands, bins)."""
        bins = np.linspace(0, self.rate_hz / 2, self.window // 2 + 1)
        corners = _hz(np.linspace(0, _mels(_HIGHEST_HZ), self.bands + 2))
        low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
        triangles = np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
        return np.asarray(triangles * (2 / (high - low)), dtype=np.float32)


def read_log_mel(model: Model) -> LogMel:
    """Return the features of `preprocessor_config.json`; raise `ModelUnavailable` for none or unsupported ones."""
    data: Mapping[str, Any] = read_config(model, "preprocessor_config.json")
    data = data or read_config(model, "processor_config.json").get("feature_extractor") or {}
    kind = data.get("feature_extractor_type")
    if kind != "WhisperFeatureExtractor":
        said = f"has the feature extractor {kind!r}" if data else "has no preprocessor_config.json"
        raise ModelUnavailable(f"model {model.name!r}: its directory {said}; known is WhisperFeatureExtractor")
    names = {"feature_size": 80, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
    numbers = [data.get(name, default) for name, default in names.items()]
    if not all(type(number) is int and number > 0 for number in numbers) or data.get("dither"):
        raise ModelUnavailable(f"model {model.name!r}: preprocessor_config.json needs integers above 0 and no dither")
    return LogMel(*numbers)


def _mels(hz: float) -> float:
    if hz < _LINEAR_HZ:
        return hz / _HZ_PER_MEL
    return float(_LINEAR_HZ / _HZ_PER_MEL + np.log(hz / _LINEAR_HZ) / _MEL_GROWTH)


def _hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = mels - _LINEAR_HZ / _HZ_PER_MEL
    return np.where(above < 0, mels * _HZ_PER_MEL, _LINEAR_HZ * np.exp(above * _MEL_GROWTH))
