"""Videos of chats: only the frames that a model's own video processor chooses are decoded and kept.

A video processor that leaves the choice to its caller (`do_sample_frames` is false) gets frames spread evenly over the
whole video, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, MediaTooLarge
from penstock.models import Limits
from penstock.processors.multimodal.library import rejecting, video_metadata

#: Frames for a video processor that chooses none itself, as in vLLM.
FRAMES = 32
#: Most pixels of all chosen frames of one video: 240 frames of 1920 x 1080, 1.5 GB.
MAX_PIXELS = 500_000_000


@dataclass(frozen=True, slots=True)
class Clip:
    """A video's chosen frames."""

    #: uint8 (frames, height, width, 3), RGB and upright.
    frames: npt.NDArray[np.uint8]
    #: The library's `VideoMetadata`: the rate and length of the whole video, and the indices of the frames.
    metadata: Any


def read_clip(path: Path, processor: Any, limits: Limits) -> Clip:
    """Decode the frames of a video that a video processor of the library chooses.

    Raises `MediaTooLarge` for more seconds, pixels or frames than allowed, `MediaUnreadable` for a damaged file or one
    that is no video, and `InvalidInput` with the processor's reason for a video that it rejects.
    """
    from penstock.processors.video.reading import read_chosen, read_timeline

    timeline = read_timeline(path, limits)
    height, width = timeline.shape
    metadata = video_metadata(
        total_num_frames=timeline.frames, fps=timeline.rate, duration=timeline.frames / timeline.rate,
        height=height, width=width,
    )  # fmt: skip
    with rejecting("videos"):
        chosen = _chosen(processor, metadata)
    if not chosen:
        raise InvalidInput(f"The model's video processor chooses none of the {timeline.frames} frames of the video.")
    if len(chosen) * height * width > MAX_PIXELS:
        raise MediaTooLarge(
            f"The model's video processor chooses {len(chosen)} frames of {width} x {height} pixels; "
            f"{MAX_PIXELS // (height * width)} frames of this size are allowed."
        )
    metadata.frames_indices = chosen
    frames = np.empty((len(chosen), height, width, 3), np.uint8)
    for at, image in enumerate(read_chosen(path, chosen, timeline.shape, limits)):
        frames[at] = image
    return Clip(frames, metadata)


def _chosen(processor: Any, metadata: Any) -> list[int]:
    """Return the numbers of the frames that the processor chooses, in the order of the video."""
    total: int = metadata.total_num_frames
    if processor.do_sample_frames:
        numbers = processor.sample_frames(metadata=metadata, **_settings(processor))
    else:
        numbers = np.linspace(0, total - 1, min(FRAMES, total)).astype(int)
    return sorted(int(number) for number in numbers)


#: Settings that the library's `preprocess` does not pass to `sample_frames`.
_KEPT = frozenset({"input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata"})


def _settings(processor: Any) -> Mapping[str, Any]:
    """Return the settings that the library's `preprocess` passes to `sample_frames`."""
    names = processor.valid_kwargs.__annotations__
    return {name: getattr(processor, name, None) for name in names if name not in _KEPT}
