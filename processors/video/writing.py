"""Writing videos with PyAV: H.264 for viewing, and lossless FFV1 for class ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from penstock.models import Limits

#: The side of a dummy video's frames in pixels, and their number.
_DUMMY_PX, _DUMMY_FRAMES = 512, 4


class VideoWriter:
    """A video file that is written frame by frame."""

    def __init__(self, container: Any, stream: Any, form: str) -> None:
        self._container, self._stream, self._form = container, stream, form

    def add(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Add a frame: uint8 (height, width, 3), or (height, width) for class ids."""
        height, width = self._stream.height, self._stream.width
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[:height, :width]), format=self._form)
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the frames that the encoder holds back."""
        self._container.mux(self._stream.encode(None))


@contextmanager
def open_video_writer(path: Path, shape: tuple[int, int], fps: float, *, exact: bool = False) -> Iterator[VideoWriter]:
    """Open a video for frames of (height, width): MP4 with H.264, or with `exact` Matroska with FFV1 for class ids.

    Players need H.264 with even sides: an odd last row or column is left out.
    """
    codec, stored, form = ("ffv1", "gray", "gray") if exact else ("libx264", "yuv420p", "rgb24")
    height, width = shape if exact else (max(2, shape[0] // 2 * 2), max(2, shape[1] // 2 * 2))
    # Without it every Matroska file gets a random UID.
    with av.open(str(path), "w", container_options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream(codec, rate=1 / Fraction(1 / fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, stored
        stream.thread_count = 1
        if not exact:  # under load x264's macroblock tree changes the bits of one video in five
            stream.options = {"x264-params": "mbtree=0"}
        writer = VideoWriter(container, stream, form)
        yield writer
        writer.finish()


def write_dummy(folder: Path, limits: Limits) -> Path:
    """Write a video of a few frames of noise, within the limits."""
    side = min(_DUMMY_PX, int((limits.max_pixels or _DUMMY_PX**2) ** 0.5)) // 2 * 2
    random, path = np.random.default_rng(0), folder / "dummy.mp4"
    with open_video_writer(path, (side, side), _DUMMY_FRAMES / min(3, limits.max_seconds or 3)) as writer:
        for _ in range(_DUMMY_FRAMES):
            writer.add(random.integers(0, 256, (side, side, 3), dtype=np.uint8))
    return path
