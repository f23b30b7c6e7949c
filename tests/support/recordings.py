"""Recordings for tests: tones in files of every kind, and films with sound, written by PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

RATE_HZ = 16_000
Samples = np.ndarray[Any, np.dtype[np.float32]]


class Pipe:
    """A file that cannot go back, as one that is sent while it is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> int:
        self.written += bytes(data)
        return len(data)


def a_tone(seconds: float, rate_hz: int = RATE_HZ, pitch_hz: float = 440) -> Samples:
    return (0.5 * np.sin(2 * np.pi * pitch_hz * np.arange(int(seconds * rate_hz)) / rate_hz)).astype(np.float32)


def encode(path: Path, codec: str, samples: Samples, rate_hz: int, layout: str = "stereo", **writer: Any) -> Path:
    """Write a tone with PyAV, the same in all channels; `writer` is what `av.open` takes besides."""
    with av.open(str(path), "w", **writer) as container:
        _fill(container, codec, samples, rate_hz, layout)
    return path


def film(
    path: Path, codec: str, samples: Samples, rate_hz: int = RATE_HZ, *, sound_s: float = 0, pictures_s: float = 0
) -> Path:
    """Write six seconds of black pictures from `pictures_s` on, and a sound in one channel from `sound_s` on."""
    sound: Any = av.AudioFrame.from_ndarray(
        np.rint(samples * 32767).astype(np.int16)[None], format="s16", layout="mono"
    )
    sound.sample_rate, sound.time_base, sound.pts = rate_hz, Fraction(1, rate_hz), 0
    with av.open(str(path), "w") as container:
        pictures: Any = container.add_stream("mpeg4", rate=10, width=64, height=48, pix_fmt="yuv420p")
        track: Any = container.add_stream(codec, rate=rate_hz, layout="mono")
        track.codec_context.options = {"strict": "experimental"}  # FLAC in MP4
        frame_size = track.codec_context.frame_size or 4096
        resampler = av.AudioResampler(format=track.format.name, layout="mono", rate=rate_hz, frame_size=frame_size)
        packets = []
        for part in [*resampler.resample(sound), *resampler.resample(None)]:
            part.pts += round(sound_s * rate_hz)
            packets += track.encode(part)
        for number in range(60):
            picture: Any = av.VideoFrame(64, 48, "yuv420p")
            picture.time_base, picture.pts = Fraction(1, 10), number + round(pictures_s * 10)
            packets += pictures.encode(picture)
        packets += [*track.encode(None), *pictures.encode(None)]
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return path


def piped(codec: str, samples: Samples, rate_hz: int, form: str) -> bytes:
    """Return a tone as a file of FFmpeg's format `form`, written to a pipe."""
    pipe = Pipe()
    with av.open(pipe, "w", format=form) as container:
        _fill(container, codec, samples, rate_hz, "stereo")
    return bytes(pipe.written)


def _fill(container: Any, codec: str, samples: Samples, rate_hz: int, layout: str) -> None:
    stream: Any = container.add_stream(codec, rate=rate_hz, layout=layout)
    stream.codec_context.options = {"strict": "experimental"}  # FFmpeg's own Vorbis
    channels = np.tile((samples * 32767).astype(np.int16), (2 if layout == "stereo" else 1, 1))
    packed = channels.T.reshape(1, -1).copy()
    frame: Any = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
    frame.sample_rate = rate_hz
    resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate_hz, frame_size=4096)
    for part in [*resampler.resample(frame), *resampler.resample(None)]:
        container.mux(stream.encode(part))
    container.mux(stream.encode(None))
