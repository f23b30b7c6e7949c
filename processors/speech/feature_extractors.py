"""Feature extractors of audio classification networks: normalized samples, or a log mel spectrogram.

`preprocessor_config.json` has the parameters of `Wav2Vec2FeatureExtractor` or `ASTFeatureExtractor`. The mel filters
are Kaldi's (https://kaldi-asr.org/doc/feat.html), as transformers computes them in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config

Array = npt.NDArray[np.float32]

#: Samples of a frame of Kaldi's at 16 kHz, of the hop to the next frame, and of the FFT.
_FRAME, _HOP, _FFT = 400, 160, 512
_PREEMPHASIS, _LOWEST_HZ = 0.97, 20.0
#: The power of silence.
_FLOOR = float(np.finfo(np.float32).eps)


class FeatureExtractor(Protocol):
    """Computes a network's input from samples."""

    @property
    def rate_hz(self) -> int:
        """The sample rate of the input."""
        ...

    @property
    def max_samples(self) -> int | None:
        """The most samples of one input; None = any number."""
        ...

    def __call__(self, samples: Array) -> Array:
        """Return the network's input of (samples,)."""
        ...


@dataclass(frozen=True)
class Waveform:
    """The samples: float32 (samples,), with `normalize` of mean 0 and variance 1."""

    rate_hz: int = 16_000
    normalize: bool = True
    max_samples: None = None

    def __call__(self, samples: Array) -> Array:
        """Return float32 (samples,)."""
        if not self.normalize:
            return samples
        return np.asarray((samples - samples.mean()) / np.sqrt(samples.var() + 1e-7), dtype=np.float32)


@dataclass(frozen=True)
class FilterBank:
    """A log mel spectrogram: float32 (frames, bands), padded to the network's frames."""

    rate_hz: int = 16_000
    bands: int = 128
    frames: int = 1024
    normalize: bool = True
    mean: float = -4.2677393
    std: float = 4.5689974

    @property
    def max_samples(self) -> int:
        """The samples that fill all frames."""
        return _FRAME + (self.frames - 1) * _HOP

    def __call__(self, samples: Array) -> Array:
        """Return float32 (frames, bands) of (samples,), at least one frame."""
        frames = sliding_window_view(samples.astype(np.float64), _FRAME)[::_HOP][: self.frames]
        frames = frames - frames.mean(axis=1, keepdims=True)
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        spectra = np.fft.rfft((frames - _PREEMPHASIS * before) * np.hanning(_FRAME), _FFT, axis=1)
        power = np.abs(spectra.astype(np.complex64)).astype(np.float64) ** 2
        loud = np.zeros((self.frames, self.bands), np.float32)
        loud[: len(frames)] = np.log(np.maximum(_FLOOR, power @ self._filters))
        return np.asarray((loud - self.mean) / (self.std * 2), np.float32) if self.normalize else loud

    @cached_property
    def _filters(self) -> npt.NDArray[np.float64]:
        """Triangular filters on Kaldi's mel scale, (bins, bands)."""
        bins = _mels(np.arange(_FFT // 2 + 1) * (self.rate_hz / _FFT))[:, None]
        corners = np.linspace(_mels(np.array(_LOWEST_HZ)), _mels(np.array(self.rate_hz // 2)), self.bands + 2)
        low, middle, high = corners[:-2], corners[1:-1], corners[2:]
        return np.asarray(np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))))


def read_feature_extractor(model: Model) -> FeatureExtractor:
    """Return the extractor of `preprocessor_config.json`; raise `ModelUnavailable` for none or an unsupported one."""
    data: Mapping[str, Any] = read_config(model, "preprocessor_config.json")
    kind = data.get("feature_extractor_type")
    if kind == "Wav2Vec2FeatureExtractor":
        return Waveform(_whole(model, data, "sampling_rate", 16_000), data.get("do_normalize") is not False)
    if kind == "ASTFeatureExtractor":
        rate, bands, frames = (
            _whole(model, data, name, default)
            for name, default in (("sampling_rate", 16_000), ("num_mel_bins", 128), ("max_length", 1024))
        )
        mean, std = (
            _number(model, data, name, default) for name, default in (("mean", -4.2677393), ("std", 4.5689974))
        )
        return FilterBank(rate, bands, frames, data.get("do_normalize") is not False, mean, std)
    said = f"has the feature extractor {kind!r}" if data else "has no preprocessor_config.json"
    raise ModelUnavailable(
        f"model {model.name!r}: its directory {said}; known are Wav2Vec2FeatureExtractor and ASTFeatureExtractor"
    )


def _whole(model: Model, data: Mapping[str, Any], name: str, default: int) -> int:
    number = data.get(name, default)
    if type(number) is not int or number < 1:
        raise ModelUnavailable(f"model {model.name!r}: {name} in preprocessor_config.json must be an integer above 0")
    return number


def _number(model: Model, data: Mapping[str, Any], name: str, default: float) -> float:
    number = data.get(name, default)
    if type(number) not in (int, float) or not np.isfinite(number) or (name == "std" and not number):
        raise ModelUnavailable(
            f"model {model.name!r}: {name} in preprocessor_config.json must be a finite number, and std not 0"
        )
    return float(number)


def _mels(hz: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(1127 * np.log(1 + hz / 700), dtype=np.float64)
