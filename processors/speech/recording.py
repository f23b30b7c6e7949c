"""Reading recordings: blocks of samples at a network's sample rate, in bounded memory.

The duration comes from decoding, not from the header. Channels are mixed into one. A video's audio track is a recording
too.
"""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.decoding import bounded
from penstock.processors.limits import check_seconds
from penstock.processors.media.containers import opened, packets

Samples = npt.NDArray[np.float32]  #: (samples,), from -1 to 1

_SUPPORTED = "WAV, FLAC, MP3, Ogg, M4A, MP4 or WebM"
#: Plausible headers: sample rates and channels that decoders are given.
_RATES_HZ = range(1_000, 768_001)
_CHANNELS = range(1, 65)


def read_audio(path: Path, limits: Limits, rate_hz: int) -> Iterator[Samples]:
    """Yield a recording's samples, mixed into one channel and resampled, in blocks of about a second at most.

    Raises `MediaTooLarge` past the limit (`check_seconds`), and `MediaUnreadable` for another format, a damaged or
    truncated file, a file without audio, and samples that are not finite.
    """
    count = 0
    with opened(path, "recording", _SUPPORTED) as container:
        for block in _blocks(_frames(container, path), rate_hz):
            count += len(block)
            check_seconds(count / rate_hz, limits, "recording")
            if not np.isfinite(block).all():
                raise MediaUnreadable("The recording holds samples that are not finite numbers.")
            yield block
    if not count:
        raise MediaUnreadable("The recording is empty: it holds no samples.")


def write_dummy(folder: Path, rate_hz: int, samples: int) -> Path:
    """Write a recording of noise."""
    path = folder / "dummy.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate_hz, samples, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-3000, 3000, samples, dtype="<i2").tobytes())
    return path


def sound_begin_s(path: Path) -> float:
    """Return the seconds from the beginning of a file to its first sound: above 0 where a film's sound begins late.

    A film begins with the earliest of its audio and video tracks, as in players. Raises the errors of `read_audio`.
    """
    with opened(path, "recording", _SUPPORTED) as container:
        first = next(container.decode(_stream(container)), None)
        if first is None or first.time is None:
            return 0.0
        return first.time - min([first.time, *_pictures_begin_s(container)])


def _pictures_begin_s(container: InputContainer) -> Iterator[float]:
    """Yield the time of the first picture of each video track, in seconds of the file's own time."""
    for track in container.streams.video:
        if track.start_time is not None and track.time_base:
            yield float(track.start_time * track.time_base)


def _stream(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise MediaUnreadable("The file has no audio track.")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise MediaUnreadable("The recording's codec is not supported.")
    if stream.rate not in _RATES_HZ or stream.channels not in _CHANNELS:
        raise MediaUnreadable(f"The recording's header declares {stream.channels} channels at {stream.rate} Hz.")
    stream.codec_context.thread_count = 1
    return stream


def _frames(container: InputContainer, path: Path) -> Iterator[AudioFrame]:
    """Yield the decoded frames of the first audio track; raise `MediaUnreadable` at the end of a truncated file."""
    stream = _stream(container)
    for packet in packets(container, path, "recording"):
        if packet.stream.index == stream.index:
            yield from stream.decode(packet)


def _blocks(frames: Iterator[AudioFrame], rate_hz: int) -> Iterator[Samples]:
    # FFmpeg's own mix of float channels adds them up: two equal channels would clip.
    resampler, started = av.AudioResampler(format="fltp", rate=rate_hz), False
    for frame in bounded(frames):
        started = True
        for resampled in resampler.resample(frame):
            yield resampled.to_ndarray().mean(axis=0)
    for resampled in resampler.resample(None) if started else ():
        yield resampled.to_ndarray().mean(axis=0)
