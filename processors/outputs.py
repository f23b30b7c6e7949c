"""Output kinds: file formats by name, each with a function that writes a value to a file. Text is the default.

The registry never changes: `OUTPUTS.register("mp4", Kind("video/mp4", ".mp4", write_mp4))` returns a new one. Kinds of
installed packages are found by their entry points (`penstock.output_kinds`).
"""

from __future__ import annotations

import json
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock import output_kinds
from penstock.errors import ConfigError, ProcessorFailed
from penstock.output_kinds import Kind, output_kind
from penstock.processors.base import ArtifactSink, OutputSpec

__all__ = [
    "OUTPUTS", "Indexed", "Kind", "OutputKinds", "Sound", "output_kind", "write_json", "write_npy", "write_png",
    "write_safetensors", "write_text", "write_wav",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputKinds:
    """Kinds by name; an instance never changes."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)

    def register(self, name: str, kind: Kind) -> OutputKinds:
        """Return a copy with one more kind."""
        return replace(self, kinds=MappingProxyType({**self.kinds, name: kind}))

    def kind(self, name: str) -> Kind:
        """Return a kind, also one of an installed package.

        Raises `ConfigError` with the known names for an unknown one, and with the reason for a broken one.
        """
        if name in self.kinds:
            return self.kinds[name]
        packages = output_kinds.installed()
        if name not in packages:
            known = ", ".join(sorted({*self.kinds, *packages}))
            raise ConfigError(f"there is no output kind {name!r}; known kinds: {known}")
        return output_kinds.load(packages[name])

    def spec(self, name: str, description: str, *, kind: str = "text", default: bool = True) -> OutputSpec:
        """Return the description of a processor's output of this kind."""
        return OutputSpec(name, self.kind(kind).media_type, description, default)

    def put(self, sink: ArtifactSink, name: str, value: Any, *, kind: str = "text") -> None:
        """Write a value to a file and add it as the artifact `name` plus the kind's suffix."""
        made = self.kind(kind)
        file = name + made.suffix
        path = sink.path(file)
        try:
            made.write(path, value)
        except (TypeError, ValueError) as error:
            raise ProcessorFailed(f"The output {name!r} cannot be written as {kind}: {error}") from error
        sink.add(file, path, media_type=made.media_type)


@dataclass(frozen=True, slots=True)
class Indexed:
    """An image with a palette: ids, uint8 (height, width), and a colour per id. The id `clear` is transparent."""

    ids: npt.NDArray[np.uint8]
    colours: Sequence[tuple[int, int, int]]
    clear: int | None = None


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio samples, float32 (frames,) or (frames, channels) from -1 to 1, or int16."""

    samples: npt.NDArray[Any]
    rate_hz: int


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write data as indented JSON."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_png(path: Path, value: Indexed | npt.NDArray[Any]) -> None:
    """Write a PNG: uint8 (height, width[, 3 or 4]), uint16 (height, width), or ids with a palette."""
    if isinstance(value, Indexed):
        image = Image.fromarray(value.ids).convert("L")
        image.putpalette(bytes(part for colour in value.colours for part in colour))
        extra = {} if value.clear is None else {"transparency": value.clear}
        image.save(path, format="PNG", optimize=True, **extra)
    else:
        Image.fromarray(value).save(path, format="PNG")


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays by name as safetensors."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)


def write_npy(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array in numpy's .npy format."""
    np.save(path, array, allow_pickle=False)


def write_wav(path: Path, sound: Sound) -> None:
    """Write a WAV file with 16-bit PCM; values beyond -1 and 1 are clipped."""
    samples = sound.samples
    if samples.dtype != np.int16:
        samples = np.rint(np.clip(samples, -1, 1) * 32767).astype(np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(sound.rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


OUTPUTS = (
    OutputKinds()
    .register("text", Kind("text/plain; charset=utf-8", ".txt", write_text))
    .register("json", Kind("application/json", ".json", write_json))
    .register("npy", Kind("application/x-npy", ".npy", write_npy))
    .register("png", Kind("image/png", ".png", write_png))
    .register("safetensors", Kind("application/vnd.safetensors", ".safetensors", write_safetensors))
    .register("wav", Kind("audio/wav", ".wav", write_wav))
)
