"""Recordings: samples of one channel in, WAV out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.models import Limits
from penstock.processors.base import ArtifactSink
from penstock.processors.outputs import OUTPUTS, Sound
from penstock.processors.speech.recording import read_audio


def decode(source: Path, options: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return float32 (samples,) at the options' `rate`; raise the errors of `read_audio`."""
    rate = int(options.get("rate", 16_000))
    return {"samples": np.concatenate(list(read_audio(source, limits, rate))), "rate": rate}


def encode(sink: ArtifactSink, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Write float32 (samples,) or (samples, channels) as WAV."""
    OUTPUTS.put(sink, name or "audio", Sound(np.asarray(value["samples"]), int(value["rate"])), kind="wav")
    return {"seconds": round(len(value["samples"]) / value["rate"], 3)}
