"""Reading recordings: blocks of samples at the rate that a network wants, however long the file is.

Headers are not believed: how long a recording is shows when it was decoded. Channels are mixed into one; a film's sound
track is a recording too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.containers import check_decoded, opened

Samples = npt.NDArray[np.float32]  #: (samples,), from -1 to 1

#: What a model without `limits.max_seconds` takes.
MAX_SECONDS = 12 * 3600
_TAKEN = "WAV, FLAC, MP3, Ogg, M4A, MP4 or WebM"
#: What decoders are asked for: headers may say anything.
_RATES_HZ = range(1_000, 768_001)
_CHANNELS = range(1, 65)


def read_sound(path: Path, limits: Limits, rate_hz: int) -> Iterator[Samples]:
    """Yield a recording's samples, mixed into one channel and resampled, in blocks of less than a second or so.

    Raises `MediaTooLarge` where more than `limits.max_seconds` come, and `MediaUnreadable` for a file of another
    format, a damaged one, one without sound, and samples that are no numbers.
    """
    most, count = limits.max_seconds or MAX_SECONDS, 0
    with opened(path, "recording", _TAKEN) as container:
        for block in _blocks(container, _stream(container), rate_hz):
            count += len(block)
            if count > most * rate_hz:
                raise MediaTooLarge(f"The recording is longer than {most:g} seconds, which is what is taken.")
            if not np.isfinite(block).all():
                raise MediaUnreadable("The recording holds samples that are no numbers.")
            yield block
    if not count:
        raise MediaUnreadable("The recording is empty: it holds no samples.")
    check_decoded(path, "recording", count / rate_hz)


def _stream(container: InputContainer) -> AudioStream:
    if not container.streams.audio:
        raise MediaUnreadable("The file has no sound track.")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise MediaUnreadable("The recording is of a kind that cannot be decoded here.")
    if stream.rate not in _RATES_HZ or stream.channels not in _CHANNELS:
        raise MediaUnreadable(f"The recording says that it has {stream.channels} channels at {stream.rate} Hz.")
    stream.codec_context.thread_count = 1
    return stream


def _blocks(container: InputContainer, stream: AudioStream, rate_hz: int) -> Iterator[Samples]:
    # FFmpeg's own mix of float channels is louder than they are: two alike would be cut off.
    resampler, begun = av.AudioResampler(format="fltp", rate=rate_hz), False
    for frame in container.decode(stream):
        begun = True
        for made in resampler.resample(frame):
            yield made.to_ndarray().mean(axis=0)
    for made in resampler.resample(None) if begun else ():
        yield made.to_ndarray().mean(axis=0)
